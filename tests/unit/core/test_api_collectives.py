"""A collective becomes one submit, or is refused if its arguments are wrong."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import paddlempi as dist
import pytest
from api_fake import WORLD, FakeCore
from paddlempi import _native
from paddlempi._ops import Op, ReduceCode
from paddlempi.errors import ArgumentError, DtypeError

T, U, V, W = (bytearray(8) for _ in range(4))
THREE = [T, U, V]

# a call of rank 1 of 3 -> operation, send side, receive side, reduce op, root
CALLS: list[tuple[Callable[[], Any], tuple[Any, ...]]] = [
    (lambda: dist.all_reduce(T), (Op.ALL_REDUCE, None, T, ReduceCode.SUM, -1)),
    (
        lambda: dist.all_reduce(T, dist.ReduceOp.MAX),
        (Op.ALL_REDUCE, None, T, ReduceCode.MAX, -1),
    ),
    (
        lambda: dist.all_reduce_coalesced(THREE[:2]),
        (Op.ALL_REDUCE_COALESCED, None, THREE[:2], ReduceCode.SUM, -1),
    ),
    (lambda: dist.reduce(T, 0), (Op.REDUCE, T, None, ReduceCode.SUM, 0)),
    (lambda: dist.reduce(T, 1), (Op.REDUCE, None, T, ReduceCode.SUM, 1)),
    (lambda: dist.scan(T), (Op.SCAN, None, T, ReduceCode.SUM, -1)),
    (lambda: dist.exscan(T), (Op.EXSCAN, None, T, ReduceCode.SUM, -1)),
    (lambda: dist.reduce_scatter(W, THREE), (Op.REDUCE_SCATTER, THREE, W, ReduceCode.SUM, -1)),
    (lambda: dist.reduce_scatter_tensor(W, T), (Op.REDUCE_SCATTER, T, W, ReduceCode.SUM, -1)),
    (lambda: dist.broadcast(T, 2), (Op.BROADCAST, None, T, 0, 2)),
    (lambda: dist.broadcast(T, group_src=1), (Op.BROADCAST, None, T, 0, 1)),
    (lambda: dist.all_gather(THREE, W), (Op.ALL_GATHER, W, THREE, 0, -1)),
    (lambda: dist.all_gather_into_tensor(W, T), (Op.ALL_GATHER, T, W, 0, -1)),
    (lambda: dist.gather(W), (Op.GATHER, W, None, 0, 0)),
    (lambda: dist.gather(W, THREE, dst=1), (Op.GATHER, W, THREE, 0, 1)),
    (lambda: dist.scatter(W), (Op.SCATTER, None, W, 0, 0)),
    (lambda: dist.scatter(W, THREE, src=1), (Op.SCATTER, THREE, W, 0, 1)),
    (lambda: dist.all_to_all(THREE, THREE), (Op.ALL_TO_ALL, THREE, THREE, 0, -1)),
    (lambda: dist.all_to_all_single(W, T), (Op.ALL_TO_ALL, T, W, 0, -1)),
    (lambda: dist.barrier(), (Op.BARRIER, None, None, 0, -1)),
]


@pytest.mark.parametrize(("call", "wanted"), CALLS)
def test_one_submit(core: FakeCore, call: Callable[[], Any], wanted: tuple[Any, ...]) -> None:
    assert call() is None
    (got,) = core.calls
    code, send, recv, op, root = wanted
    assert got[:5] == (code, 0, send, recv, op)
    assert got.fields["root"] == root
    wanted_flags = 0 if Op(code).writes(root, 1) else _native.QUIET
    assert got.flags == wanted_flags, "the flags are not those of a synchronous operation"
    assert got.fields["timeout"] == -1.0, "the call must have the deadline of the group"


def test_premul_sum_carries_its_factor(core: FakeCore) -> None:
    dist.all_reduce(T, dist.ReduceOp.PREMUL_SUM(0.25))
    assert int(core.calls[0][4]) == ReduceCode.PREMUL_SUM
    assert core.calls[0].fields["scale"] == 0.25


def test_splits(core: FakeCore) -> None:
    dist.all_to_all_single(W, T, [1, 2, 3], (3, 2, 1))
    fields = core.calls[0].fields
    assert (fields["send_splits"], fields["recv_splits"]) == ([3, 2, 1], [1, 2, 3])
    dist.all_to_all_single(W, T, [], None)
    fields = core.calls[1].fields
    assert (fields["send_splits"], fields["recv_splits"]) == (None, None)


def test_roots_are_global_ranks(core: FakeCore) -> None:
    group = dist.new_group([2, 1])
    dist.broadcast(T, src=1, group=group)
    dist.broadcast(T, group_src=0, group=group)
    assert [(call.group, call.fields["root"]) for call in core.calls] == [(7, 1), (7, 0)]


def test_monitored_barrier_has_its_own_deadline(core: FakeCore) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=3))
    assert core.controls[-1] == ("monitored_barrier", {"group": WORLD, "timeout": 3.0})
    assert not core.calls, "monitored_barrier must not be submitted as a collective"
    for wrong, kind in ((-1, ArgumentError), ("1", DtypeError)):
        with pytest.raises(kind):
            dist.monitored_barrier(timeout=wrong)  # type: ignore[arg-type]


# Errors that Python itself finds. The other members are told of the refusal; nothing is sent.
WRONG: list[tuple[Callable[[], Any], int, type[Exception], str]] = [
    (lambda: dist.all_reduce(T, "sum"), Op.ALL_REDUCE, DtypeError, "op='sum' is a str"),  # type: ignore[arg-type]
    (
        lambda: dist.all_reduce(T, dist.ReduceOp.PREMUL_SUM),  # type: ignore[arg-type]
        Op.ALL_REDUCE,
        DtypeError,
        "PREMUL_SUM\\(factor\\)",
    ),
    (lambda: dist.broadcast(T, 3), Op.BROADCAST, ArgumentError, "src=3"),
    (lambda: dist.broadcast(T, -1), Op.BROADCAST, ArgumentError, "src=-1"),
    (lambda: dist.broadcast(T), Op.BROADCAST, ArgumentError, "src or group_src"),
    (lambda: dist.broadcast(T, 1, group_src=1), Op.BROADCAST, ArgumentError, "both"),
    (lambda: dist.broadcast(T, "0"), Op.BROADCAST, DtypeError, "src is a str"),  # type: ignore[arg-type]
    (lambda: dist.reduce(T, 9), Op.REDUCE, ArgumentError, "dst=9"),
    (lambda: dist.reduce(T), Op.REDUCE, ArgumentError, "dst or group_dst"),
    (lambda: dist.all_gather(THREE[:2], T), Op.ALL_GATHER, ArgumentError, "2 tensors, it needs 3"),
    (lambda: dist.all_gather(T, T), Op.ALL_GATHER, DtypeError, "tensor_list is a bytearray"),
    (lambda: dist.gather(T, None, 1), Op.GATHER, ArgumentError, "gather_list has 0 tensors"),
    (lambda: dist.gather(T, THREE, 0), Op.GATHER, ArgumentError, "must be None but on the root"),
    (lambda: dist.scatter(T, THREE, 0), Op.SCATTER, ArgumentError, "must be None but on the root"),
    (lambda: dist.scatter(T, THREE[:1], 1), Op.SCATTER, ArgumentError, "needs 3"),
    (lambda: dist.reduce_scatter(T, []), Op.REDUCE_SCATTER, ArgumentError, "needs 3"),
    (lambda: dist.all_to_all(THREE, [T]), Op.ALL_TO_ALL, ArgumentError, "input_tensor_list"),
    (
        lambda: dist.all_to_all_single(T, T, [1, 2]),
        Op.ALL_TO_ALL,
        ArgumentError,
        "output_split_sizes=\\[1, 2\\]",
    ),
    (
        lambda: dist.all_to_all_single(T, T, None, [1, -2, 1]),
        Op.ALL_TO_ALL,
        ArgumentError,
        "input_split_sizes",
    ),
    (
        lambda: dist.all_to_all_single(T, T, ["a", 1, 1]),  # type: ignore[list-item]
        Op.ALL_TO_ALL,
        DtypeError,
        "output_split_sizes",
    ),
    (lambda: dist.all_reduce_coalesced([]), Op.ALL_REDUCE_COALESCED, ArgumentError, "needs 1"),
    (lambda: dist.allreduce(T, "median"), Op.ALL_REDUCE, ArgumentError, "median"),
    (lambda: dist.allreduce(object()), Op.ALL_REDUCE, DtypeError, "cannot make"),
]


@pytest.mark.parametrize(("call", "code", "kind", "text"), WRONG)
@pytest.mark.parametrize("async_op", [False])
def test_refused(
    core: FakeCore,
    call: Callable[[], Any],
    code: int,
    kind: type[Exception],
    text: str,
    async_op: bool,
) -> None:
    with pytest.raises(kind, match=text):
        call()
    assert core.calls == [], "a refused call was submitted"
    ((refused, group, _),) = core.refusals
    assert (refused, group) == (code, WORLD)


def test_something_that_is_no_group(core: FakeCore) -> None:
    with pytest.raises(DtypeError, match="group is a int"):
        dist.all_reduce(T, group=3)  # type: ignore[arg-type]
    with pytest.raises(DtypeError, match="group is a int"):
        dist.broadcast(T, 0, group=3)  # type: ignore[arg-type]
    assert core.refusals == []


@pytest.mark.parametrize(
    "call",
    [
        lambda g: dist.all_reduce(T, group=g),
        lambda g: dist.broadcast(T, 0, group=g),
        lambda g: dist.gather(T, group=g),
        lambda g: dist.barrier(g),
        lambda g: dist.monitored_barrier(g),
        lambda g: dist.all_to_all_single(T, T, group=g),
        lambda g: dist.all_reduce(T, group=g, async_op=True),
        lambda g: dist.send(T, 0, group=g),
        lambda g: dist.isend(T, 0, group=g),
        lambda g: dist.irecv(T, 0, group=g),
        lambda g: dist.probe(0, group=g),
        lambda g: dist.all_gather_object([], T, group=g),
        lambda g: dist.broadcast_object_list([], 0, group=g),
    ],
)
def test_non_members_are_warned(core: FakeCore, call: Callable[[Any], Any]) -> None:
    group = dist.new_group([0, 2])
    assert group is dist.GroupMember.NON_GROUP_MEMBER
    with pytest.warns(UserWarning, match=r"on global rank 1 which does not belong"):
        assert call(group) is None
    assert core.calls == []


def test_an_out_of_place_aggregate(core: FakeCore) -> None:
    made = dist.allreduce(T)
    (call,) = core.calls
    assert call[2] is T
    assert call[3] is made
    assert made is not T
    assert type(made) is bytearray
    several = dist.allreduce([T, U], "avg")
    assert len(several) == 2
    assert core.calls[-1][4] == ReduceCode.AVG


def test_reduce_ops_print_and_pickle() -> None:
    import pickle

    for op in (dist.ReduceOp.SUM, dist.ReduceOp.BXOR, dist.ReduceOp.PREMUL_SUM(0.5)):
        assert pickle.loads(pickle.dumps(op)) == op
    assert repr(dist.ReduceOp.AVG) == "ReduceOp.AVG"
    assert repr(dist.ReduceOp.PREMUL_SUM(0.5)) == "ReduceOp.PREMUL_SUM(0.5)"
    assert dist.ReduceOp.PREMUL_SUM(0.5) != dist.ReduceOp.PREMUL_SUM(0.25)
    assert {str(getattr(dist.ReduceOp, code.name)) for code in ReduceCode if code < 9} == {
        f"ReduceOp.{code.name}" for code in ReduceCode if code < 9
    }
