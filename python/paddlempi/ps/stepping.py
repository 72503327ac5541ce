"""The gradients of a step: layers note them in backward, and one push sends all of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from .. import _native, memory
from ..errors import ArgumentError, DtypeError, Error
from . import remote, session
from .config import checked_ids
from .remote import RemoteTable
from .table_owners import Owner

__all__ = [
    "discard",
    "discard_of",
    "discard_tables",
    "note",
    "noted_of",
    "refuse",
    "step",
    "step_of",
]

_Note = tuple[RemoteTable, Any, Any]  # a table, ids and gradients


class _Noted:
    """What was noted since the last step, by the table's name. Taken in the order of the names."""

    def __init__(self) -> None:
        # Backward may run in threads of the framework, and a signal handler may interrupt who holds
        # the lock.
        self.lock = threading.RLock()
        self.of: dict[str, tuple[RemoteTable, list[_Note]]] = {}
        self.count = 0
        self.latest: dict[str, int] = {}  # the number of the latest note of each table

    def add(self, table: RemoteTable, ids: Any, gradients: Any) -> None:
        with self.lock:
            self.of.setdefault(table.name, (table, []))[1].append((table, ids, gradients))
            self.count += 1
            self.latest[table.name] = self.count

    def take(
        self, which: Callable[[Mapping[str, int]], Iterable[str]] = list
    ) -> list[tuple[RemoteTable, list[_Note]]]:
        """Return what was noted of the tables that ``which`` says, or of all; forget it."""
        with self.lock:
            names = sorted(which(self.latest))
            for name in names:
                del self.latest[name]
            return [self.of.pop(name) for name in names]


_noted = _Noted()


def note(table: RemoteTable, ids: Any, gradients: Any) -> None:
    """Keep gradients of rows for the next :func:`step`. The tensors must not be written to.

    Args:
        table: the table.
        ids: a tensor of int64 or int32, [n].
        gradients: a tensor of float32, float16 or bfloat16, [n, dim].

    Raises:
        DtypeError: ``table`` is no RemoteTable, or ``ids`` are no tensor.
    """
    if not isinstance(table, RemoteTable):
        raise DtypeError(f"ps.note: table={table!r:.100} is no RemoteTable")
    checked_ids("ps.note", ids)
    _noted.add(table, ids, gradients)


def discard() -> None:
    """Drop what was noted since the last step, of all tables.

    An optimizer's ``zero_grad`` does so with its own tables.
    """
    _noted.take()
    if session.is_begun():
        session.current("ps.discard").owners.agree()


def discard_of(owner: Owner) -> None:
    """Drop what was noted of the tables of an optimizer."""
    if session.is_begun():
        owners = session.as_trainer("ps.discard").owners
        _noted.take(lambda noted: owners.to_drop(owner, noted))
    else:
        discard()


def discard_tables(names: Iterable[str]) -> None:
    """Drop what was noted of the tables of these names."""
    _noted.take(set(names).intersection)


def noted_of(owners: Iterable[Owner]) -> list[tuple[RemoteTable, list[_Note]]]:
    """Return what a step of each of these optimizers would push, by table. It stays noted."""
    of_all = session.as_trainer("ps.step").owners
    with _noted.lock:
        names = {n for owner in owners for n in of_all.to_forget(owner, _noted.latest)}
        return [(_noted.of[name][0], list(_noted.of[name][1])) for name in sorted(names)]


def refuse(owner: Owner | None = None) -> None:
    """Drop what an optimizer would push, or all, for a trainer whose step is its own mistake.

    In sync mode the other trainers raise RefusedError instead of waiting for it.
    """
    found = session.as_trainer("ps.step")
    if owner is None:
        discard()
    else:
        mine = owner
        _noted.take(lambda noted: found.owners.to_forget(mine, noted))
    if found.mode == "sync":
        with contextlib.suppress(Error):  # it always ends with one
            _native.control("ps_refuse")


def step(*, average: bool = True) -> None:
    """Push all gradients that were noted since the last step, in one request.

    All trainers call it once in each step, also with nothing noted: in sync mode the servers wait
    for all. After an error what was noted is dropped.

    Args:
        average: in sync mode, divide the gradients by the number of trainers, so that the step is
            that of the mean loss over all trainers. Those that have completed count too, so that
            every sample has the same weight. False: they are added up. In async mode every
            push is a step by itself, and nothing is divided.

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: also if RemoteTables of one name, of which gradients were noted, have
            different learning rates: they are one table.
        Error: as :func:`paddlempi.ps.push`.
    """
    found = session.as_trainer("ps.step")
    found.owners.agree()
    _push(found, _noted.take(), average)


def step_of(owner: Owner, *, average: bool) -> None:
    """Push the gradients that were noted of the tables of an optimizer, as :func:`step` does.

    Raises:
        ArgumentError: also if it is not to be seen whose tables they are.
        Error: as :func:`step`.
    """
    found = session.as_trainer("ps.step")
    taken = _noted.take(lambda noted: found.owners.to_push(owner, noted, _noted.count))
    _push(found, taken, average)


def _push(
    found: session.Session, taken: list[tuple[RemoteTable, list[_Note]]], average: bool
) -> None:
    parts = 1.0
    if average and found.mode == "sync":
        parts = float(len(found.trainers))
    requests = []
    for table, notes in taken:
        _, ids, gradients = notes[0] if len(notes) == 1 else _joined(notes)
        requests.append((table, ids, gradients if parts == 1.0 else gradients / parts))
    remote.push(requests)


def _joined(notes: list[_Note]) -> _Note:
    framework = import_module(f"..tensors.{memory.framework_of(notes[0][2])}", __package__)
    tables, ids, gradients = zip(*notes, strict=True)
    table, rate = tables[0], tables[0].learning_rate
    for other in tables:
        if other.learning_rate != rate:
            raise ArgumentError(
                f"ps.step: two RemoteTables of the name {table.name!r} have learning_rate={rate} "
                f"and learning_rate={other.learning_rate}: they are one table, whose rows a step "
                "updates once: give both the same"
            )
    return table, framework.joined(ids), framework.joined(gradients)


session.before_complete(discard)
