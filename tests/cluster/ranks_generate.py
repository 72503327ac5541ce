"""A rank that generates tokens with a small Llama whose layers transformers cuts over all ranks."""

from __future__ import annotations

from typing import Any

import ranks_report
import torch
import torch.distributed as dist
from paddlempi import _native
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
from transformers.utils.logging import disable_progress_bar


def generate(model: Any) -> list[int]:
    prompt = torch.arange(3, 43)[None]
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=24,
        min_new_tokens=24,
        do_sample=False,
        pad_token_id=0,
    )
    return made[0, 40:].tolist()  # type: ignore[no-any-return]


def held(model: Any) -> int:
    """Count the elements of the weights that this rank holds."""
    parts = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    return sum(part.numel() for part in parts)


disable_progress_bar()
torch.set_num_threads(1)
dist.init_process_group("mpi")
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=500,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=4,
    initializer_range=0.1,  # of a smaller one all logits would be alike
    tie_word_embeddings=False,
)
whole = LlamaForCausalLM(config).eval()
model = LlamaForCausalLM.from_pretrained(
    None,
    config=config,
    state_dict=whole.state_dict(),
    distributed_config=DistributedConfig(tp_plan="auto"),
).eval()
core = _native.control("info")
ranks_report.write(
    {
        "rank": dist.get_rank(),
        "backend": dist.get_backend(),
        "transport": core["transport"],
        "part": held(model) / held(whole),
        "tokens": generate(model),
        "alone": generate(whole),
    }
)
dist.destroy_process_group()
