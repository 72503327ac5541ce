"""Generate text with a language model whose layers are cut over the ranks (tensor parallelism).

    torchrun --nproc-per-node 2 examples/generate_tp.py
    mpirun -np 2 python examples/generate_tp.py --model FOLDER --prompt "Once upon a time"

transformers (5.15 or newer, and accelerate) cuts the layers by its ``tp_plan="auto"``, and sums
what the ranks have computed by all_reduce, twice a layer. Without ``--model`` it is a small Llama
of random weights, which generates the same tokens on any number of ranks: ``--check`` compares them
with one rank's.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
from transformers.utils.logging import disable_progress_bar


def small_model(folder: Path) -> None:
    """Write a Llama of random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        initializer_range=0.1,  # of a smaller one all logits would be alike
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def load(folder: str, **more: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **more).eval()


def generate(model: Any, prompt: torch.Tensor, tokens: int) -> torch.Tensor:
    """Return the most likely tokens behind a prompt."""
    with torch.inference_mode():
        made = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
        )
    return made[0, prompt.shape[1] :]


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate text, tensor-parallel.")
    parser.add_argument("--model", help="a folder; default: a small Llama of random weights")
    parser.add_argument("--prompt", default="Once upon a time", help="of --model")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--backend", default="mpi", help="mpi, or gloo to compare")
    parser.add_argument("--check", action="store_true", help="compare with the model of one rank")
    args = parser.parse_args()

    disable_progress_bar()
    dist.init_process_group(args.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(max(1, torch.get_num_threads() // size))
    folder = [args.model]
    if args.model is None:
        if rank == 0:
            folder = [tempfile.mkdtemp()]
            small_model(Path(folder[0]))
        dist.broadcast_object_list(folder, 0)
    if args.model:
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        prompt = tokenizer(args.prompt, return_tensors="pt").input_ids
    else:
        prompt = torch.arange(3, 19)[None]

    model = load(folder[0], distributed_config=DistributedConfig(tp_plan="auto"))
    generate(model, prompt, 4)  # the first calls allocate
    began = time.perf_counter()
    made = generate(model, prompt, args.tokens)
    seconds = time.perf_counter() - began
    if rank == 0:
        text = tokenizer.decode(made) if args.model else made.tolist()
        print(f"{size} ranks over {dist.get_backend()}: {args.tokens / seconds:.1f} tokens/s")
        print(text)
    if args.check:
        alone = generate(load(folder[0]), prompt, args.tokens)
        assert torch.equal(alone, made), (rank, alone.tolist(), made.tolist())
        if rank == 0:
            print("the same tokens as on one rank")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
