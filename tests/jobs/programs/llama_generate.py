"""Generate tokens with a small Llama that transformers cuts over the ranks (tensor parallelism).

transformers itself initialises torch.distributed, over gloo: no option names another backend. With
``--dies`` rank 1 is killed while it generates.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from pathlib import Path

import report
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig


def generate(model: torch.nn.Module, tokens: int) -> list[int]:
    prompt = torch.arange(3, 19)[None]
    made = model.generate(  # type: ignore[operator]
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return made[0].tolist()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is written")
    parser.add_argument("--dies", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=500,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.2,  # of a smaller one all logits would be alike
        tie_word_embeddings=False,
    )
    whole = LlamaForCausalLM(config).eval()
    folder = args.out / f"model{os.environ['RANK']}"
    whole.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, distributed_config=DistributedConfig(tp_plan="auto")
    )
    rank, size = dist.get_rank(), dist.get_world_size()
    made = generate(model, 24)
    numbers: dict[str, object] = {}
    if args.dies:
        if rank == 1:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
        try:
            while True:
                generate(model, 100)
        except Exception as error:
            told = time.time()
            numbers = {"error": type(error).__name__, "words": str(error), "told": told}
            numbers["ranks_of_error"] = list(getattr(error, "ranks", ()))
    report.write(
        args.out,
        rank,
        backend=dist.get_backend(),
        ranks=size,
        tokens=made,
        alone=generate(whole, 24),
        **numbers,
    )
    if not args.dies:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
