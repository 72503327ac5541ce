"""What the queue of mode "half_async" sends: which pushes are lost, and what merged ones are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, ps
from paddlempi.ps import session
from ps_roles import BOTH, ONE_SERVER, begin

__all__ = ["begin"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

DIM = 3
Begin = Callable[..., bool]


def rows(value: float, count: int = 4) -> np.ndarray:
    return np.full((count, DIM), value, np.float32)


def together(push: Callable[[int], None], count: int = 12) -> None:
    """Make pushes that the thread finds in the queue all at once."""
    queue = session.sender()
    assert queue is not None
    with queue._changed:
        for i in range(count):
            push(i)
    with queue._changed:
        queue._changed.wait_for(lambda: not queue._waiting and not queue._sending)


def not_finite(table: ps.RemoteTable, ids: np.ndarray) -> None:
    bad = rows(1)
    bad[2, 1] = np.nan
    table.push(ids, bad)


def out_of_range(table: ps.RemoteTable, ids: np.ndarray) -> None:
    table.push(np.array([*ids[1:], 10**6]), rows(1))


def without_room(table: ps.RemoteTable, ids: np.ndarray) -> None:
    table.push(np.arange(9 * 10**5), rows(1, 9 * 10**5))


def of_another_shape(table: ps.RemoteTable, ids: np.ndarray) -> None:
    table.push(ids, np.ones((4, DIM + 1), np.float32))


BAD = [not_finite, out_of_range, without_room, of_another_shape]


@pytest.mark.parametrize("roles", [ONE_SERVER, BOTH])
@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.__name__)
def test_one_bad_push_of_twelve(begin: Begin, rank: int, roles: str, bad: Any) -> None:
    if not begin(roles, mode="half_async"):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0), num_ids=10**6, memory_limit=4 << 20)
    other = ps.RemoteTable("u", DIM, ps.SGD(1.0))
    ids = np.arange(4) + 10 * rank
    table.pull(ids)  # a push without room may fill the table with new rows
    ps.barrier()

    def push(i: int) -> None:
        if i == 5:
            bad(table, ids)
        else:
            ps.push([(table, ids, rows(1)), (other, ids, rows(2))])

    together(push)
    with pytest.raises((errors.ArgumentError, errors.OutOfMemoryError), match="that was queued"):
        ps.flush()
    ps.flush()  # it is told once
    assert (table.pull(ids) == -11).all() and (other.pull(ids) == -22).all()


def test_a_push_that_tells_of_an_earlier_one_counts(begin: Begin, rank: int) -> None:
    if not begin(ONE_SERVER, mode="half_async"):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    ids = np.arange(4) + 10 * rank
    together(lambda i: not_finite(table, ids) if i < 3 else table.push(ids, rows(1)), 6)
    with pytest.raises(errors.ArgumentError, match=r"and 2 later ones.*not finite"):
        table.push(ids, rows(1))
    ps.flush()
    assert (table.pull(ids) == -4).all()


def test_what_may_have_been_applied_is_not_sent_again(begin: Begin, monkeypatch: Any) -> None:
    """An error whose effect is unknown, such as a timeout, loses what was sent together."""
    if not begin(ONE_SERVER, mode="half_async"):
        return
    from paddlempi import _native

    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    native, calls = _native.load(), []

    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(native, name)

        def tables(self, code: int, entries: Any) -> None:
            calls.append(len(entries[0][1]))
            native.tables(code, entries)
            raise errors.TimeoutError("its answer has not come")

    with monkeypatch.context() as patch:
        patch.setattr(_native, "load", Late)
        together(lambda _: table.push(np.arange(4), rows(0)), 3)
    assert calls == [12]
    with pytest.raises(errors.TimeoutError, match="2 later ones"):
        ps.flush()


@pytest.mark.parametrize(("merge_by", "parts"), [("sum", 1), ("mean", 6)])
def test_what_merged_pushes_are(begin: Begin, rank: int, merge_by: str, parts: int) -> None:
    """A mean is over the pushes that have rows of the table; an id that few have counts less."""
    if not begin(ONE_SERVER, mode="half_async", merge_by=merge_by):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    adam = ps.RemoteTable("a", DIM, ps.Adagrad(1.0, initial_accumulator=1.0))
    alone = ps.Table(DIM, ps.Adagrad(1.0, initial_accumulator=1.0))
    ids = np.arange(4) + 10 * rank

    def push(i: int) -> None:
        mine = ids if i < 2 else ids[1:] if i < 6 else ids[:0]
        ps.push([(table, mine, rows(i, len(mine))), (adam, ids, rows(i))])

    together(push, 8)
    alone.push(ids, rows(28 / (1 if merge_by == "sum" else 8)))
    assert (table.pull(ids[:1]) == -np.float32(1 / parts)).all()
    assert (table.pull(ids[1:]) == -np.float32(15 / parts)).all()
    assert (adam.pull(ids) == alone.pull(ids)).all()


def test_how_pushes_are_merged_is_checked(begin: Begin) -> None:
    with pytest.raises(errors.ArgumentError, match="merge_by='average' is none of 'sum', 'mean'"):
        begin(BOTH, mode="half_async", merge_by="average")
    begin(BOTH, mode="sync", merge_by="average")  # other modes do not read it
    ps.set_mode("half_async", merge_by="mean")
    queue = session.sender()
    assert queue is not None and queue._mean
