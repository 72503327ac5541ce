"""The gradients of a step: layers note them in backward, and one push sends all of them."""

from __future__ import annotations

import contextlib
import threading
from importlib import import_module
from typing import Any

from .. import _native, memory
from ..errors import DtypeError, Error
from . import remote, session
from .config import checked_ids
from .remote import RemoteTable

__all__ = ["discard", "note", "refuse", "step"]


class _Noted:
    """What was noted since the last step, by the table's name. Taken in the order of the names."""

    def __init__(self) -> None:
        # Backward may run in threads of the framework, and a signal handler may interrupt who holds
        # the lock.
        self.lock = threading.RLock()
        self.of: dict[str, tuple[RemoteTable, list[tuple[Any, Any]]]] = {}

    def take(self) -> list[tuple[RemoteTable, list[tuple[Any, Any]]]]:
        with self.lock:
            taken, self.of = self.of, {}
        return [taken[name] for name in sorted(taken)]


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
    with _noted.lock:
        _noted.of.setdefault(table.name, (table, []))[1].append((ids, gradients))


def discard() -> None:
    """Drop what was noted since the last step. An optimizer's ``zero_grad`` does this."""
    _noted.take()


def refuse() -> None:
    """Drop what was noted, for a trainer whose step is a mistake of its own.

    In sync mode the other trainers raise RefusedError instead of waiting for it.
    """
    discard()
    if session.as_trainer("ps.step").mode == "sync":
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
        Error: as :func:`paddlempi.ps.push`.
    """
    found = session.as_trainer("ps.step")
    parts = 1.0
    if average and found.mode == "sync":
        parts = float(len(found.trainers))
    requests = []
    for table, notes in _noted.take():
        ids, gradients = notes[0] if len(notes) == 1 else _joined(notes)
        requests.append((table, ids, gradients if parts == 1.0 else gradients / parts))
    remote.push(requests)


def _joined(notes: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    framework = import_module(f"..tensors.{memory.framework_of(notes[0][1])}", __package__)
    ids, gradients = zip(*notes, strict=True)
    return framework.joined(ids), framework.joined(gradients)


session.before_complete(discard)
