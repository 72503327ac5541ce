"""DistributedDataParallel in its modes, against one process that trains on the whole batch."""

from __future__ import annotations

import copy
import json
from types import ModuleType
from typing import Any

import pytest
import torch
from models import (
    FEATURES,
    ROWS,
    STEPS,
    BatchNormed,
    Branches,
    Net,
    Words,
    agree,
    alone,
    batches,
    close,
    loss_of,
    part,
    seeded,
    spoilt,
    train,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

SMALL = 0.0005
"""A bucket's size in MB, so that Net has several."""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": SMALL},
        {"bucket_cap_mb": SMALL, "gradient_as_bucket_view": True},
        {"static_graph": True, "bucket_cap_mb": SMALL},
        {"find_unused_parameters": True},
        {"init_sync": False},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_modes(dist: ModuleType, rank: int, size: int, options: dict[str, Any]) -> None:
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), **options)
    train(model, loss_of(size), rank)
    close(model, alone(start, loss_of(size), size))
    agree(dist, model)
    agree(dist, [p.grad for p in model.parameters()])


def test_buckets_exist(dist: ModuleType, rank: int, size: int) -> None:
    model = DDP(seeded(Net), bucket_cap_mb=SMALL)
    train(model, loss_of(size), rank)
    logged = model._get_ddp_logging_data()
    assert logged["backend_name"] == "mpi"
    assert (logged["world_size"], logged["rank"]) == (size, rank)
    assert logged["module_name"] == "Net"
    sizes = json.loads(f"[{logged['rebuilt_bucket_sizes']}]")
    assert len(sizes) > 2
    assert sum(sizes) == sum(p.numel() * p.element_size() for p in model.parameters())


def test_parameters_come_from_rank_0(dist: ModuleType, rank: int, size: int) -> None:
    torch.manual_seed(rank)
    own = Net().double()
    model = DDP(own)
    if rank == 0:
        torch.manual_seed(0)
        close(model, Net().double())
    agree(dist, model)


@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
def test_unused_parameters(dist: ModuleType, rank: int, size: int, view: bool) -> None:
    """Ranks use different branches. A branch gets the gradients of the ranks that used it."""

    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        x, y = (part(t, rank, size) for t in batches(step))
        # In step 2 no rank uses branch 1.
        return nn.functional.mse_loss(model(x, (step + rank) % 2 if step < 2 else 0), y)

    start = seeded(Branches)
    model = DDP(copy.deepcopy(start), find_unused_parameters=True, gradient_as_bucket_view=view)
    train(model, loss, rank)
    close(model, alone(start, loss, size))
    assert model.module.unused.grad is None
    agree(dist, model)


def test_unused_parameters_are_an_error_without_the_option(dist: ModuleType, rank: int) -> None:
    model = DDP(seeded(Branches))
    x, _ = batches(0)
    model(x, 0).sum().backward()
    with pytest.raises(RuntimeError, match="find_unused_parameters"):
        model(x, 0)


def test_static_graph_with_unused_and_shared_use(dist: ModuleType, rank: int, size: int) -> None:
    """After its first step a static graph knows unused parameters and one that is used twice."""

    class Twice(Branches):
        def forward(self, x: torch.Tensor, branch: int = 1) -> torch.Tensor:
            hidden = torch.tanh(self.stem(x))
            return self.branches[1](hidden) + self.branches[1](hidden * hidden)

    start = seeded(Twice)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=SMALL)
    model._set_static_graph()
    train(model, loss_of(size), rank)
    close(model, alone(start, loss_of(size), size))
    agree(dist, model)


