"""paddle.distributed's calls over MPI: the values for every dtype, op, group and mode."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import pytest
from values import DTYPES, defined, equal, reduced, tensor, values

SHAPES: list[tuple[int, ...]] = [(5,), (2, 3), ()]


class Members:
    """A group, its ranks, and this process's rank in it (-1 if it is no member)."""

    def __init__(self, group: Any, ranks: list[int], rank: int) -> None:
        self.group, self.ranks, self.size = group, ranks, len(ranks)
        self.me = ranks.index(rank) if rank in ranks else -1


@pytest.fixture(scope="module", params=["world", "part"])
def members(request: pytest.FixtureRequest, dist: ModuleType, mpi_world: Any) -> Iterator[Members]:
    """The default group, and a group of all ranks but the first (of both, if there are two)."""
    world = list(range(mpi_world.size))
    if request.param == "world":
        yield Members(None, world, mpi_world.rank)
        return
    ranks = world[1:] if len(world) > 2 else world
    group = dist.new_group(ranks)
    yield Members(group, ranks, mpi_world.rank)
    dist.destroy_process_group(group)


@pytest.fixture(params=["sync", "async", "stream"])
def how(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def call(dist: ModuleType, how: str, name: str, *arguments: Any, **named: Any) -> None:
    """Call a function in one of Paddle's three ways."""
    if how == "stream":
        getattr(dist.stream, name)(*arguments, use_calc_stream=True, **named)
    elif how == "sync":
        getattr(dist, name)(*arguments, **named)
    else:
        task = getattr(dist, name)(*arguments, sync_op=False, **named)
        task.wait()
        assert task.is_completed()


def test_all_reduce(dist: ModuleType, members: Members, how: str) -> None:
    if members.me < 0:
        return
    for dtype, op, shape in itertools.product(DTYPES, ("SUM", "MAX", "MIN", "PROD", "AVG"), SHAPES):
        if not defined(op, dtype):
            continue
        x = tensor(values(members.me, shape, dtype), dtype)
        call(dist, how, "all_reduce", x, getattr(dist.ReduceOp, op), group=members.group)
        wanted = reduced(op, [values(r, shape, dtype) for r in range(members.size)], dtype)
        equal(x, wanted, (dtype, op, shape), mean=op == "AVG")


def test_undefined_reductions_are_refused_everywhere(dist: ModuleType, members: Members) -> None:
    if members.me < 0:
        return
    for dtype, op in (("bool", "AVG"), ("complex64", "MAX")):
        x = tensor(values(members.me, (3,), dtype), dtype)
        with pytest.raises(TypeError, match=op):
            dist.all_reduce(x, getattr(dist.ReduceOp, op), group=members.group)
    x = paddle.ones([2])
    dist.all_reduce(x, group=members.group)
    assert x.tolist() == [members.size] * 2


def test_reduce(dist: ModuleType, members: Members, how: str) -> None:
    if members.me < 0:
        return
    for dtype, root in itertools.product(DTYPES, range(members.size)):
        mine = values(members.me, (2, 3), dtype)
        x = tensor(mine, dtype)
        call(dist, how, "reduce", x, members.ranks[root], group=members.group)
        parts = [values(r, (2, 3), dtype) for r in range(members.size)]
        equal(x, reduced("SUM", parts, dtype) if members.me == root else mine, (dtype, root))


def test_broadcast(dist: ModuleType, members: Members, how: str) -> None:
    if members.me < 0:
        return
    for dtype, root, shape in itertools.product(DTYPES, range(members.size), SHAPES):
        x = tensor(values(members.me, shape, dtype), dtype)
        call(dist, how, "broadcast", x, members.ranks[root], group=members.group)
        equal(x, values(root, shape, dtype), (dtype, root, shape))


def test_all_gather(dist: ModuleType, members: Members, how: str) -> None:
    if members.me < 0:
        return
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        found: list[Any] = []
        x = tensor(values(members.me, shape, dtype), dtype)
        if how == "async":
            dist.stream.all_gather(found, x, group=members.group, sync_op=False).wait()
        elif how == "sync":
            dist.all_gather(found, x, group=members.group)
        else:
            dist.stream.all_gather(found, x, group=members.group, use_calc_stream=True)
        assert len(found) == members.size
        for r, one in enumerate(found):
            equal(one, values(r, shape, dtype), (dtype, shape, r))
        if not shape:
            continue
        whole = paddle.zeros([members.size * shape[0], *shape[1:]]).astype(dtype)
        dist.stream.all_gather(whole, x, group=members.group)
        equal(whole, np.concatenate([values(r, shape, dtype) for r in range(members.size)]))


def test_reduce_scatter(dist: ModuleType, members: Members, how: str) -> None:
    if members.me < 0:
        return
    for dtype, op in itertools.product(DTYPES, ("SUM", "MAX", "AVG")):
        if not defined(op, dtype):
            continue
        me, n, code = members.me, members.size, getattr(dist.ReduceOp, op)
        parts = [tensor(values(me + 7 * i, (4,), dtype), dtype) for i in range(n)]
        out = paddle.zeros([4]).astype(dtype)
        call(dist, how, "reduce_scatter", out, parts, code, group=members.group)
        lots = [values(r + 7 * me, (4,), dtype) for r in range(n)]
        wanted = reduced(op, lots, dtype)
        equal(out, wanted, (dtype, op), mean=op == "AVG")
        out = paddle.zeros([4]).astype(dtype)
        dist.stream.reduce_scatter(out, paddle.concat(parts), code, group=members.group)
        equal(out, wanted, (dtype, op), mean=op == "AVG")


def test_scatter(dist: ModuleType, members: Members, how: str) -> None:
    if members.me < 0:
        return
    for dtype, root in itertools.product(DTYPES, range(members.size)):
        parts = None
        if members.me == root:
            parts = [tensor(values(root + i, (3,), dtype), dtype) for i in range(members.size)]
        out = paddle.zeros([3]).astype(dtype)
        call(dist, how, "scatter", out, parts, members.ranks[root], group=members.group)
        equal(out, values(root + members.me, (3,), dtype), (dtype, root))


def test_gather(dist: ModuleType, members: Members) -> None:
    if members.me < 0:
        return
    for dtype, root in itertools.product(DTYPES, range(members.size)):
        found: list[Any] = []
        x = tensor(values(members.me, (3,), dtype), dtype)
        dist.gather(x, found, members.ranks[root], group=members.group)
        if members.me == root:
            for r, one in enumerate(found):
                equal(one, values(r, (3,), dtype), (dtype, root))


def test_alltoall(dist: ModuleType, members: Members, how: str) -> None:
    if members.me < 0:
        return
    n, me = members.size, members.me
    for dtype in DTYPES:
        parts = [tensor(values(me * n + i, (3,), dtype), dtype) for i in range(n)]
        found: list[Any] = []
        call(dist, how, "alltoall", found, parts, group=members.group)
        for r, one in enumerate(found):
            equal(one, values(r * n + me, (3,), dtype), (dtype, r))


def test_alltoall_single(dist: ModuleType, members: Members) -> None:
    if members.me < 0:
        return
    n, me = members.size, members.me
    for dtype in DTYPES:
        # Rank r sends i + 1 rows to member i, so every member receives me + 1 rows from each rank.
        rows = n * (n + 1) // 2
        x = tensor(values(me, (rows, 2), dtype), dtype)
        out = paddle.zeros([n * (me + 1), 2]).astype(dtype)
        dist.alltoall_single(out, x, [i + 1 for i in range(n)], [me + 1] * n, group=members.group)
        begin = me * (me + 1) // 2
        wanted = [values(r, (rows, 2), dtype)[begin : begin + me + 1] for r in range(n)]
        equal(out, np.concatenate(wanted), dtype)
        even = paddle.zeros([n, 2]).astype(dtype)
        dist.alltoall_single(even, tensor(values(me, (n, 2), dtype), dtype), group=members.group)
        equal(even, np.stack([values(r, (n, 2), dtype)[me] for r in range(n)]), dtype)


def test_messages(dist: ModuleType, rank: int, size: int) -> None:
    if size < 2:
        return
    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype, shape in itertools.product(DTYPES, SHAPES):
        mine = tensor(values(rank, shape, dtype), dtype)
        got = tensor(np.zeros(shape), dtype)
        task = dist.isend(mine, right)
        dist.recv(got, left)
        task.wait()
        equal(got, values(left, shape, dtype), (dtype, shape))
        got = tensor(np.zeros(shape), dtype)
        tasks = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, got, left)]
        )
        for task in tasks:
            task.wait()
        equal(got, values(left, shape, dtype), (dtype, shape))


