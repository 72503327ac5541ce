"""Groups other than the default group: members, order, names, deadlines, stores."""

from __future__ import annotations

import inspect
import itertools
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed.distributed_c10d as c10d


@contextmanager
def ended(dist: ModuleType, *groups: Any) -> Iterator[None]:
    yield
    for group in groups:
        if isinstance(group, c10d.ProcessGroup):
            dist.destroy_process_group(group)


def check(dist: ModuleType, group: Any, ranks: list[int]) -> None:
    """Assert that ``group`` has these global ranks in this order and carries collectives."""
    mine = dist.get_rank()
    assert dist.get_process_group_ranks(group) == ranks
    assert dist.get_rank(group) == group.rank() == ranks.index(mine)
    assert dist.get_world_size(group) == group.size() == len(ranks)
    assert dist.get_global_rank(group, len(ranks) - 1) == ranks[-1]
    assert dist.get_group_rank(group, mine) == ranks.index(mine)
    parts = [torch.zeros(2, dtype=torch.int32) for _ in ranks]
    dist.all_gather(parts, torch.tensor([mine, mine * mine], dtype=torch.int32), group=group)
    assert [part.tolist() for part in parts] == [[rank, rank * rank] for rank in ranks]


def info(group: Any) -> dict[str, Any]:
    """Return what the core knows of a group."""
    from paddlempi import _native

    return _native.control("group_info", group=group._gid)


def test_any_ranks_in_any_order(dist: ModuleType, rank: int, size: int) -> None:
    for count in range(1, size + 1):
        for ranks in itertools.permutations(range(size), count):
            group = dist.new_group(list(ranks))
            if rank in ranks:
                check(dist, group, sorted(ranks))
                assert info(group)["ranks"] == sorted(ranks)
            else:
                assert group is dist.GroupMember.NON_GROUP_MEMBER
                assert dist.get_rank(group) == -1
            with ended(dist, group):
                pass


@pytest.mark.skipif(
    "sort_ranks" not in inspect.signature(c10d.new_group).parameters,
    reason=f"torch {torch.__version__} has no new_group(sort_ranks=)",
)
def test_ranks_in_the_order_given(dist: ModuleType, rank: int, size: int) -> None:
    ranks = [*range(1, size), 0]
    for local in (False, True):
        group = dist.new_group(ranks, sort_ranks=False, use_local_synchronization=local)
        with ended(dist, group):
            check(dist, group, ranks)
            assert info(group)["ranks"] == ranks


def test_groups_that_overlap(dist: ModuleType, rank: int, size: int) -> None:
    pairs = list(itertools.combinations(range(size), 2))
    groups = [dist.new_group(pair) for pair in pairs]
    mine = [(pair, group) for pair, group in zip(pairs, groups, strict=True) if rank in pair]
    x = {pair: torch.tensor([float(rank)]) for pair, _ in mine}
    works = [dist.all_reduce(x[pair], group=group, async_op=True) for pair, group in mine]
    for work in works:
        work.wait()
    assert {pair: value.item() for pair, value in x.items()} == {
        pair: float(sum(pair)) for pair, _ in mine
    }
    with ended(dist, *groups):
        pass


def test_non_members_do_not_wait(dist: ModuleType, rank: int, size: int) -> None:
    # Rank 0 makes the group only after the other ranks, which are no members, have returned.
    store = c10d._get_default_store()
    if rank:
        assert dist.new_group([0]) is dist.GroupMember.NON_GROUP_MEMBER
        store.add("non-members went on", 1)
        return
    while store.add("non-members went on", 0) < size - 1:
        time.sleep(0.01)
    store.delete_key("non-members went on")
    group = dist.new_group([0])
    with ended(dist, group):
        check(dist, group, [0])


