"""An MLP of PyTorch; how it is cut over the ranks is an option.

    mpirun -np 2 python examples/plan_mlp.py                # DistributedDataParallel
    mpirun -np 2 python examples/plan_mlp.py --plan fsdp2   # or hsdp, tp, fsdp2+tp, pipeline

What a step will cost on a job of 64 nodes, from what is measured here, without such a job:

    mpirun -np 2 python -m paddlempi bench --calibrate machine.json
    python -m paddlempi plan examples/plan_mlp.py --nodes 64 --ranks 8 --machine machine.json

And the plan that is the fastest on the ranks that are there (or: make plan):

    mpirun -np 2 python examples/plan_mlp.py --plan auto --machine machine.json

The data are made up: the model learns what another one, with other weights, says of random
numbers. All ranks make the same batch, and shard_batch gives each its part of it. So the losses
are the same under every plan and on any number of ranks, except for rounding.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import paddlempi.torch
import torch
import torch.distributed as dist

FEATURES, CLASSES = 64, 10


def build(width: int, layers: int) -> torch.nn.Sequential:
    """Return an MLP. The blocks are what fully_shard gathers, and what stages are made of."""
    blocks = [
        torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.ReLU(), torch.nn.Linear(2 * width, width)
        )
        for _ in range(layers)
    ]
    return torch.nn.Sequential(
        torch.nn.Linear(FEATURES, width),
        *blocks,
        torch.nn.LayerNorm(width),
        torch.nn.Linear(width, CLASSES),
    )


def whole_batch(step: int, rows: int, teacher: torch.nn.Module) -> tuple[torch.Tensor, ...]:
    """Return inputs and classes, the same on all ranks."""
    inputs = torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(step))
    with torch.no_grad():
        return inputs, teacher(inputs).argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--plan", default="ddp", help="ddp, fsdp2, hsdp, tp, fsdp2+tp, pipeline or auto; ddp"
    )
    parser.add_argument("--machine", metavar="FILE", help="of bench --calibrate; for --plan auto")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1024, help="of the batch of all ranks")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4, help="blocks of two linear layers")
    parser.add_argument("--losses", type=Path, metavar="FILE", help="write them as JSON")
    chosen = parser.parse_args()

    dist.init_process_group("mpi")
    torch.manual_seed(1)
    teacher = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.Tanh(), torch.nn.Linear(32, CLASSES)
    )
    model = build(chosen.width, chosen.layers)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    batch = whole_batch(0, chosen.rows, teacher)
    applied = paddlempi.torch.apply(
        model,
        optimizer,
        chosen.plan,
        loss=torch.nn.functional.cross_entropy,
        example=batch,
        machine=chosen.machine,
    )
    model, step, shard_batch = applied

    first = dist.get_rank() == 0
    if first:
        for name, seconds in applied.tried.items():
            print(f"tried {name}: {1e3 * seconds:.1f} ms a step")
        print(f"{dist.get_world_size()} rank(s): {applied.plan.name}", flush=True)
    losses = []
    for number in range(chosen.steps):
        batch = whole_batch(number, chosen.rows, teacher)
        losses.append(float(step(shard_batch(batch))))
        if first and (number % 20 == 0 or number == chosen.steps - 1):
            print(f"step {number:4}  loss {losses[-1]:.4f}", flush=True)
    if first and chosen.losses:
        chosen.losses.write_text(json.dumps(losses))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
