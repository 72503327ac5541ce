"""``paddlempi.torch.apply``: the losses of every plan are those of one process."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import paddlempi.torch
import pytest
import torch
from paddlempi.errors import ArgumentError
from paddlempi.planner.plans import Plan, Plans
from torch import nn

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

STEPS, ROWS, WIDTH = 20, 24, 8
mse = nn.functional.mse_loss

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def layers(width: int = 24) -> nn.Sequential:
    """Four blocks, of which each is a pair for tensor parallelism and may be a stage."""

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, width), nn.Tanh(), nn.Linear(width, WIDTH))

    return nn.Sequential(*(block() for _ in range(4)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3))


def batch(step: int, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, WIDTH, generator=generator), torch.randn(rows, 3, generator=generator)


def seeded(make: Callable[[], nn.Module], seed: int = 7) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def alone(
    model: nn.Module, optimizer: Any, loss_of: Callable[[nn.Module, int], Any]
) -> list[float]:
    """Return the losses of one process on the whole batches."""
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return losses


def plans(size: int) -> list[Plan]:
    """Return every plan that so many ranks on one node can have."""
    found = [
        Plan("ddp", {"replicate": size}, 1, size),
        Plan("fsdp2", {"shard": size}, 1, size),
        Plan("tp", {"tensor": size}, 1, size),
        Plan("pipeline", {"replicate": 1, "stage": size}, 1, size),
    ]
    if size == 4:
        found += [
            Plan("hsdp", {"replicate": 2, "shard": 2}, 1, 4),
            Plan("fsdp2+tp", {"shard": 2, "tensor": 2}, 1, 4),
            Plan("pipeline", {"replicate": 2, "stage": 2}, 1, 4),
        ]
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_are_those_of_one_process(dist: ModuleType, rank: int, size: int, name: str) -> None:
    make = OPTIMIZERS[name]
    single = seeded(layers)
    wanted = alone(single, make(single.parameters()), lambda m, s: mse(m(batch(s)[0]), batch(s)[1]))
    for plan in plans(size):
        model = seeded(layers, 7 + rank)  # rank 0's parameters replace the others
        model, step, shard_batch = paddlempi.torch.apply(
            model, make(model.parameters()), plan, loss=mse
        )
        losses = [float(step(shard_batch(batch(s)))) for s in range(STEPS)]
        assert losses == pytest.approx(wanted, abs=1e-5), plan.name