def test_members_alone(dist: ModuleType, rank: int, size: int) -> None:
    """With ``use_local_synchronization`` only members have to call new_group."""
    other = dist.new_group([rank], use_local_synchronization=True)  # a group on this rank only
    if rank == size - 1:
        dist.destroy_process_group(dist.new_group([rank], use_local_synchronization=True))
    ranks = list(range(1, size)) or [0]
    if rank in ranks:
        groups = [dist.new_group(ranks[::-1], use_local_synchronization=True) for _ in range(2)]
        for group in groups:
            check(dist, group, ranks)
        names = [group.group_name for group in groups]
        assert len(set(names)) == 2
        told: list[Any] = [None] * len(ranks)
        dist.all_gather_object(told, names, group=groups[0])
        assert told == [names] * len(ranks), "the same names on all members"
        with ended(dist, *groups):
            pass
    if rank not in ranks:
        outside = [
            dist.new_group(ranks, backend=backend, use_local_synchronization=True)
            for backend in ("mpi", "gloo")
        ]
        assert outside[0] is outside[1], "as with torch's own backends"
    with ended(dist, other):
        check(dist, other, [rank])
    for wrong in ([0, size], [-1], [rank, rank]):
        with pytest.raises(ValueError, match="new_group"):
            dist.new_group(wrong, use_local_synchronization=True)


def test_subgroups(dist: ModuleType, rank: int, size: int) -> None:
    mine, groups = dist.new_subgroups(1)
    with ended(dist, mine):
        assert len(groups) == size
        check(dist, mine, [rank])
    with pytest.raises(ValueError, match="must not exceed the world size"):
        dist.new_subgroups(size + 1)
    lists = [list(range(0, size, 2)), list(range(1, size, 2))]
    mine, groups = dist.new_subgroups_by_enumeration(lists)
    with ended(dist, mine):
        check(dist, mine, lists[rank % 2])
        assert groups[rank % 2] is mine


NEWER_SPLIT = "backend" in inspect.signature(c10d.split_group).parameters


def test_split(dist: ModuleType, rank: int, size: int) -> None:
    # The last rank is in no split. The others are listed in reverse order.
    splits = [list(range(size - 2, -1, -1))]
    group = dist.split_group(split_ranks=splits, timeout=timedelta(seconds=77), group_desc="half")
    if rank == size - 1:
        assert group is (dist.GroupMember.NON_GROUP_MEMBER if NEWER_SPLIT else None)
    else:
        with ended(dist, group):
            check(dist, group, splits[0] if NEWER_SPLIT else sorted(splits[0]))
            assert group.group_desc == "half"
            assert info(group)["timeout"] == 77.0
            assert dist.get_backend(group) == "mpi"
    # Splits of one rank each, of a group that is not the default group.
    parent = dist.new_group(list(range(size)))
    singles = dist.split_group(parent, [[r] for r in range(size)])
    assert singles.group_desc == f"{parent.group_desc}:split:0"
    again = dist.split_group(parent, [[r] for r in range(size)])
    assert again.group_name != singles.group_name
    with ended(dist, singles, again, parent):
        check(dist, singles, [rank])
        check(dist, again, [rank])


def test_split_of_a_group_whose_ranks_are_not_those_of_the_world(
    dist: ModuleType, rank: int, size: int
) -> None:
    parent = dist.new_group(list(range(1, size)))
    if not rank:
        return
    group = dist.split_group(parent, [list(range(size - 1))])
    with ended(dist, group, parent):
        check(dist, group, list(range(1, size)))


