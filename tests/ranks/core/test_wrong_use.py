"""Wrong arguments on every rank, and in messages: each rank raises its own error."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import errors
from ranks_tools import raises, works

pytestmark = pytest.mark.mpi(min=2)


def floats(*shape: int) -> Any:
    return np.zeros(shape or (4,), np.float32)


def locked() -> Any:
    tensor = floats()
    tensor.flags.writeable = False
    return tensor


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
        lambda: dist.send(floats(), -1),
        lambda: dist.send(floats(), 0, tag=1 << 40),
        lambda: dist.irecv(b"123", 0),
    ):
        with raises(errors.ArgumentError):
            call()
    for call in (lambda: dist.recv("text", 0), lambda: dist.send(floats(), 0.5)):
        with raises(errors.DtypeError):
            call()
    for function in dist.send, dist.isend, dist.recv, dist.irecv:
        with raises(errors.ArgumentError, f"={size}"):
            function(floats(), size)
        with raises(errors.ArgumentError, "tag", "-3"):
            function(floats(), 0, tag=-3)
        with raises(errors.DtypeError, "no tensor"):
            function(object(), 0)
    for function in dist.recv, dist.irecv:
        with raises(errors.ArgumentError, "read-only"):
            function(locked(), 0)
    works()


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


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (3, "a value of type int is no tensor: give one of NumPy"),
        ("text", "a value of type str is no tensor"),
        (np.array(["ab"]), "recv tensor 0 has elements that are text (format"),
        (np.array([b"ab"]), "elements that are strings of bytes"),
        (np.array([None]), "elements that are Python objects"),
        (np.zeros(2, [("a", "f4")]), "elements that are records with fields"),
        (np.zeros(2, ">f4"), "elements that are numbers in the byte order of other machines"),
        (np.zeros(2, np.longdouble), "elements that are extended-precision floating-point numbers"),
        (np.zeros(2, "datetime64[s]"), "a NumPy array of dtype datetime64[s] cannot be sent"),
    ],
)
def test_errors_name_the_operation_and_the_type(
    dist: ModuleType, rank: int, tensor: object, words: str
) -> None:
    for name, call in (
        ("all_reduce", lambda: dist.all_reduce(tensor)),
        ("broadcast", lambda: dist.broadcast(tensor, 0)),
        ("recv", lambda: dist.recv(tensor, rank)),
    ):
        with pytest.raises(dist.errors.DtypeError) as raised:
            call()
        text = str(raised.value)
        sent = words.replace("recv tensor", "send tensor") if name == "broadcast" else words
        assert text.startswith(f"{name}: ") and (words in text or sent in text), text
    dist.barrier()
