"""Cuts of all tables of a parameter server: saved, and restored, by all trainers."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .. import _native
from ..errors import DtypeError
from .config import from_zero
from .cuts import newest, warn_of_skipped
from .session import as_trainer, current, flush, is_begun

__all__ = ["Saved", "latest", "restore", "save"]


def save(folder: str | os.PathLike[str], step: int, *, keep: int = 2, extra: bytes = b"") -> None:
    """Have the servers write all tables into a folder that they see.

    All trainers that have not completed call it, with the same arguments but ``extra``, between the
    same two steps. One thread of each trainer calls it; others may pull and push meanwhile: each
    push is in the cut with all its tables or not at all, and with it all that its trainer pushed
    before. Such a push waits while the servers copy their rows. The cut is complete when this
    returns; until then :func:`restore` finds an earlier one. After Ctrl-C or the timeout the
    servers stop, and the earlier one stays.

    A job that has gone back to an older cut of the folder (:func:`restore` with ``step=``)
    supersedes those that were made after it: they are no newest cut any more, may be written
    again, and are removed with older ones. ``restore(step=...)`` reads them while they are there.

    Args:
        folder: the folder, which is made if need be.
        step: the number of the step, which names the cut.
        keep: how many whole cuts stay, this one among them, and none that is superseded; 0: all.
            Before one is removed, the servers read those that stay and compare their checksums.
        extra: what :func:`restore` gives back, such as a pickle of the dense parameters: 8 MiB at
            most. That of the first trainer counts.

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: this rank does not train, ``step`` or ``keep`` is below 0, there is a
            complete cut of this step that is not superseded, a server cannot write there, or what
            it has written cannot be read again: then no older cut was removed.
        MismatchError: trainers give other arguments. Nothing was written.
        DtypeError: ``step`` or ``keep`` is no integer, or ``extra`` has no bytes.
        TimeoutError: it took longer than the timeout of :func:`paddlempi.ps.init`.
    """
    as_trainer("ps.save")
    flush()
    number, kept = from_zero("ps.save", "step", step), from_zero("ps.save", "keep", keep)
    try:
        text = base64.b64encode(extra).decode()
    except TypeError as error:
        raise DtypeError(f"ps.save: extra: {error}") from None
    _native.control("ps_save", dir=os.fspath(folder), step=number, keep=kept, extra=text)


class Saved(NamedTuple):
    """The newest cut of a folder."""

    step: int
    path: Path


def latest(folder: str | os.PathLike[str]) -> Saved | None:
    """Return the newest cut of a folder, or None if nothing has been saved there.

    With it a program begins anew, or goes on::

        if ps.latest(folder):
            told = ps.restore(folder)

    After :func:`paddlempi.ps.init` the first server looks, because trainers need not see the
    folder. Before, and in a process without servers, this process does. It waits for no other
    trainer.

    Args:
        folder: what :func:`save` was given.

    Returns:
        The step and the folder of the newest cut whose files are there with their sizes.

    Raises:
        ArgumentError: this rank only serves; or there are cuts, and all of them are damaged: to
            begin anew would hide the loss.
        TimeoutError: the server did not answer in time.
    """
    where = os.fspath(folder)
    if is_begun():
        as_trainer("ps.latest")
        step = _native.control("ps_latest", dir=where).get("step")
    else:
        step = newest(where)
    return None if step is None else Saved(step, Path(where, f"cut-{step:08d}"))


def restore(
    folder: str | os.PathLike[str],
    step: int | None = None,
    *,
    tables: Iterable[str] | None = None,
    strict: bool = True,
) -> dict[str, Any]:
    """Have the servers read a complete cut of a folder into the tables that were made.

    All trainers that have not completed call it, with the same arguments, after they have made
    their tables. The cut may be of another number of servers. The servers read it whole and compare
    its checksums before they change a row. A learning rate that was set is that of the cut. Where
    nothing may be saved yet, ask :func:`latest` first.

    Args:
        folder: the folder.
        step: which cut. None: the newest that is whole. A warning says which newer ones are not.
        tables: the names of the tables to read. The others stay as they are. None: all.
        strict: whether the tables must be those of the cut. If not, a table that only the cut has
            is left out, and one that the cut does not have stays as it is. Tables of both must have
            the same configuration in either case.

    Returns:
        ``step``; ``time``, when the cut was made, in seconds since 1970 by the clock of the first
        server (None if the cut does not say); ``extra``, the bytes that :func:`save` was given;
        ``rows``, how many all servers have now; ``tables``, the names of those that were read;
        ``tasks``, the names of the data sets whose queues the master has read, none if ``tables``
        were given; ``skipped``, a list of the newer cuts that are not whole, the newest first: of
        each a dict of its ``step`` and ``why``.

    Raises:
        NotInitializedError: before :func:`paddlempi.ps.init`.
        ArgumentError: this rank does not train, there is no complete cut or none that is whole, or
            a table of it has another configuration; with ``strict`` also, if a table is only in the
            cut, or not in it.
        MismatchError: trainers give other arguments. Nothing was restored.
        DtypeError: ``step`` is no integer, or ``tables`` are no texts.
        TimeoutError: it took longer than the timeout of :func:`paddlempi.ps.init`. Then, and after
            Ctrl-C, the tables have some rows of the cut: restore again.
    """
    as_trainer("ps.restore")
    flush()
    if step is not None:
        step = from_zero("ps.restore", "step", step)
    taking: dict[str, Any] = {} if strict else {"strict": False}
    if tables is not None:
        taking["tables"] = _names("ps.restore", tables)
    current("ps.restore").restores += 1
    told = _native.control("ps_restore", dir=os.fspath(folder), step=step, **taking)
    skipped = told.get("skipped") or []
    warn_of_skipped("ps.restore", told["step"], [one["why"] for one in skipped], above=2)
    told["time"] = told.get("time") or None
    return {**told, "extra": base64.b64decode(told.get("extra") or ""), "skipped": skipped}


def _names(what: str, tables: Any) -> list[str]:
    names = [] if isinstance(tables, str) else list(tables)
    if isinstance(tables, str) or not all(isinstance(name, str) for name in names):
        raise DtypeError(f"{what}: tables={tables!r} are no list of names")
    return names