def test_partial_messages(dist: ModuleType, rank: int, size: int) -> None:
    if size < 2 or rank > 1:
        return
    group = dist.get_group(0).process_group
    whole = paddle.arange(8, dtype="float32").reshape([2, 4])
    if rank == 0:
        for part in (1, 3):
            group.send_partial(whole, 1, 4, part).wait()
    else:
        out = paddle.zeros([2, 4])
        for part in (1, 3):
            group.recv_partial(out, 0, 4, part, True)
        assert out.tolist() == [[0, 0, 2, 3], [0, 0, 6, 7]]
    with pytest.raises(ValueError, match="contiguous"):  # recv would write to a copy
        group.recv_partial(whole.transpose([1, 0]), 0, 4, 1)


def test_strided(dist: ModuleType, rank: int, size: int) -> None:
    base = tensor(values(rank, (4, 6), "float32"), "float32")
    view = base.transpose([1, 0])
    dist.all_reduce(view)
    wanted = reduced("SUM", [values(r, (4, 6), "float32") for r in range(size)], "float32")
    equal(view, wanted.T)
    equal(base, wanted)  # the result is in the memory that the view shares


def test_objects(dist: ModuleType, rank: int, size: int) -> None:
    found: list[Any] = []
    dist.all_gather_object(found, {"rank": rank, "long": "x" * (rank * 100)})
    assert [one["rank"] for one in found] == list(range(size))
    assert [len(one["long"]) for one in found] == [100 * r for r in range(size)]
    objects = [{"a": 1}, "b", rank] if rank == size - 1 else [None] * 3
    dist.broadcast_object_list(objects, size - 1)
    assert objects == [{"a": 1}, "b", size - 1]
    out: list[Any] = []
    dist.scatter_object_list(out, [("for", r) for r in range(size)] if rank == 0 else None, 0)
    assert out == [("for", rank)]