@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
def test_no_sync_accumulates(dist: ModuleType, rank: int, size: int, view: bool) -> None:
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), gradient_as_bucket_view=view, bucket_cap_mb=SMALL)
    with model.no_sync():
        loss_of(size)(model, 0, rank).backward()
        local = [p.grad.clone() for p in model.parameters()]
        loss_of(size)(model, 1, rank).backward()
    mine = copy.deepcopy(start)
    loss_of(size)(mine, 0, rank).backward()
    close(local, [p.grad for p in mine.parameters()])  # nothing was communicated
    loss_of(size)(model, 2, rank).backward()
    whole = copy.deepcopy(start)
    for step in range(3):
        for other in range(size):
            (loss_of(size)(whole, step, other) / size).backward()
    close([p.grad for p in model.parameters()], [p.grad for p in whole.parameters()])
    agree(dist, [p.grad for p in model.parameters()])


def test_buffers_are_rank_0s(dist: ModuleType, rank: int, size: int) -> None:
    """Every forward begins with the buffers of rank 0, which include an integer."""
    start = seeded(BatchNormed)
    model = DDP(copy.deepcopy(start))
    train(model, loss_of(size), rank)

    expected = copy.deepcopy(start)
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1, momentum=0.9)
    buffers: list[list[torch.Tensor]] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        first = [b.clone() for b in expected.buffers()] if not buffers else buffers[0]
        buffers = []
        for other in range(size):
            for buffer, value in zip(expected.buffers(), first, strict=True):
                buffer.copy_(value)
            (loss_of(size)(expected, step, other) / size).backward()
            buffers.append([b.clone() for b in expected.buffers()])
        optimizer.step()
    close(model, expected)
    close(model.buffers(), buffers[rank])
    assert model.module.norm.num_batches_tracked.item() == STEPS
    agree(dist, model)


def test_parameters_of_several_dtypes(dist: ModuleType, rank: int, size: int) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(FEATURES, 8).to(torch.float32)
            self.middle = nn.Linear(8, 8).to(torch.float64)
            self.last = nn.Linear(8, 3).to(torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.tanh(self.first(x.float())).double()
            return self.last(torch.tanh(self.middle(x)).bfloat16()).double()

    torch.manual_seed(7)
    start = Mixed()
    model = DDP(copy.deepcopy(start))
    loss_of(size)(model, 0, rank).backward()
    whole = copy.deepcopy(start)
    loss_of(1)(whole, 0, 0).backward()
    for (name, mine), theirs in zip(
        model.module.named_parameters(), whole.parameters(), strict=True
    ):
        # Gradients of the layers before the bfloat16 layer have its rounding too.
        close([mine.grad], [theirs.grad], rtol=0.05, atol=0.01)
        assert mine.grad.dtype == theirs.grad.dtype == mine.dtype, name
    agree(dist, [p.grad for p in model.parameters()])


def test_autocast(dist: ModuleType, rank: int, size: int) -> None:
    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        x, y = (part(t, rank, size) for t in batches(step, dtype=torch.float32))
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        assert out.dtype == torch.bfloat16
        return nn.functional.mse_loss(out.float(), y)

    start = seeded(Net, torch.float32)
    model = train(DDP(copy.deepcopy(start)), loss, rank)
    close(model, alone(start, loss, size), rtol=1e-5, atol=1e-6)
    agree(dist, model)


def test_checkpointing(dist: ModuleType, rank: int, size: int) -> None:
    """Activations are computed again in the backward, between two all-reduces."""

    class Again(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = checkpoint(lambda x: torch.tanh(self.first(x)), x, use_reentrant=False)
            hidden = checkpoint(lambda x: torch.tanh(self.middle(x)), hidden, use_reentrant=False)
            return self.last(hidden)

    start = seeded(Net)
    again = seeded(Again)
    model = train(DDP(again, bucket_cap_mb=SMALL), loss_of(size), rank)
    close(model, alone(start, loss_of(size), size))
    agree(dist, model)


def test_sparse_gradients(dist: ModuleType, rank: int, size: int) -> None:
    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        words = torch.randint(20, (ROWS,), generator=torch.Generator().manual_seed(step))
        _, y = batches(step)
        return nn.functional.mse_loss(model(part(words, rank, size)), part(y, rank, size))

    start = seeded(lambda: Words(sparse=True))
    model = DDP(copy.deepcopy(start))
    plain = torch.optim.SGD(model.parameters(), lr=0.1)  # momentum takes no sparse gradient
    train(model, loss, rank, plain)
    assert model.module.embedding.weight.grad.is_sparse
    dense = seeded(lambda: Words(sparse=False))
    close(model, alone(dense, loss, size, lambda m: torch.optim.SGD(m.parameters(), lr=0.1)))
    agree(dist, model)


@pytest.mark.mpi(min=3)
def test_on_a_subgroup(dist: ModuleType, rank: int, size: int) -> None:
    """The group is all ranks but the first, so group ranks and global ranks differ."""
    members = list(range(1, size))
    group = dist.new_group(members)
    if rank == 0:
        return
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), process_group=group, bucket_cap_mb=SMALL)
    train(model, loss_of(size - 1), rank - 1)
    close(model, alone(start, loss_of(size - 1), size - 1))
    agree(dist, model, group)
    dist.destroy_process_group(group)


