"""Samplers and loaders. The loaders' workers are forked or spawned by a rank over MPI."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

# A third rank starts the same workers.
pytestmark = pytest.mark.mpi(ranks=2)


class Squares(Dataset):  # type: ignore[type-arg]
    """Item i is the pair of i and its square."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([index, index * index])


def gathered(dist: ModuleType, size: int, mine: list[int]) -> list[list[int]]:
    every: list[Any] = [None] * size
    dist.all_gather_object(every, mine)
    return every


@pytest.mark.parametrize("drop_last", [False, True])
def test_sampler(dist: ModuleType, rank: int, size: int, drop_last: bool) -> None:
    """Together the ranks see every item, in a different order in every epoch."""
    count = 4 * size + 1
    sampler = DistributedSampler(Squares(count), drop_last=drop_last, seed=3)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(3 + epoch)).tolist()
        length = 4 if drop_last else 5
        order = (order + order)[: length * size]
        every = gathered(dist, size, list(sampler))
        assert every == [order[r::size] for r in range(size)]
        orders.append(order)
    assert orders[0] != orders[1]


@pytest.mark.mpi(timeout=300)
def test_loader_with_workers(dist: ModuleType, rank: int, size: int) -> None:
    """Collectives work while workers prepare the next batches.

    Rank 0's worker is spawned, which is slow because it imports torch. Other ranks fork theirs.
    """
    data = Squares(6 * size)
    loader = DataLoader(
        data,
        batch_size=2,
        sampler=DistributedSampler(data, shuffle=False),
        num_workers=1,
        multiprocessing_context="fork" if rank else "spawn",
        timeout=250,
    )
    total = torch.zeros(2, dtype=torch.int64)
    for step, batch in enumerate(loader):
        first = 2 * step * size
        assert batch[:, 0].tolist() == [first + rank, first + size + rank]
        assert batch[:, 1].tolist() == [(first + rank) ** 2, (first + size + rank) ** 2]
        part = batch.sum(0)
        dist.all_reduce(part)
        total += part
    assert total.tolist() == [sum(range(6 * size)), sum(i * i for i in range(6 * size))]