@pytest.mark.parametrize(
    ("splits", "words"),
    [
        (None, "split_ranks"),
        ([], "split_ranks"),
        ([[]], "empty"),
        ([[0, 0]], "duplicate"),
        ([[99]], "99"),
        ([[-1]], "-1"),
    ],
)
def test_split_refuses(dist: ModuleType, splits: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dist.split_group(split_ranks=splits)


@pytest.mark.skipif(
    not NEWER_SPLIT, reason=f"torch {torch.__version__} has no split_group(backend=)"
)
def test_split_keeps_a_part_of_the_backends(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.split_group(split_ranks=[list(range(size))], backend="cpu:mpi")
    with ended(dist, group):
        assert dist.get_backend_config(group) == "cpu:mpi"
        check(dist, group, list(range(size)))
    for wrong in ("gloo", "cpu:gloo", "cpu:mpi,xpu:mpi"):
        with pytest.raises(ValueError, match="not part of"):
            dist.split_group(split_ranks=[[0]], backend=wrong)


def test_names_and_descriptions(dist: ModuleType, rank: int, size: int) -> None:
    assert dist.group.WORLD.group_desc == "default_pg"
    assert dist.group.WORLD.group_name == "0"
    group = dist.new_group(group_desc="of a test")
    with ended(dist, group):
        assert group.group_desc == "of a test"
        assert c10d._get_process_group_name(group) == group.group_name
        told: list[Any] = [None] * size
        dist.all_gather_object(told, group.group_name)
        assert told == [group.group_name] * size
        assert c10d._world.pg_map[group][0] == "mpi"
        assert c10d._resolve_process_group(group.group_name) is group
        assert dist.get_backend(group) == "mpi"
        assert dist.get_backend_config(group) == "cpu:mpi,cuda:mpi"
        assert group._get_backend(torch.device("cpu")) is group
        if hasattr(c10d, "get_backend_impl"):
            assert c10d.get_backend_impl(group=group) is not None
    assert group not in c10d._world.pg_map


def test_deadlines_reach_the_core(dist: ModuleType) -> None:
    assert info(dist.group.WORLD)["timeout"] == 1800.0
    for local in (False, True):
        group = dist.new_group(
            timeout=timedelta(seconds=12, milliseconds=500), use_local_synchronization=local
        )
        with ended(dist, group):
            assert info(group)["timeout"] == 12.5
    for wrong in (5, "soon"):
        with pytest.raises(TypeError, match="timeout"):
            dist.new_group(timeout=wrong)


def test_store(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group()
    with ended(dist, group):
        for store in (c10d._get_default_store(), group.get_group_store()):
            store.set(f"from {rank}", str(rank))
            store.wait([f"from {r}" for r in range(size)], timedelta(seconds=30))
            assert [store.get(f"from {r}") for r in range(size)] == [
                str(r).encode() for r in range(size)
            ]
            store.add("sum", rank + 1)
            dist.barrier()
            assert store.add("sum", 0) == size * (size + 1) // 2
            dist.barrier()
            won = store.compare_set("first", "", str(rank)).decode()
            told: list[Any] = [None] * size
            dist.all_gather_object(told, won)
            assert len(set(told)) == 1
            assert told[0] in map(str, range(size))
        # The two stores do not share keys.
        group.get_group_store().set("of the group", "1")
        dist.barrier()
        assert not c10d._get_default_store().check(["of the group"])


def test_the_variables_tell_the_store(dist: ModuleType, rank: int, size: int) -> None:
    client = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False
    )
    key = f"default_pg by variables {rank}"
    client.set(key, "x")
    told: list[Any] = [None] * size
    dist.all_gather_object(told, client.get(f"default_pg by variables {(rank + 1) % size}"))
    assert told == [b"x"] * size
    dist.barrier()
    assert client.delete_key(key)
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == (str(rank), str(size))


def test_monitored_barrier(dist: ModuleType, rank: int) -> None:
    for group in (None, dist.group.WORLD):
        dist.monitored_barrier(group)
        dist.monitored_barrier(group, timeout=timedelta(seconds=20), wait_all_ranks=True)
    alone = dist.new_group([0])
    if rank:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            dist.monitored_barrier(alone)
        assert any("does not belong to" in str(warning.message) for warning in caught)
    else:
        with ended(dist, alone):
            dist.monitored_barrier(alone)


def test_one_member_may_destroy_a_group_alone(dist: ModuleType, rank: int) -> None:
    group = dist.new_group()
    if rank == 0:
        dist.destroy_process_group(group)
    dist.barrier()
    if rank:
        dist.destroy_process_group(group)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == dist.get_world_size()
    with pytest.raises(ValueError, match="Invalid process group"):
        dist.destroy_process_group(group)


@pytest.mark.skipif(
    not hasattr(c10d, "shrink_group"), reason=f"torch {torch.__version__} has no shrink_group"
)
def test_shrink_is_refused(dist: ModuleType, size: int) -> None:
    with pytest.raises(TypeError, match="does not support shrinking"):
        dist.shrink_group([size - 1])
    dist.barrier()


def test_the_default_group_twice(dist: ModuleType) -> None:
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group("mpi")
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group("cpu:mpi")
