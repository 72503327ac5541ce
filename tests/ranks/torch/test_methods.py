"""The process group's methods, called directly in every form that torch's C++ class has."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from tensors import Team, noise, numbers, same, same_reduced

COUNT = 6
LONG = timedelta(seconds=50)


class Bench:
    """A group, its members' tensors, and helpers that call methods and check their results."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self.pg = team.group or team.dist.group.WORLD
        self.size, self.rank = team.size, team.rank
        self.parts = [numbers("float32", COUNT, "methods", rank) for rank in team.ranks]
        self.root = team.size - 1

    @property
    def mine(self) -> Any:
        return self.parts[self.rank].clone()

    def empty(self, count: int = COUNT) -> Any:
        return torch.full((count,), -99.0)

    def empties(self) -> list[Any]:
        return [self.empty() for _ in self.parts]

    def options(self, name: str, **fields: Any) -> Any:
        made = getattr(torch._C._distributed_c10d, name)()
        for field, value in fields.items():
            setattr(made, field, value)
        return made

    def ended(self, work: Any, *tensors: Any) -> None:
        """Wait for the work. Its result must be exactly the tensors that were written."""
        assert work.wait() and work.is_completed() and work.is_success()
        assert [t.data_ptr() for t in work.result()] == [t.data_ptr() for t in tensors]
        future = work.get_future().wait()
        assert [t.data_ptr() for t in future] == [t.data_ptr() for t in tensors]


def with_every_team(check: Callable[[Bench], None]) -> Callable[[list[Team]], None]:
    """Return a test that runs ``check`` in every group that this rank belongs to."""

    def test(teams: list[Team]) -> None:
        for team in teams:
            check(Bench(team))

    return test


@with_every_team
def test_all_reduce(b: Bench) -> None:
    op = b.team.dist.ReduceOp
    forms: list[tuple[str, Callable[[Any], Any]]] = [
        ("SUM", lambda t: b.pg.allreduce([t])),
        ("SUM", lambda t: b.pg.allreduce(t)),
        ("SUM", lambda t: b.pg.allreduce([t], b.options("AllreduceOptions"))),
        (
            "MAX",
            lambda t: b.pg.allreduce([t], b.options("AllreduceOptions", reduceOp=op.MAX)),
        ),
        ("MAX", lambda t: b.pg.allreduce([t], op.MAX)),
        ("MIN", lambda t: b.pg.allreduce(t, op.MIN)),
        ("AVG", lambda t: b.pg.allreduce(t, op=op.AVG)),
        ("MAX", lambda t: b.pg.allreduce(t, op.MAX, LONG)),
        ("MAX", lambda t: b.pg.allreduce(t, op=op(op.MAX), timeout=LONG)),
        ("SUM", lambda t: b.pg.allreduce_coalesced([t])),
        (
            "MIN",
            lambda t: b.pg.allreduce_coalesced(
                [t], b.options("AllreduceCoalescedOptions", reduceOp=op.MIN)
            ),
        ),
    ]
    for name, call in forms:
        tensor = b.mine
        b.ended(call(tensor), tensor)
        same_reduced(tensor, name, b.parts)


@with_every_team
def test_coalesced_of_several_dtypes(b: Bench) -> None:
    kinds = ("float32", "int64", "float32", "bool", "int64", "bfloat16")
    parts = [[numbers(d, 3 + i, i, r) for r in b.team.ranks] for i, d in enumerate(kinds)]
    tensors = [part[b.rank].clone() for part in parts]
    b.ended(b.pg.allreduce_coalesced(tensors), *tensors)
    for tensor, part in zip(tensors, parts, strict=True):
        same_reduced(tensor, "SUM", part)


@with_every_team
def test_broadcast_and_reduce(b: Bench) -> None:
    op = b.team.dist.ReduceOp
    for call in (
        lambda t: b.pg.broadcast([t], b.options("BroadcastOptions", rootRank=b.root)),
        lambda t: b.pg.broadcast(t, b.root),
        lambda t: b.pg.broadcast(t, root=b.root),
        lambda t: b.pg.broadcast(t, b.root, LONG),
        lambda t: b.pg.broadcast(t, root=b.root, timeout=LONG),
    ):
        tensor = b.mine
        b.ended(call(tensor), tensor)
        same(tensor, b.parts[b.root])
    for name, call in (
        ("SUM", lambda t: b.pg.reduce([t], b.options("ReduceOptions", rootRank=b.root))),
        ("SUM", lambda t: b.pg.reduce(t, b.root)),
        ("MAX", lambda t: b.pg.reduce(t, b.root, op.MAX)),
        ("MIN", lambda t: b.pg.reduce(t, root=b.root, op=op.MIN)),
        ("MIN", lambda t: b.pg.reduce(t, b.root, op.MIN, LONG)),
    ):
        tensor = b.mine
        call(tensor).wait()
        if b.rank == b.root:
            same_reduced(tensor, name, b.parts)
        else:
            same(tensor, b.parts[b.rank])