def test_two_models_at_once(dist: ModuleType, rank: int, size: int) -> None:
    """One backward through two models with two groups: their all-reduces interleave."""
    other = dist.new_group(list(range(size)))
    start = seeded(Net)
    one = DDP(copy.deepcopy(start), bucket_cap_mb=SMALL)
    two = DDP(copy.deepcopy(start), process_group=other, bucket_cap_mb=SMALL)
    loss = loss_of(size)
    (loss(one, 0, rank) + loss(two, 1, rank)).backward()
    for model, step in ((one, 0), (two, 1)):
        whole = copy.deepcopy(start)
        loss_of(1)(whole, step, 0).backward()
        close([p.grad for p in model.parameters()], [p.grad for p in whole.parameters()])
    dist.destroy_process_group(other)


def test_another_number_of_parameters(dist: ModuleType, rank: int, size: int) -> None:
    with pytest.raises(RuntimeError, match="DDP expects same model across all ranks"):
        DDP(nn.Linear(3, 3, bias=rank == 0))
    x = torch.ones(1)
    dist.all_reduce(x)  # the group stays usable
    assert x.item() == size


def test_other_shapes(dist: ModuleType, rank: int, size: int) -> None:
    """torch raises on the ranks that differ from rank 0. Rank 0 goes on and gets their mismatch."""
    odd = size - 1
    if rank == odd:
        with pytest.raises(RuntimeError, match="appears not to match sizes"):
            DDP(nn.Linear(3, 4))
        with pytest.raises(RuntimeError, match=r"rank\(s\) .*: broadcast\(float32\[12\]"):
            dist.all_reduce(torch.ones(1))
    else:
        with pytest.raises(RuntimeError, match=rf"rank\(s\) \[{odd}\]: all_reduce\("):
            DDP(nn.Linear(3, 3))
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == size


def test_sync_batch_norm_refuses_the_cpu(dist: ModuleType, rank: int) -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(seeded(BatchNormed))
    with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU modules"):
        DDP(model)
    with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on"):
        model(batches(0)[0])


@pytest.mark.parametrize("culprit", [0, -1], ids=["first", "last"])
def test_a_spoilt_gradient_is_noticed(
    dist: ModuleType,
    rank: int,
    size: int,
    culprit: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The comparisons of these tests tell a wrong all-reduce from a right one."""
    culprit %= size
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=SMALL)
    with spoilt(monkeypatch, "allreduce", culprit):
        train(model, loss_of(size), rank, steps=range(1))
    expected = alone(start, loss_of(size), size, steps=range(1))
    if rank == culprit:
        with pytest.raises(AssertionError, match="not close"):
            close(model, expected)
    else:
        close(model, expected)
    with pytest.raises(AssertionError, match="other bits on rank"):
        agree(dist, model)
