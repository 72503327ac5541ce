"""Wrong arguments on one rank: every rank gets the right error, and the group stays usable."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp

pytestmark = pytest.mark.mpi(min=2)


def floats(*shape: int) -> Any:
    return np.zeros(shape or (4,), np.float32)


def locked() -> Any:
    tensor = floats()
    tensor.flags.writeable = False
    return tensor


# What rank 1 calls, and the class that it raises. The other ranks call all_reduce(floats()).
REFUSED: dict[str, tuple[Callable[[ModuleType], Any], type[Exception]]] = {
    "no tensor": (lambda d: d.all_reduce(object()), TypeError),
    "None": (lambda d: d.all_reduce(None), Exception),
    "a list of floats": (lambda d: d.all_reduce([1.0, 2.0]), Exception),
    "text": (lambda d: d.all_reduce("text"), TypeError),
    "read-only": (lambda d: d.all_reduce(locked()), ValueError),
    "bytes": (lambda d: d.all_reduce(b"1234"), ValueError),
    "datetime": (lambda d: d.all_reduce(np.zeros(3, "M8[s]")), TypeError),
    "byte order": (lambda d: d.all_reduce(np.zeros(3, ">f4")), TypeError),
    "no op": (lambda d: d.all_reduce(floats(), "sum"), TypeError),
    "AVG of bool": (lambda d: d.all_reduce(np.zeros(3, bool), ReduceOp.AVG), TypeError),
    "MIN of complex": (lambda d: d.all_reduce(np.zeros(3, complex), ReduceOp.MIN), TypeError),
    "BAND of floats": (lambda d: d.all_reduce(floats(), ReduceOp.BAND), TypeError),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_refused(dist: ModuleType, rank: int, size: int, name: str, asynchronous: bool) -> None:
    call, kind = REFUSED[name]
    if rank == 1:
        with pytest.raises(kind):
            call(dist)
    else:
        with pytest.raises(dist.errors.RefusedError) as raised:
            if asynchronous:
                dist.all_reduce(floats(), async_op=True).wait()
            else:
                dist.all_reduce(floats())
        assert raised.value.ranks == (1,)
        assert "1" in str(raised.value)
    tensor = floats()
    tensor += 1
    dist.all_reduce(tensor)
    assert (tensor == size).all(), "the group is not usable any more"


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    "call",
    [
        lambda d, odd: d.all_reduce(floats(5 if odd else 4)),
        lambda d, odd: d.all_reduce(np.zeros(4, "f8" if odd else "f4")),
        lambda d, odd: d.all_reduce(np.zeros(4, "i4" if odd else "f4")),
        lambda d, odd: d.all_reduce(floats(), ReduceOp.MAX if odd else ReduceOp.MIN),
        lambda d, odd: d.all_reduce(floats(), ReduceOp.PREMUL_SUM(1 + odd)),
        lambda d, odd: d.broadcast(floats(), int(odd)),
        lambda d, odd: d.broadcast(floats(), 0) if odd else d.all_reduce(floats()),
        lambda d, odd: d.barrier() if odd else d.all_reduce(floats()),
        lambda d, odd: d.reduce(floats(), int(odd)),
        lambda d, odd: d.scan(floats(3 if odd else 4)),
        lambda d, odd: d.scan(floats()) if odd else d.exscan(floats()),
        lambda d, odd: d.all_gather_into_tensor(
            floats((5 if odd else 4) * d.get_world_size()), floats(5 if odd else 4)
        ),
        lambda d, odd: d.all_reduce_coalesced([floats(), floats(3 if odd else 2)]),
        lambda d, odd: d.all_reduce_coalesced([floats()] * (3 if odd else 2)),
        lambda d, odd: d.reduce_scatter_tensor(
            floats(5 if odd else 4), floats((5 if odd else 4) * d.get_world_size())
        ),
    ],
    ids=[
        "count",
        "width",
        "dtype",
        "reduce op",
        "scale",
        "root",
        "broadcast",
        "barrier",
        "root of reduce",
        "count of scan",
        "exscan",
        "count of all_gather",
        "counts of coalesced",
        "number of coalesced",
        "count of reduce_scatter",
    ],
)
def test_mismatch(
    dist: ModuleType, rank: int, size: int, call: Callable[..., Any], asynchronous: bool
) -> None:
    class Asynchronous:
        """The library with async_op=True in every call, and a wait for each work."""

        def __getattr__(self, name: str) -> Any:
            function = getattr(dist, name)
            if name == "get_world_size":
                return function
            return lambda *arguments: function(*arguments, async_op=True).wait()

    with pytest.raises(dist.errors.MismatchError) as raised:
        call(Asynchronous() if asynchronous else dist, rank == 1)
    assert raised.value.ranks
    tensor = floats()
    tensor += 1
    dist.all_reduce(tensor)
    assert (tensor == size).all(), "the group is not usable any more"


def test_wrong_sizes_within_one_call(dist: ModuleType, rank: int, size: int) -> None:
    """The arguments are wrong on every rank, so every rank raises its own error."""
    calls = [
        lambda: dist.all_gather_into_tensor(floats(size * 4 + 1), floats(4)),
        lambda: dist.reduce_scatter_tensor(floats(4), floats(size * 4 + 1)),
        lambda: dist.all_gather([floats()] * (size + 1), floats()),
        lambda: dist.all_gather([np.zeros(4, int)] * size, floats()),
        lambda: dist.all_reduce_coalesced([floats(), np.zeros(4, int)]),
        lambda: dist.all_reduce_coalesced([]),
        lambda: dist.all_to_all([floats()] * size, [floats()] * (size - 1)),
        lambda: dist.all_to_all_single(floats(size), floats(size), [1] * (size + 1)),
        lambda: dist.broadcast(floats(), size),
        lambda: dist.broadcast(floats(), 0.5),
    ]
    for number, call in enumerate(calls):
        with pytest.raises((ValueError, TypeError)) as raised:
            call()
        assert isinstance(raised.value, dist.Error), number
        dist.barrier()


def test_wrong_point_to_point(dist: ModuleType, rank: int, size: int) -> None:
    """Nothing is sent, and no other rank notices."""
    for call in (
        lambda: dist.send(floats(), size),
        lambda: dist.send(floats(), -1),
        lambda: dist.send(floats(), 0, tag=-5),
        lambda: dist.send(floats(), 0, tag=1 << 40),
        lambda: dist.recv(locked(), 0),
        lambda: dist.recv(floats(), size),
        lambda: dist.isend(floats(), size),
        lambda: dist.irecv(b"123", 0),
    ):
        with pytest.raises(ValueError) as raised:
            call()
        assert isinstance(raised.value, dist.Error)
    for call in (
        lambda: dist.send(object(), 0),
        lambda: dist.recv("text", 0),
        lambda: dist.send(floats(), 0.5),
    ):
        with pytest.raises(TypeError):
            call()
    dist.barrier()


def test_errors_name_the_argument(dist: ModuleType, rank: int, size: int) -> None:
    with pytest.raises(dist.errors.ArgumentError, match=f"src={size}"):
        dist.broadcast(floats(), size)
    with pytest.raises(dist.errors.ArgumentError, match="tensor_list"):
        dist.all_gather([], floats())
    with pytest.raises(dist.errors.DtypeError, match=r"builtins\.object"):
        dist.all_reduce(object())
    with pytest.raises(dist.errors.ArgumentError, match="read-only"):
        dist.all_reduce(locked())
    dist.barrier()
