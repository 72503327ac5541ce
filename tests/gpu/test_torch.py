"""Torch tensors on the GPU: the values of operations, through both fronts."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

# Numbers of elements: one, a few, and more than one piece of a staged transfer.
COUNTS = (1, 1001, (6 << 20) + 3)


def whole(torch: Any, count: int, rank: int, dtype: Any) -> Any:
    """Small whole numbers on the host, different on every rank. No dtype rounds them."""
    return ((torch.arange(count) + rank) % 5).to(dtype)


def same(torch: Any, got: Any, wanted: Any) -> None:
    assert got.is_cuda
    assert torch.equal(got.cpu(), wanted)


def test_the_first_program(tdist: ModuleType, torch: Any, rank: int, size: int) -> None:
    t = torch.zeros(5, 5).fill_(tdist.get_rank()).cuda()
    tdist.all_reduce(t)
    same(torch, t, torch.full((5, 5), float(sum(range(size)))))


@pytest.mark.parametrize("front", ["paddlempi", "torch", "operator"])
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "int64", "uint8"])
def test_all_reduce(
    dist: ModuleType,
    tdist: ModuleType,
    torch: Any,
    rank: int,
    size: int,
    dtype: str,
    count: int,
    front: str,
) -> None:
    kind = getattr(torch, dtype)
    t = whole(torch, count, rank, kind).cuda()
    if front == "operator":
        torch.ops.paddlempi.all_reduce_(t, tdist.group.WORLD.group_name)
    else:
        (dist if front == "paddlempi" else tdist).all_reduce(t)
    same(torch, t, sum(whole(torch, count, r, torch.int64) for r in range(size)).to(kind))


def test_bfloat16_is_rounded_once(dist: ModuleType, torch: Any, rank: int, size: int) -> None:
    parts = [
        torch.randn(4097, generator=torch.Generator().manual_seed(r)).bfloat16()
        for r in range(size)
    ]
    t = parts[rank].cuda()
    dist.all_reduce(t)
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    same(torch, t, total.bfloat16())


@pytest.mark.parametrize("count", COUNTS)
def test_moving(tdist: ModuleType, torch: Any, rank: int, size: int, count: int) -> None:
    parts = [whole(torch, count, r, torch.float32) for r in range(size)]
    mine = parts[rank].cuda()

    given = mine.clone()
    tdist.broadcast(given, size - 1)
    same(torch, given, parts[-1])

    gathered = torch.empty(size * count, device="cuda")
    tdist.all_gather_into_tensor(gathered, mine)
    same(torch, gathered, torch.cat(parts))

    scattered = torch.empty(count, device="cuda")
    tdist.reduce_scatter_tensor(scattered, gathered * (rank + 1))
    same(torch, scattered, parts[rank] * sum(range(1, size + 1)))

    sent = torch.cat([mine + 10 * other for other in range(size)])
    taken = torch.empty_like(sent)
    tdist.all_to_all_single(taken, sent)
    same(torch, taken, torch.cat([part + 10 * rank for part in parts]))


@pytest.mark.parametrize("count", COUNTS)
def test_ring(tdist: ModuleType, torch: Any, rank: int, size: int, count: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    taken = torch.empty(count, device="cuda")
    work = tdist.irecv(taken, before)
    tdist.isend(whole(torch, count, rank, torch.float32).cuda(), after).wait()
    work.wait()
    same(torch, taken, whole(torch, count, before, torch.float32))


def test_not_contiguous(dist: ModuleType, torch: Any, rank: int, size: int) -> None:
    memory = torch.full((301, 203), -1.0, device="cuda")
    view = memory[::3, 1::2].t()
    view.copy_(torch.full(view.shape, rank + 1.0))
    dist.all_reduce(view)
    same(torch, view, torch.full(view.shape, size * (size + 1) / 2))
    view.fill_(-1)
    same(torch, memory, torch.full((301, 203), -1.0))  # the gaps are untouched


@pytest.mark.mpi(min=2)
def test_beside_host_tensors(dist: ModuleType, torch: Any, rank: int, size: int) -> None:
    t = torch.full((100_003,), rank + 1.0)
    t = t.cuda() if rank % 2 else t
    dist.all_reduce(t)
    assert torch.equal(t.cpu(), torch.full((100_003,), size * (size + 1) / 2))


def test_pinned_is_host_memory(dist: ModuleType, torch: Any, rank: int, size: int) -> None:
    t = torch.full((1001,), rank + 1.0).pin_memory()
    dist.all_reduce(t)
    assert torch.equal(t, torch.full((1001,), size * (size + 1) / 2))


def test_ddp(tdist: ModuleType, torch: Any, rank: int, size: int) -> None:
    """After one step the gradients are those of one process with the data of all ranks."""

    def model() -> Any:
        torch.manual_seed(0)
        layers = torch.nn.Sequential(
            torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)
        )
        return layers.cuda()

    def backward(net: Any, of: int) -> None:
        data = torch.randn(32, 64, generator=torch.Generator().manual_seed(of)).cuda()
        net(data).square().mean().backward()

    parallel = torch.nn.parallel.DistributedDataParallel(model())
    backward(parallel, rank)
    alone = model()
    for other in range(size):
        backward(alone, other)
    for got, wanted in zip(parallel.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(got.grad, wanted.grad / size, rtol=1e-4, atol=1e-6)
