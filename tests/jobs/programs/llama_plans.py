"""Tiny models of transformers under plans of ``paddlempi.torch.apply``, beside one process."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import paddlempi.torch
import report
import torch
import torch.distributed as dist
from paddlempi.planner.plans import Plan
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCABULARY, STEPS = 50, 20

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32,
}


def model_of(name: str) -> Any:
    """Return Llama; or Qwen3, whose heads have norms of their own, and whose embedding is tied."""
    torch.manual_seed(1)
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**SIZES)).float()
    config = Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)
    return Qwen3ForCausalLM(config).float()


def batch(step: int) -> dict[str, torch.Tensor]:
    """Return the whole batch of a step."""
    starts = torch.randint(VOCABULARY, (8, 1), generator=torch.Generator().manual_seed(step))
    rows = (starts + torch.arange(9)) % VOCABULARY
    return {"input_ids": rows, "labels": rows}


def alone(name: str) -> list[float]:
    model = model_of(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = model(**batch(step)).loss
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="a folder for what is written")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    size = dist.get_world_size()
    if size < 4:
        plans = [Plan("fsdp2", {"shard": size}, 1, size), Plan("tp", {"tensor": size}, 1, size)]
    else:
        half = size // 2
        plans = [
            Plan("ddp", {"replicate": size}, 1, size),
            Plan("hsdp", {"replicate": half, "shard": 2}, 1, size),
            Plan("fsdp2+tp", {"shard": half, "tensor": 2}, 1, size),
        ]
    found: dict[str, Any] = {}
    for name in ("llama", "qwen3"):
        found[name] = {"alone": alone(name)}
        for plan in plans:
            model = model_of(name)
            optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
            model, step, shard_batch = paddlempi.torch.apply(
                model, optimizer, plan, example=batch(0)
            )
            losses = [float(step(shard_batch(batch(number)))) for number in range(STEPS)]
            found[name][plan.kind] = losses
    report.write(args.out, dist.get_rank(), backend="mpi", losses=found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