@with_every_team
def test_gathers(b: Bench) -> None:
    for call in (
        lambda o, t: b.pg.allgather([o], [t]),
        lambda o, t: b.pg.allgather(o, t),
        lambda o, t: b.pg.allgather(o, t, LONG),
        lambda o, t: b.pg.allgather(o, t, timeout=LONG),
        lambda o, t: b.pg.allgather([o], [t], b.options("AllgatherOptions")),
    ):
        outs = b.empties()
        b.ended(call(outs, b.mine), *outs)
        for out, part in zip(outs, b.parts, strict=True):
            same(out, part)

    root = b.options("GatherOptions", rootRank=b.root)
    for call in (
        lambda o, t: b.pg.gather([o] if o else [], [t], root),
        lambda o, t: b.pg.gather(o, t, b.root),
        lambda o, t: b.pg.gather(o, t, root=b.root),
        lambda o, t: b.pg.gather(o, t, b.root, LONG),
    ):
        outs = b.empties() if b.rank == b.root else []
        b.ended(call(outs, b.mine), *outs)
        for out, part in zip(outs, b.parts, strict=b.rank == b.root):
            same(out, part)

    for name in ("gather_single", "gather_into_tensor"):
        out = b.empty(b.size * COUNT)
        getattr(b.pg, name)(out, b.mine, root).wait()
        same(out, torch.cat(b.parts) if b.rank == b.root else b.empty(b.size * COUNT))

    for name in ("all_gather_single", "_allgather_base"):
        out = b.empty(b.size * COUNT)
        b.ended(getattr(b.pg, name)(out, b.mine), out)
        same(out, torch.cat(b.parts))
        out = b.empty(b.size * COUNT)
        b.ended(getattr(b.pg, name)(out, b.mine, b.options("AllgatherOptions")), out)
        same(out, torch.cat(b.parts))

    for name in ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"):
        outs = [b.empty(b.size * COUNT) for _ in range(3)]
        b.ended(getattr(b.pg, name)(outs, [b.mine] * 3), *outs)
        for out in outs:
            same(out, torch.cat(b.parts))

    lists = [[b.empty(), b.empty()] for _ in b.parts]
    work = b.pg.allgather_coalesced(lists, [b.mine, b.mine + 1])
    b.ended(work, *[out for row in lists for out in row])
    for row, part in zip(lists, b.parts, strict=True):
        same(row[0], part)
        same(row[1], part + 1)


@with_every_team
def test_scatters(b: Bench) -> None:
    op = b.team.dist.ReduceOp
    root = b.options("ScatterOptions", rootRank=b.root)
    for call in (
        lambda o, ts: b.pg.scatter([o], [ts] if ts else [], root),
        lambda o, ts: b.pg.scatter(o, ts, b.root),
        lambda o, ts: b.pg.scatter(o, ts, root=b.root, timeout=LONG),
    ):
        out = b.empty()
        b.ended(call(out, [p.clone() for p in b.parts] if b.rank == b.root else []), out)
        same(out, b.parts[b.rank])

    rows = [[numbers("float32", COUNT, i, r) for i in range(b.size)] for r in range(b.size)]
    mine, wanted = rows[b.rank], [row[b.rank] for row in rows]
    biggest = b.options("ReduceScatterOptions", reduceOp=op.MAX)
    for name, call in (
        ("SUM", lambda o, ts: b.pg.reduce_scatter([o], [ts])),
        ("SUM", lambda o, ts: b.pg.reduce_scatter(o, ts)),
        ("MAX", lambda o, ts: b.pg.reduce_scatter(o, ts, op.MAX)),
        ("MAX", lambda o, ts: b.pg.reduce_scatter(o, ts, op=op.MAX, timeout=LONG)),
        ("MAX", lambda o, ts: b.pg.reduce_scatter([o], [ts], biggest)),
    ):
        out = b.empty()
        b.ended(call(out, mine), out)
        same_reduced(out, name, wanted)

    for method in ("reduce_scatter_single", "_reduce_scatter_base"):
        for name, options in (("SUM", ()), ("MAX", (biggest,))):
            out = b.empty()
            b.ended(getattr(b.pg, method)(out, torch.cat(mine), *options), out)
            same_reduced(out, name, wanted)
    for method in ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"):
        for name, options in (("SUM", ()), ("MAX", (biggest,))):
            outs = [b.empty() for _ in range(3)]
            work = getattr(b.pg, method)(outs, [torch.cat(mine)] * 3, *options)
            b.ended(work, *outs)
            for out in outs:
                same_reduced(out, name, wanted)


