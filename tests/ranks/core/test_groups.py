"""Groups: overlapping, of one rank, in any order, destroyed; init after destroy."""

from __future__ import annotations

import itertools
from datetime import timedelta
from types import ModuleType
from typing import Any

import numpy as np
import pytest


def total(dist: ModuleType, value: int, group: object = None) -> int:
    tensor = np.array([value])
    dist.all_reduce(tensor, group=group)
    return int(tensor[0])


def test_who_am_i(dist: ModuleType, rank: int, size: int) -> None:
    assert dist.get_process_group_ranks() == list(range(size))
    assert dist.get_rank(dist.group.WORLD) == rank
    assert dist.get_world_size(dist.group.WORLD) == size
    assert 0 <= dist.get_local_rank() < dist.get_local_size() <= size
    context = dist.get_context()
    assert (context.root_rank, context.rank, context.size) == (0, rank, size)
    assert context.local_rank == dist.get_local_rank()
    assert context.local_size == dist.get_local_size()


def test_every_subset(dist: ModuleType, rank: int, size: int) -> None:
    groups = {}
    for length in range(1, size + 1):
        for members in itertools.permutations(range(size), length):
            if length > 2 and members != tuple(sorted(members, reverse=True)):
                continue
            groups[members] = dist.new_group(list(members))
    for members, group in groups.items():
        if rank not in members:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
            continue
        assert dist.get_rank(group) == members.index(rank)
        assert dist.get_process_group_ranks(group) == list(members)
        assert total(dist, 1 << rank, group) == sum(1 << member for member in members)
        order = np.zeros(len(members), int)
        dist.all_gather_into_tensor(order, np.array([rank]), group)
        assert order.tolist() == list(members)
    for members, group in groups.items():
        if rank in members:
            dist.destroy_process_group(group)


def test_a_non_member_is_warned(dist: ModuleType, rank: int) -> None:
    group = dist.new_group([0])
    if rank == 0:
        assert total(dist, 5, group) == 5
    else:
        with pytest.warns(UserWarning, match="does not belong"):
            assert dist.all_reduce(np.zeros(1), group=group) is None


def test_the_end_of_a_group(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group()
    assert total(dist, 1, group) == size
    dist.destroy_process_group(group)
    with pytest.raises(dist.errors.GroupDestroyedError):
        dist.all_reduce(np.zeros(1), group=group)
    with pytest.raises(dist.errors.GroupDestroyedError):
        dist.destroy_process_group(group)
    assert total(dist, 1) == size


def test_many_groups_at_once(dist: ModuleType, rank: int, size: int) -> None:
    groups = [dist.new_group() for _ in range(300)]
    assert [total(dist, 1, group) for group in groups] == [size] * 300
    for group in groups:
        dist.destroy_process_group(group)


def test_subgroups(dist: ModuleType, rank: int, size: int) -> None:
    for group_size in range(1, size + 1):
        if size % group_size:
            continue
        mine, all_of_them = dist.new_subgroups(group_size)
        first = rank // group_size * group_size
        assert dist.get_process_group_ranks(mine) == list(range(first, first + group_size))
        assert len(all_of_them) == size // group_size
        assert total(dist, 1, mine) == group_size
    inner, _ = dist.new_subgroups(1, mine)
    assert dist.get_process_group_ranks(inner) == [rank]


def test_split(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.split_group(rank % 2, -rank)
    assert dist.get_process_group_ranks(group) == sorted(
        (r for r in range(size) if r % 2 == rank % 2), reverse=True
    )
    assert total(dist, 1, group) == dist.get_world_size(group)
    inner = dist.split_group(None if dist.get_rank(group) else 1, 0, group)
    if dist.get_rank(group):
        assert inner is dist.GroupMember.NON_GROUP_MEMBER
    else:
        assert dist.get_process_group_ranks(inner) == [rank]


def test_groups_overlap_in_flight(dist: ModuleType, rank: int, size: int) -> None:
    everyone, pair = dist.new_group(), dist.new_group(range(min(2, size)))
    tensors = [np.full(100, rank + 1), np.full(100, rank + 1)]
    works = [dist.all_reduce(tensors[0], group=everyone, async_op=True)]
    if rank < 2:
        works.append(dist.all_reduce(tensors[1], group=pair, async_op=True))
    for work in reversed(works):
        work.wait()
    assert tensors[0][0] == size * (size + 1) // 2
    if rank < 2:
        assert tensors[1][0] == sum(range(1, min(2, size) + 1))


@pytest.mark.parametrize("ranks", [[], [0, 0], [99], [-1]])
def test_wrong_ranks(dist: ModuleType, size: int, ranks: list[int]) -> None:
    with pytest.raises(dist.errors.ArgumentError):
        dist.new_group(ranks)
    assert total(dist, 1) == size


def test_init_after_destroy(dist: ModuleType, rank: int, size: int) -> None:
    for _ in range(3):
        stale = dist.new_group()
        dist.destroy_process_group()
        assert not dist.is_initialized()
        with pytest.raises(dist.errors.NotInitializedError):
            dist.all_reduce(np.zeros(1))
        with pytest.raises(dist.errors.NotInitializedError):
            dist.all_reduce(np.zeros(1), group=stale)
        dist.init_process_group()
        assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
        assert total(dist, 1) == size
    with pytest.raises(dist.errors.AlreadyInitializedError):
        dist.init_process_group()


def test_groups_of_one_keep_their_messages_apart(dist: ModuleType, rank: int) -> None:
    first, second = dist.new_group([rank]), dist.new_group([rank])
    for value, group in enumerate((first, second)):
        dist.isend(np.full(3, value), rank, group=group)
    for value, group in reversed(list(enumerate((first, second)))):
        tensor = np.full(3, 9)
        assert dist.recv(tensor, rank, group=group) == rank
        assert (tensor == value).all()
    dist.isend(np.ones(1), rank, group=first, tag=7)
    with pytest.raises(dist.errors.TimeoutError):
        lonely = dist.new_group([rank], timeout=0.2)
        dist.probe(tag=7, group=lonely)
    assert dist.recv(np.zeros(1), group=first, tag=7) == rank
    for group in (first, second):
        dist.destroy_process_group(group)


@pytest.mark.parametrize("forever", [timedelta.max, float("inf"), 1e300, 1e12])
def test_a_deadline_that_never_comes(dist: ModuleType, size: int, forever: Any) -> None:
    group = dist.new_group(timeout=forever)
    assert total(dist, 1, group) == size
    work = dist.all_reduce(np.ones(2), group=group, async_op=True)
    assert work.wait(forever)
    dist.monitored_barrier(group, timeout=forever)
    dist.destroy_process_group(group)
    dist.destroy_process_group()
    dist.init_process_group(timeout=forever)
    assert total(dist, 1) == size
    dist.destroy_process_group()
    dist.init_process_group()