def test_objects_of_a_part_of_the_ranks(dist: ModuleType, rank: int, size: int) -> None:
    """Every function of Paddle that takes objects and a group; the last rank is no member."""
    members = list(range(1, size)) if size > 2 else [size - 1]
    group = dist.new_group(members)
    first, last = members[0], members[-1]
    if rank not in members:
        out: list[Any] = ["mine"]
        dist.scatter_object_list(out, None, first, group)
        assert out == ["mine"]
    else:
        found: list[Any] = []
        dist.all_gather_object(found, {"rank": rank}, group)
        assert found == [{"rank": r} for r in members]
        objects = [{"a": 1}, rank] if rank == last else [None] * 2
        dist.broadcast_object_list(objects, last, group)
        assert objects == [{"a": 1}, last]
        parts = [("for", r, "x" * 100 * r) for r in members] if rank == last else None
        out = ["is replaced", 2]
        dist.scatter_object_list(out, parts, last, group)
        assert out == [("for", rank, "x" * 100 * rank)]
        if first != last and hasattr(dist, "send_object_list"):
            if rank == first:
                dist.send_object_list(["a", {"b": 2}], last, group)
            elif rank == last:
                got: list[Any] = [None, None]
                dist.recv_object_list(got, first, group)
                assert got == ["a", {"b": 2}]
    dist.barrier()
    dist.destroy_process_group(group)


def test_barrier_and_wait(dist: ModuleType) -> None:
    dist.barrier()
    dist.wait(paddle.ones([1]))
    assert dist.wait(paddle.ones([1]), use_calc_stream=False) is None


def test_in_place_writes_are_seen_by_autograd(dist: ModuleType, size: int) -> None:
    x = paddle.ones([3])
    x.stop_gradient = False
    y = x * 2
    z = (y * y).sum()
    with paddle.no_grad():
        dist.all_reduce(y)
    with pytest.raises(Exception, match="version"):
        z.backward()
