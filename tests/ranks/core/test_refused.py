"""A wrong argument on one rank: that rank raises its own error, other ranks raise RefusedError.

The RefusedError names the rank. No data was sent, and the group stays usable.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp, errors
from ranks_tools import raises, works

pytestmark = pytest.mark.mpi(min=2)

ARGUMENT, DTYPE = errors.ArgumentError, errors.DtypeError


def ones(n: int = 4, dtype: Any = np.float32) -> Any:
    return np.ones(n, dtype)


def frozen() -> Any:
    tensor = ones()
    tensor.flags.writeable = False
    return tensor


def overlapping() -> Any:
    return np.lib.stride_tricks.as_strided(ones(), (4,), (0,))


def cases(d: ModuleType, size: int) -> list[tuple[Callable[..., Any], ...]]:
    """Return cases: a right call, a wrong call, the class of its error, and words of its text.

    The calls take the group and async_op.
    """

    def many(n: int = size) -> list[Any]:
        return [ones() for _ in range(n)]

    def reduces(make: Callable[[], Any], op: Any = ReduceOp.SUM) -> Callable[..., Any]:
        return lambda g, a: d.all_reduce(make(), op, g, a)

    def gathers(make: Callable[[], Any]) -> Callable[..., Any]:
        return lambda g, a: d.all_gather(make(), ones(), g, a)

    def joins(n: int, dtype: Any = np.float32) -> Callable[..., Any]:
        return lambda g, a: d.all_gather_into_tensor(ones(n, dtype), ones(), g, a)

    def sends(**root: Any) -> Callable[..., Any]:
        return lambda g, a: d.broadcast(ones(), group=g, async_op=a, **root)

    def reduces_to(dst: int) -> Callable[..., Any]:
        return lambda g, a: d.reduce(ones(), dst, group=g, async_op=a)

    def scatters(n: int) -> Callable[..., Any]:
        return lambda g, a: d.reduce_scatter(ones(n), many(), group=g, async_op=a)

    def exchanges(n: int, splits: list[int] | None = None) -> Callable[..., Any]:
        return lambda g, a: d.all_to_all_single(ones(size), ones(n), splits, None, g, a)

    def coalesced(make: Callable[[], Any]) -> Callable[..., Any]:
        return lambda g, a: d.all_reduce_coalesced(make(), group=g, async_op=a)

    def scans(op: Any = ReduceOp.SUM) -> Callable[..., Any]:
        return lambda g, a: d.scan(ones(), op, group=g, async_op=a)

    right = reduces(ones)
    return [
        (right, reduces(frozen), ARGUMENT, "read-only"),
        (right, reduces(lambda: b"1234"), ARGUMENT, "read-only"),
        (right, reduces(overlapping), ARGUMENT, "share memory"),
        (right, reduces(object), DTYPE, "no tensor"),
        (right, reduces(lambda: None), DTYPE, ""),
        (right, reduces(lambda: "text"), DTYPE, ""),
        (right, reduces(lambda: 3.5), DTYPE, "float"),
        (right, reduces(lambda: [1.0, 2.0]), None, ""),
        (right, reduces(lambda: np.array(["a"])), DTYPE, ""),
        (right, reduces(lambda: np.zeros(3, "M8[s]")), DTYPE, ""),
        (right, reduces(lambda: ones(dtype=">f4")), DTYPE, ""),
        (
            right,
            reduces(lambda: ones(dtype=bool), ReduceOp.AVG),
            DTYPE,
            "AVG is not defined for bool",
        ),
        (right, reduces(lambda: ones(dtype=np.complex64), ReduceOp.MAX), DTYPE, "complex64"),
        (right, reduces(lambda: ones(dtype=complex), ReduceOp.MIN), DTYPE, "complex128"),
        (right, reduces(ones, ReduceOp.BAND), DTYPE, "BAND is not defined for float32"),
        (right, reduces(ones, "sum"), DTYPE, "op="),
        (sends(group_src=0), sends(group_src=size), ARGUMENT, f"group_src={size}"),
        (sends(src=0), sends(src=77), ARGUMENT, "src=77"),
        (sends(src=0), sends(src="zero"), DTYPE, "src is a str"),
        (reduces_to(0), reduces_to(-1), ARGUMENT, "dst=-1"),
        (gathers(many), gathers(lambda: many(size + 1)), ARGUMENT, f"has {size + 1} tensors"),
        (gathers(many), gathers(lambda: many()[0]), DTYPE, "tensor_list is a ndarray"),
        (gathers(many), gathers(lambda: [*many(size - 1), ones(4, np.int8)]), DTYPE, "one dtype"),
        (gathers(many), gathers(lambda: [*many(size - 1), object()]), DTYPE, "no tensor"),
        (joins(4 * size), joins(4 * size + 1), ARGUMENT, f"{4 * size + 1} elements"),
        (joins(4 * size), joins(4 * size, np.int32), DTYPE, "one dtype"),
        (scatters(4), scatters(3), ARGUMENT, "3"),
        (exchanges(size), exchanges(size, [1] * (size + 1)), ARGUMENT, "output_split_sizes"),
        (exchanges(size), exchanges(size + 1), ARGUMENT, ""),
        (coalesced(many), coalesced(list), ARGUMENT, "0 tensors"),
        (coalesced(many), coalesced(lambda: [ones(), ones(4, np.int32)]), DTYPE, "one dtype"),
        (scans(), scans(ReduceOp.AVG), DTYPE, "AVG"),
    ]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("members", ["world", "reversed"])
def test_wrong_arguments(
    dist: ModuleType, rank: int, size: int, reversed_group: Any, members: str, mode: str
) -> None:
    group = None if members == "world" else reversed_group
    ranks = dist.get_process_group_ranks(group)
    for number, (right, wrong, kind, words) in enumerate(cases(dist, size)):
        odd = ranks[number % size]
        print("case", number)
        if rank == odd:
            with pytest.raises(errors.Error) as raised:
                wrong(group, mode == "async")
            assert kind is None or raised.type is kind, repr(raised.value)
            assert isinstance(raised.value, (TypeError, ValueError)), repr(raised.value)
            assert words in str(raised.value)
            continue
        with raises(errors.RefusedError, "refused", "usable", ranks=[odd], most=10):
            work = right(group, mode == "async")
            if work is not None:
                work.wait()
    works(group)


def test_a_message_of_another_length(dist: ModuleType, rank: int) -> None:
    """Only the receiver raises. The messages that follow are received."""
    x = np.ones(4, np.float32)
    if rank == 0:
        dist.send(np.ones(3, np.float32), 1)
        dist.send(np.ones(5, np.float32), 1)
        dist.send(x, 1)
    elif rank == 1:
        with raises(errors.TruncateError, "12 bytes", "16"):
            dist.recv(np.zeros(4, np.float32), 0)
        with raises(errors.TruncateError, "16 bytes from rank 0", "longer", ranks=[0]):
            dist.recv(np.zeros(4, np.float32), 0)
        y = np.zeros(4, np.float32)
        dist.recv(y, 0)
        assert (y == 1).all()
    works()