@with_every_team
def test_all_to_all(b: Bench) -> None:
    rows = [[noise("float32", COUNT, i, r) for i in range(b.size)] for r in range(b.size)]
    mine, wanted = rows[b.rank], [row[b.rank] for row in rows]
    for call in (
        lambda os, ts: b.pg.alltoall(os, ts),
        lambda os, ts: b.pg.alltoall(os, ts, b.options("AllToAllOptions")),
        lambda os, ts: b.pg.alltoall(os, ts, LONG),
        lambda os, ts: b.pg.alltoall(os, ts, timeout=LONG),
    ):
        outs = b.empties()
        b.ended(call(outs, mine), *outs)
        for out, part in zip(outs, wanted, strict=True):
            same(out, part)
    splits = [COUNT] * b.size
    for name in ("all_to_all_single", "alltoall_base"):
        for last in ((), (LONG,), (b.options("AllToAllOptions"),)):
            for sizes in (([], []), (splits, splits), ([], splits)):
                out = b.empty(b.size * COUNT)
                method = getattr(b.pg, name)
                b.ended(method(out, torch.cat(mine), *sizes, *last), out)
                same(out, torch.cat(wanted))


@with_every_team
def test_barriers_and_messages(b: Bench) -> None:
    b.pg.barrier().wait()
    b.pg.barrier(b.options("BarrierOptions")).wait()
    b.pg.barrier(opts=b.options("BarrierOptions")).wait()
    b.pg.barrier(LONG).wait()
    b.pg.barrier(timeout=LONG).wait()
    assert b.pg.monitored_barrier(LONG) is None
    for call in (
        lambda t: b.pg.recv([t], b.rank, 3),
        lambda t: b.pg.recv([t], srcRank=b.rank, tag=3),
        lambda t: b.pg.recv_anysource([t], 3),
    ):
        out = b.empty()
        coming, going = call(out), b.pg.send([b.mine], b.rank, 3)
        b.ended(coming, out)
        b.ended(going)
        assert coming.source_rank() == b.rank
        same(out, b.mine)


@with_every_team
def test_synchronous_options(b: Bench) -> None:
    """The options of torch.distributed's synchronous calls: the work is over on return."""
    tensor = b.mine
    work = b.pg.allreduce([tensor], b.options("AllreduceOptions", asyncOp=False))
    same_reduced(tensor, "SUM", b.parts)
    assert work.is_completed() and work.wait()


@with_every_team
def test_wrong_forms(b: Bench) -> None:
    ones = torch.ones(3)
    for call, text in (
        (lambda: b.pg.allreduce([ones, ones]), "2 tensors"),
        (lambda: b.pg.allreduce([]), "0 tensors"),
        (lambda: b.pg.allreduce([3]), "type int"),
        (lambda: b.pg.allreduce(ones, "SUM"), "reduceOp"),
        (lambda: b.pg.allreduce_coalesced([]), "0 tensors"),
        (lambda: b.pg.allreduce_coalesced(3), "int"),
        (lambda: b.pg.broadcast(ones, "x"), "rootRank"),
        (lambda: b.pg.broadcast(ones, b.size), "root"),
        (lambda: b.pg.reduce(ones, -1), "root"),
        (lambda: b.pg.gather([], ones, b.size), "root"),
        (lambda: b.pg.allgather([], ones), "0 tensors"),
        (lambda: b.pg.allgather([ones] * (b.size + 1), ones), "needs"),
        (lambda: b.pg.alltoall([ones] * (b.size + 1), [ones] * b.size), "needs"),
        (lambda: b.pg.reduce_scatter(ones, [ones] * (b.size + 1)), "needs"),
        (lambda: b.pg.all_gather_single_coalesced([ones], [ones, ones]), "needs 2"),
        (lambda: b.pg.reduce_scatter_single_coalesced([], []), "0 tensors"),
        (lambda: b.pg.allgather_coalesced([[ones]], [ones, ones]), "needs"),
        (lambda: b.pg.barrier("x"), "'x'"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            call()
    tensor = b.mine
    b.pg.allreduce(tensor).wait()
    same_reduced(tensor, "SUM", b.parts)
