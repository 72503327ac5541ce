"""``join``: ranks with fewer batches shadow the collectives of the other ranks."""

from __future__ import annotations

import copy
from types import ModuleType

import pytest
import torch
from models import Net, agree, close, loss_of, seeded
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

SMALL = 0.0005


def steps_of(rank: int) -> int:
    """Return a rank's number of batches: 2 on rank 0, and one more on each next rank."""
    return 2 + rank


def expected_of(start: nn.Module, size: int, active: bool, momentum: float) -> nn.Module:
    """Train in one process, on the sum of the gradients of all ranks that still have a batch.

    Args:
        active: divide the sum by the number of these ranks, not by the number of all ranks.
    """
    model = copy.deepcopy(start)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    for step in range(steps_of(size - 1)):
        present = [rank for rank in range(size) if step < steps_of(rank)]
        optimizer.zero_grad()
        for rank in present:
            share = len(present) if active else size
            (loss_of(size)(model, step, rank) / share).backward()
        optimizer.step()
    return model


@pytest.mark.parametrize("active", [False, True], ids=["by-world-size", "by-active"])
def test_uneven_inputs(dist: ModuleType, rank: int, size: int, active: bool) -> None:
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=SMALL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with model.join(divide_by_initial_world_size=not active):
        for step in range(steps_of(rank)):
            optimizer.zero_grad()
            loss_of(size)(model, step, rank).backward()
            optimizer.step()
    # The ranks that ended early got the model of the last rank.
    close(model, expected_of(start, size, active, 0.9))
    agree(dist, model)


def test_unused_parameters(dist: ModuleType, rank: int, size: int) -> None:
    """The map of used parameters needs one more all-reduce, which must be shadowed too."""
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.join():
        for step in range(steps_of(rank)):
            optimizer.zero_grad()
            loss_of(size)(model, step, rank).backward()
            optimizer.step()
    close(model, expected_of(start, size, False, 0.0))
    agree(dist, model)


def test_with_zero_redundancy(dist: ModuleType, rank: int, size: int) -> None:
    """Two joinables at once: DDP's all-reduces and the optimizer's broadcasts.

    A rank that has ended gets no more gradients, so the parameters that it updates do not change.
    """
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=SMALL)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    owners = [optimizer._param_to_rank[p] for p in model.parameters()]
    assert set(owners) == set(range(size))
    with Join([model, optimizer]):
        for step in range(steps_of(rank)):
            loss_of(size)(model, step, rank).backward()
            optimizer.step()
            optimizer.zero_grad()

    expected = copy.deepcopy(start)
    single = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps_of(size - 1)):
        single.zero_grad()
        for other in range(size):
            if step < steps_of(other):
                (loss_of(size)(expected, step, other) / size).backward()
        for parameter, owner in zip(expected.parameters(), owners, strict=True):
            if step >= steps_of(owner):
                parameter.grad = None
        single.step()
    close(model, expected)
    agree(dist, model)


def test_an_early_end_may_be_an_error(dist: ModuleType, rank: int, size: int) -> None:
    """With ``throw_on_early_termination`` every rank raises if a rank has no more input."""
    model = DDP(seeded(Net))
    with (
        pytest.raises(RuntimeError, match="exhausted"),
        model.join(throw_on_early_termination=True),
    ):
        for step in range(steps_of(rank)):
            loss_of(size)(model, step, rank).backward()
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size
