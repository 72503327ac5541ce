"""rank_list on every collective, and get_context, Connector and get_communicator."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest


def halves(size: int) -> list[list[int]]:
    """Two lists of ranks, the second in reverse. Of more than 3 ranks the last is in neither."""
    ranks = list(range(size - 1 if size > 3 else size))
    return [ranks[: len(ranks) // 2], ranks[len(ranks) // 2 :][::-1]]


def mine(rank_list: list[list[int]], rank: int) -> list[int]:
    return next((ranks for ranks in rank_list if rank in ranks), [rank])


def test_collectives(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    lists = halves(size)
    ranks = mine(lists, rank)
    n, me = len(ranks), ranks.index(rank)

    def full(value: float, count: int = 2) -> Any:
        return np.full(count, float(value))

    x = full(rank + 1)
    run(dist.all_reduce, x, rank_list=lists)
    assert (x == sum(r + 1 for r in ranks)).all()
    xs = [full(rank), full(2.0 * rank)]
    run(dist.all_reduce_coalesced, xs, rank_list=lists)
    assert (xs[1] == 2 * sum(ranks)).all()
    x = full(rank)
    run(dist.reduce, x, ranks[-1], rank_list=lists)
    assert (x == (sum(ranks) if rank == ranks[-1] else rank)).all()
    x = full(rank)
    run(dist.broadcast, x, ranks[-1], rank_list=lists)
    assert (x == ranks[-1]).all()
    x = full(rank)
    run(dist.scan, x, rank_list=lists)
    assert (x == sum(ranks[: me + 1])).all()
    x = full(rank)
    run(dist.exscan, x, rank_list=lists)
    assert (x == (sum(ranks[:me]) if me else rank)).all()
    found = [full(-1) for _ in ranks]
    run(dist.all_gather, found, full(rank), rank_list=lists)
    assert [one[0] for one in found] == ranks
    whole = full(-1, 2 * n)
    run(dist.all_gather_into_tensor, whole, full(rank), rank_list=lists)
    assert whole.tolist() == [r for r in ranks for _ in range(2)]
    found = [full(-1) for _ in ranks]
    run(dist.gather, full(rank), found if me == 0 else None, ranks[0], rank_list=lists)
    assert me or [one[0] for one in found] == ranks
    x = full(-1)
    parts = [full(10 * r) for r in ranks] if me == 0 else None
    run(dist.scatter, x, parts, ranks[0], rank_list=lists)
    assert (x == 10 * rank).all()
    x = full(-1)
    run(dist.reduce_scatter, x, [full(r) for r in ranks], rank_list=lists)
    assert (x == n * rank).all()
    x = full(-1)
    run(dist.reduce_scatter_tensor, x, np.repeat(np.array(ranks, float), 2), rank_list=lists)
    assert (x == n * rank).all()
    found = [full(-1) for _ in ranks]
    run(dist.all_to_all, found, [full(100 * rank + r) for r in ranks], rank_list=lists)
    assert [one[0] for one in found] == [100 * r + rank for r in ranks]
    x = full(-1, n)
    run(dist.all_to_all_single, x, np.array([100.0 * rank + r for r in ranks]), rank_list=lists)
    assert x.tolist() == [100 * r + rank for r in ranks]
    run(dist.barrier, rank_list=lists)


def test_functional(dist: ModuleType, rank: int, size: int) -> None:
    lists = halves(size)
    given = np.full(3, rank + 1.0)
    made = dist.allreduce(given, rank_list=lists)
    assert (made == sum(r + 1 for r in mine(lists, rank))).all()
    assert (given == rank + 1).all()
    (made,) = dist.allreduce([given], "max")
    assert (made == size).all()


def test_wrong_lists(dist: ModuleType, size: int) -> None:
    x = np.ones(2)
    for lists, words in (
        ([[0], [0]], "twice"),
        ([[size]], "out of range"),
        ([[-1]], "out of range"),
    ):
        with pytest.raises(ValueError, match=words):
            dist.all_reduce(x, rank_list=lists)
    with pytest.raises(TypeError, match="rank_list"):
        dist.all_reduce(x, rank_list=[0])
    with pytest.raises(ValueError, match="both"):
        dist.all_reduce(x, group=dist.group.WORLD, rank_list=[[0]])
    dist.all_reduce(x)
    assert (x == size).all()


def test_communicators(dist: ModuleType, rank: int, size: int) -> None:
    whole = dist.get_communicator()
    assert (whole.rank, whole.size, whole.world_rank, whole.world_size) == (rank, size) * 2
    assert (whole.group_id, whole.group_size, whole.root_rank) == (0, 1, 0)
    assert (whole.local_rank, whole.local_size) == (dist.get_local_rank(), dist.get_local_size())
    lists = halves(size)
    part = dist.get_communicator(lists)
    ranks = mine(lists, rank)
    assert (part.rank, part.size) == (ranks.index(rank), len(ranks))
    assert (part.world_rank, part.world_size) == (rank, size)
    assert part.group_id == next((i for i, one in enumerate(lists) if rank in one), 2)
    assert part.group_size == (3 if size > 3 else 2)
    x = np.full(2, float(rank))
    dist.all_reduce(x, group=part.group)
    assert (x == sum(ranks)).all()
    assert "group_id" in repr(part)


def test_connector(dist: ModuleType, rank: int, size: int) -> None:
    connector = dist.Connector()
    assert (connector.rank, connector.size) == (rank, size)
    assert (connector.local_rank, connector.local_size) == (
        dist.get_local_rank(),
        dist.get_local_size(),
    )
    connector.Barrier()
    x = np.full(2, float(rank))
    connector.Broadcast(x, size - 1)
    assert (x == size - 1).all()


def test_settings_are_checked(dist: ModuleType) -> None:
    context = dist.get_context()
    assert context.enable_data_parallel is False and context.zero_opt_level == 0
    for name, value, kind in (
        ("enable_data_parallel", 1, TypeError),
        ("zero_opt_level", 3, ValueError),
        ("group_bucket_size", 0, ValueError),
        ("group_bucket_size", "1M", ValueError),
    ):
        with pytest.raises(kind, match=name):
            setattr(context, name, value)
