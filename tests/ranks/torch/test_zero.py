"""ZeroRedundancyOptimizer: every rank keeps its parameters' states and broadcasts the results."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from models import STEPS, Net, agree, alone, close, loss_of, seeded, spoilt, train
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import (
    hook_with_zero_step,
    hook_with_zero_step_interleaved,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

SMALL = 0.0005


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.mark.parametrize("as_views", [False, True], ids=["tensors", "bucket-views"])
def test_steps(dist: ModuleType, rank: int, size: int, as_views: bool) -> None:
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=SMALL)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, parameters_as_bucket_view=as_views, lr=0.01
    )
    train(model, loss_of(size), rank, optimizer)
    close(model, alone(start, loss_of(size), size, adam))
    agree(dist, model)
    # The state is spread: together the ranks have the state of every parameter once.
    mine = len(optimizer.optim.state_dict()["state"])
    total = torch.tensor(mine)
    dist.all_reduce(total)
    assert mine < total.item() == len(list(model.parameters()))


def test_consolidated_state(dist: ModuleType, rank: int, size: int) -> None:
    """The rank that is asked for gets the whole state. Training goes on after it is loaded."""
    start = seeded(Net)
    model = DDP(copy.deepcopy(start))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, loss_of(size), rank, optimizer)
    last = size - 1
    optimizer.consolidate_state_dict(to=last)
    if rank != last:
        with pytest.raises(RuntimeError, match="consolidate_state_dict"):
            optimizer.state_dict()
    boxes: list[Any] = [optimizer.state_dict() if rank == last else None]
    dist.broadcast_object_list(boxes, src=last)

    single = copy.deepcopy(start)
    reference = adam(single)
    for step in range(STEPS):
        reference.zero_grad()
        loss_of(1)(single, step, 0).backward()
        reference.step()
    expected = reference.state_dict()["state"]
    got = boxes[0]["state"]
    assert sorted(got) == sorted(expected)
    for index, entries in expected.items():
        for key, value in entries.items():
            close([got[index][key]], [value])

    again = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.5)
    again.load_state_dict(boxes[0])
    train(model, loss_of(size), rank, again, range(STEPS, STEPS + 2))
    close(model, alone(start, loss_of(size), size, adam, range(STEPS + 2)))
    agree(dist, model)


@pytest.mark.parametrize("hook", [hook_with_zero_step, hook_with_zero_step_interleaved])
def test_overlap_with_ddp(dist: ModuleType, rank: int, size: int, hook: Any) -> None:
    """The optimizer steps in DDP's hook. The first two backwards only learn the buckets."""
    start = seeded(Net, torch.float32)
    loss = loss_of(size, torch.float32)
    model = DDP(copy.deepcopy(start))
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1
    )
    try:
        overlapped = hook(allreduce_hook, model, optimizer)
    except RuntimeError as reason:
        assert "NCCL" in str(reason)
        pytest.skip(f"torch {torch.__version__} has no such overlap but over NCCL")
    model.register_comm_hook(None, overlapped)
    for _ in range(2):
        loss(model, 0, rank).backward()
    model.zero_grad()
    for step in range(STEPS):
        loss(model, step, rank).backward()
        optimizer.step()
        model.zero_grad()
    expected = alone(
        start, loss, size, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), range(STEPS)
    )
    close(model, expected, rtol=1e-4, atol=1e-6)
    agree(dist, model)


def test_a_spoilt_broadcast_is_noticed(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = seeded(Net)
    model = DDP(copy.deepcopy(start))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    loss_of(size)(model, 0, rank).backward()
    with spoilt(monkeypatch, "broadcast", size - 1):
        optimizer.step()
    with pytest.raises(AssertionError, match="other bits on rank"):
        agree(dist, model)
    if rank == size - 1:
        with pytest.raises(AssertionError, match="not close"):
            close(model, alone(start, loss_of(size), size, adam, range(1)))
