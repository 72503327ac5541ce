"""Ranks that call different things: all of them raise, and the group stays usable."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp, errors
from ranks_tools import raises, works

pytestmark = pytest.mark.mpi(min=2)

Call = Callable[[ModuleType, Any, bool], Any]


def ones(n: int = 4, dtype: Any = np.float32) -> Any:
    return np.ones(n, dtype)


# The functions below return a call: a function of the library, the group, and async_op.


def reduces(n: int = 4, dtype: Any = np.float32, op: Any = ReduceOp.SUM) -> Call:
    return lambda d, g, a: d.all_reduce(ones(n, dtype), op, g, a)


def sends(root: int) -> Call:
    return lambda d, g, a: d.broadcast(ones(), group=g, async_op=a, group_src=root)


def reduces_to(root: int) -> Call:
    return lambda d, g, a: d.reduce(ones(), group=g, async_op=a, group_dst=root)


def gathers(root: int) -> Call:
    def call(d: ModuleType, g: Any, a: bool) -> Any:
        is_root = d.get_rank(g) == root
        outs = [ones() for _ in range(d.get_world_size())] if is_root else None
        return d.gather(ones(), outs, group=g, async_op=a, group_dst=root)

    return call


def lists(n: int) -> Call:
    return lambda d, g, a: d.all_gather(
        [ones(n + i) for i in range(d.get_world_size())], ones(n + d.get_rank(g)), g, a
    )


def joins(n: int) -> Call:
    return lambda d, g, a: d.all_gather_into_tensor(
        ones(n * d.get_world_size()), ones(n), group=g, async_op=a
    )


def parts(*counts: int) -> Call:
    return lambda d, g, a: d.all_reduce_coalesced([ones(n) for n in counts], group=g, async_op=a)


def scatters(n: int) -> Call:
    return lambda d, g, a: d.reduce_scatter_tensor(
        ones(n), ones(n * d.get_world_size()), group=g, async_op=a
    )


def scans(n: int = 4) -> Call:
    return lambda d, g, a: d.scan(ones(n), group=g, async_op=a)


# What most ranks call, and what one rank calls.
CASES: dict[str, tuple[Call, Call]] = {
    "op": (reduces(), lambda d, g, a: d.barrier(g, a)),
    "op with a root": (reduces(), sends(0)),
    "op of the same shape": (reduces(), scans()),
    "exscan": (lambda d, g, a: d.exscan(ones(), group=g, async_op=a), scans()),
    "dtype": (reduces(), reduces(dtype=np.int32)),
    "dtype of another size": (reduces(), reduces(dtype=np.float64)),
    "count": (reduces(4), reduces(5)),
    "nothing": (reduces(4), reduces(0)),
    "reduce op": (reduces(), reduces(op=ReduceOp.MAX)),
    "factor": (reduces(op=ReduceOp.PREMUL_SUM(2.0)), reduces(op=ReduceOp.PREMUL_SUM(3.0))),
    "root of broadcast": (sends(0), sends(1)),
    "root of reduce": (reduces_to(0), reduces_to(1)),
    "root of gather": (gathers(0), gathers(1)),
    "uneven all_gather": (lists(2), lists(3)),
    "count of all_gather": (joins(4), joins(5)),
    "count of scan": (scans(4), scans(3)),
    "counts of coalesced": (parts(4, 2), parts(4, 3)),
    "number of coalesced": (parts(4, 4), parts(4, 4, 4)),
    "parts with the same sum": (parts(2, 4), parts(3, 3)),
    "reduce_scatter": (scatters(2), scatters(3)),
}


def uneven(d: ModuleType, g: Any, a: bool) -> Any:
    """Member 0 sends 3 rows to member 1, which expects 2."""
    size, member = d.get_world_size(), d.get_rank(g)
    give, take = [1] * size, [1] * size
    if member == 0:
        give[1] = 3
    if member == 1:
        take[0] = 2
    return d.all_to_all_single(ones(sum(take)), ones(sum(give)), take, give, g, a)


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("members", ["world", "reversed"])
def test_differing_calls(
    dist: ModuleType, rank: int, size: int, reversed_group: Any, members: str, mode: str
) -> None:
    """In every case one rank makes another call than all other ranks, on the same group."""
    group = None if members == "world" else reversed_group
    ranks = dist.get_process_group_ranks(group)

    def call(what: Call) -> None:
        work = what(dist, group, mode == "async")
        if work is not None:
            work.wait()

    for number, (name, (most, other)) in enumerate(CASES.items()):
        odd = number % size
        print("case", name)
        # With two ranks there is no odd one, so the error names both.
        named = range(size) if size == 2 else [ranks[odd]]
        with raises(errors.MismatchError, "usable", ranks=named, most=10):
            call(other if rank == ranks[odd] else most)
        if number % 4 == 0:
            works(group)
    with raises(errors.MismatchError, "all_to_all", "of the group sends", ranks=ranks[:2]):
        call(uneven)
    works(group)


@pytest.mark.mpi(ranks=2)
def test_sync_and_async_differ(dist: ModuleType, rank: int) -> None:
    """One rank waits inside the call, the other does not. More works are queued behind."""
    good = [np.full(3, rank + 1.0) for _ in range(6)]
    behind = [dist.all_reduce(x, async_op=True) for x in good[:3]]
    if rank == 0:
        with raises(errors.MismatchError, "rank(s) [0]: all_reduce(float64[2], SUM)", "float64[3]"):
            dist.all_reduce(np.ones(2))
    else:
        wrong = dist.all_reduce(np.ones(3), async_op=True)
    behind += [dist.all_reduce(x, async_op=True) for x in good[3:]]
    for work in behind:
        work.wait()
    if rank == 1:
        with raises(errors.MismatchError, ranks=[0, 1]):
            wrong.wait()
    assert all((x == 3).all() for x in good)
    works()
