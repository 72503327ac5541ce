"""Collectives and messages of Python objects."""

from __future__ import annotations

import pickle
import sys
import tracemalloc
from types import ModuleType
from typing import Any

import numpy as np
import pytest


def thing(rank: int) -> Any:
    """An object whose pickle has a different length on every rank."""
    return {"rank": rank, "text": "x" * (rank * 1000), "array": np.arange(rank)}


def same(one: Any, rank: int) -> bool:
    return pickle.dumps(one) == pickle.dumps(thing(rank))


class Unpicklable:
    def __reduce__(self) -> Any:
        raise ValueError("not me")


def test_all_gather(dist: ModuleType, rank: int, size: int, reversed_group: Any) -> None:
    out = [None] * size
    dist.all_gather_object(out, thing(rank))
    assert all(same(out[r], r) for r in range(size))
    dist.all_gather_object(out, rank, reversed_group)
    assert out == list(range(size - 1, -1, -1))


def test_gather(dist: ModuleType, rank: int, size: int) -> None:
    for root in range(size):
        out = [None] * size if rank == root else None
        dist.gather_object(thing(rank), out, root)
        assert out is None or all(same(out[r], r) for r in range(size))


def test_broadcast(dist: ModuleType, rank: int, size: int) -> None:
    for root in range(size):
        out = [thing(root), root, None] if rank == root else [None] * 3
        dist.broadcast_object_list(out, root)
        assert same(out[0], root)
        assert out[1:] == [root, None]
    dist.broadcast_object_list([], 0)


def test_scatter(dist: ModuleType, rank: int, size: int) -> None:
    for root in range(size):
        given = [thing(r) for r in range(size)] if rank == root else None
        out: list[Any] = [None]
        dist.scatter_object_list(out, given, root)
        assert same(out[0], rank)


@pytest.mark.mpi(min=2)
def test_send(dist: ModuleType, rank: int, size: int) -> None:
    if rank == 0:
        for source in range(1, size):
            out = [None, None]
            found = dist.recv_object_list(out, 1 if source == 1 else None)
            assert same(out[0], found)
            assert out[1] == "end"
    else:
        dist.send_object_list([thing(rank), "end"], 0)


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("what", ["all_gather", "gather", "broadcast", "scatter"])
def test_what_cannot_be_pickled(dist: ModuleType, rank: int, size: int, what: str) -> None:
    obj: Any = Unpicklable() if rank == 0 else rank
    calls = {
        "all_gather": lambda: dist.all_gather_object([None] * size, obj),
        "gather": lambda: dist.gather_object(obj, None if rank else [None] * size),
        "broadcast": lambda: dist.broadcast_object_list([obj], 0),
        "scatter": lambda: dist.scatter_object_list([None], None if rank else [obj] * size),
    }
    if rank == 0:
        with pytest.raises(ValueError, match="not me"):
            calls[what]()
    else:
        with pytest.raises(dist.errors.RefusedError) as raised:
            calls[what]()
        assert raised.value.ranks == (0,)
    dist.barrier()


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("what", ["all_gather", "gather", "broadcast", "scatter"])
def test_a_wrong_list_on_one_rank(dist: ModuleType, rank: int, size: int, what: str) -> None:
    bad = rank == 0
    full = [None] * size
    calls = {
        "all_gather": lambda: dist.all_gather_object(full[1:] if bad else full, rank),
        "gather": lambda: dist.gather_object(rank, full[1:] if bad else None),
        "broadcast": lambda: dist.broadcast_object_list((1,) if bad else [None], 0),
        "scatter": lambda: dist.scatter_object_list([None], full[1:] if bad else None),
    }
    with pytest.raises(dist.errors.RefusedError if rank else (ValueError, TypeError)):
        calls[what]()
    dist.barrier()


@pytest.mark.mpi(min=2)
def test_lengths_of_peers_are_not_believed(
    dist: ModuleType, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paddlempi import objects

    for length in (-1, 1 << 62, (1 << 34) + 1):
        if rank == 0:
            lengths = np.array([objects._MAGIC, length])
            dist.send(lengths, 1)
        elif rank == 1:
            with pytest.raises(dist.errors.ArgumentError, match="bytes"):
                dist.recv_object_list([None], 0)
    if rank == 0:
        dist.send(np.zeros(2, np.int64), 1)
    elif rank == 1:
        with pytest.raises(dist.errors.ArgumentError, match="send_object_list"):
            dist.recv_object_list([None], 0)
    dist.barrier()


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("how", ["gather", "scatter"])
def test_short_objects_are_not_padded(dist: ModuleType, rank: int, size: int, how: str) -> None:
    """One object is long and the others are short. The short ones are not padded to its length."""
    long = 8 << 20
    objects = [b"x" * long if r == 1 else b"short" for r in range(size)]
    dist.barrier()
    tracemalloc.start()
    try:
        if how == "gather":
            out: list[Any] = [None] * size
            dist.gather_object(objects[rank], out if rank == 0 else None)
            assert rank or out == objects
            most = 2 * long  # the pickle and the unpickled object
        else:
            out = [None]
            dist.scatter_object_list(out, objects if rank == 0 else None)
            assert out[0] == objects[rank]
            most = {0: 2, 1: 2}.get(rank, 0) * long
        assert tracemalloc.get_traced_memory()[1] < most + (1 << 20)
    finally:
        tracemalloc.stop()


class Liar(bytearray):
    """A pickle that says that it has another length."""

    said = 1 << 60

    def __len__(self) -> int:
        return self.said


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("function", ["all_gather", "gather", "broadcast", "scatter"])
def test_lengths_that_no_object_has(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """Rank 1 announces an impossible length: whoever needs the memory names it, nobody waits."""
    from paddlempi import objects

    if rank == 1:
        monkeypatch.setattr(objects, "_dump", lambda *_: Liar(b"N."))
        monkeypatch.setattr(
            objects, "_dump_all", lambda _code, _group, _objects, lengths: _tell(lengths)
        )
    out: list[Any] = [None] * size
    with pytest.raises((dist.errors.ArgumentError, dist.errors.RefusedError)) as raised:
        if function == "all_gather":
            dist.all_gather_object(out, None)
        elif function == "gather":
            dist.gather_object(None, out if rank == 0 else None, 0)
        elif function == "broadcast":
            dist.broadcast_object_list(out, 1)
        else:
            dist.scatter_object_list(out, [None] * size if rank == 1 else None, 1)
    needs = {"gather": rank == 0, "broadcast": rank != 1}.get(function, True)
    if needs:
        assert "rank 1 announced an object of" in str(raised.value)
    else:
        assert raised.type is dist.errors.RefusedError
    monkeypatch.undo()
    dist.all_gather_object(out, rank)
    assert out == list(range(size))


def _tell(lengths: Any) -> bytearray:
    lengths[0] = -1
    return bytearray()


@pytest.mark.mpi(min=2)
def test_a_pickle_that_is_none(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paddlempi import objects

    if rank == 1:
        monkeypatch.setattr(objects, "_dump", lambda *_: bytearray(b"rubbish"))
    out: list[Any] = [None] * size
    with pytest.raises(pickle.UnpicklingError) as raised:
        dist.all_gather_object(out, rank)
    if sys.version_info >= (3, 11):
        assert "object of rank 1" in "".join(raised.value.__notes__)
    assert out == [None] * size
