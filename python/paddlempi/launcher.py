"""The job that a launcher started this process in, as far as it is known before MPI runs.

Frameworks read from the environment who they are; :class:`Variables` fills what they read from
the launcher's variables. A process that was started as a rank and ends without MPI is told so
(:func:`watch`). Nothing here starts MPI.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import sys
import threading
import warnings
import zlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from paddlempi_launchers import SIGNS

from . import _exit, _native, group
from .errors import Error

__all__ = [
    "PADDLE",
    "Variables",
    "find",
    "find_in_fork",
    "is_worker",
    "note_exit",
    "unwatch",
    "watch",
]


def find(hidden: bool = False) -> dict[str, Any] | None:
    """The launcher of this process, with the keys of the core's ``launcher`` (docs/control.md).

    Never raises: where the core cannot be loaded, init tells why.

    Args:
        hidden: also one that is not among the parents of this process, by its variables alone.

    Returns:
        None where there is no launcher, or it does not say which rank this is.
    """
    if not _may_be_there():
        return None
    try:
        found = _native.control("launcher", hidden=hidden)
    except Error:
        return None
    return found if found["rank"] >= 0 and found["size"] > 0 else None


def find_in_fork(hidden: bool = False) -> dict[str, Any] | None:
    """As :func:`find`, without the core in this process: a fork of it asks, and ends.

    For who comes before the framework: Paddle's import replaces signal handlers of Go's, so the
    core must be loaded after it. Call it while this process has one thread.
    """
    if _native.loaded() or not _may_be_there():
        return find(hidden)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps(find(hidden)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    found: dict[str, Any] | None = json.loads(text or "null")
    return found


def _may_be_there() -> bool:
    """Whether a launcher may have started this process; asking the core loads it."""
    return any(sign in os.environ for sign in SIGNS)


class Variables:
    """Environment variables that are filled from what the launcher says, unless they are set.

    Processes started from here inherit them. ``mark`` names one more variable, which tells them
    what was set here and not by the user, in which job, by which process, and whether that runs
    MPI. So a job of its own that is started from here gets its own values; and a program of its
    own that a rank starts while MPI runs gets none, for MPI does not know it. A worker of
    ``multiprocessing`` has its parent's.

    Args:
        mark: the name of that variable.
        table: variables, and which of the launcher's numbers each has: ``"rank"``, ``"size"``,
            ``"local_rank"`` or ``"local_size"``.
    """

    def __init__(self, mark: str, table: Mapping[str, str]) -> None:
        self._mark = mark
        self.table = table

    def fill(self, launcher: Mapping[str, Any] | None) -> bool:
        """Set the variables to what the launcher says, where the user has not.

        Args:
            launcher: what :func:`find` returned. None: what was set here before is taken back.

        Returns:
            Whether this process answers for a rank of the launcher's: it is one, and none of the
            processes that it was started by has filled them before.
        """
        if launcher is None:
            self.clear()
            return False
        mark, me = self._read(), os.getpid()
        if self.rank_above(launcher):
            if not is_worker():
                self._take_back()
                self._write(mark, ())
            return False
        self._take_back()
        values = {name: launcher[key] for name, key in self.table.items() if launcher[key] >= 0}
        mine = mark.pid == me
        self._set(values, _Mark(launcher["job"], me, mine and mark.runs_mpi))
        return mine or mark.job != launcher["job"]

    def set_from_mpi(self, numbers: Mapping[str, int], others: Mapping[str, str]) -> None:
        """Now that MPI runs in this process: what it says, where the user said nothing.

        Args:
            numbers: MPI's for the keys of the launcher's that the table names.
            others: variables that the launcher does not know, with their values.
        """
        job = self._read().job
        values: dict[str, object] = {name: numbers[key] for name, key in self.table.items()}
        values.update(others)
        self._take_back()
        self._set(values, _Mark(job, os.getpid(), True))

    def is_ours(self, name: str) -> bool:
        """Whether a variable was set here, or by the process that it is inherited from."""
        value = os.environ.get(name)
        return value is not None and self._read().sums.get(name) == _sum(value)

    def rank_above(self, launcher: Mapping[str, Any] | None) -> int:
        """The process that started this one and runs MPI as the rank of it; 0 if there is none."""
        mark = self._read()
        same = launcher is not None and bool(mark.job) and mark.job == launcher["job"]
        return mark.pid if same and mark.runs_mpi and mark.pid != os.getpid() else 0

    def clear(self) -> None:
        """Take back what is ours."""
        self._take_back()
        os.environ.pop(self._mark, None)

    def _set(self, values: Mapping[str, object], mark: _Mark) -> None:
        """Set those that the user has not."""
        unset = [name for name in values if name not in os.environ]
        for name in unset:
            os.environ[name] = str(values[name])
        self._write(mark, unset)

    def _take_back(self) -> None:
        for name in self._read().sums:
            if self.is_ours(name):
                del os.environ[name]

    def _read(self) -> _Mark:
        found = re.fullmatch(r"(.*)\|(\d+)\|(mpi|)\|(.*)", os.environ.get(self._mark, ""))
        if found is None:
            return _Mark("", 0, False)
        sums = dict(re.findall(r"(\w+):(\w+)", found[4]))
        return _Mark(found[1], int(found[2]), bool(found[3]), sums)

    def _write(self, mark: _Mark, names: Iterable[str]) -> None:
        entries = " ".join(f"{name}:{_sum(os.environ[name])}" for name in names)
        runs = "mpi" if mark.runs_mpi else ""
        os.environ[self._mark] = f"{mark.job}|{mark.pid}|{runs}|{entries}"


class _Mark(NamedTuple):
    """What the variable says that a :class:`Variables` leaves."""

    job: str
    pid: int  # the process that set them
    runs_mpi: bool  # in that process
    sums: Mapping[str, str] = MappingProxyType({})  # of their values: others may be set since


def _sum(value: str) -> str:
    return f"{zlib.crc32(value.encode(errors='surrogateescape')):08x}"


PADDLE = Variables(
    "PADDLEMPI_FILLED_PADDLE",
    {
        "PADDLE_TRAINER_ID": "rank",
        "PADDLE_TRAINERS_NUM": "size",
        "PADDLE_GLOBAL_RANK": "rank",
        "PADDLE_GLOBAL_SIZE": "size",
        "PADDLE_LOCAL_RANK": "local_rank",
        "PADDLE_RANK_IN_NODE": "local_rank",
        "PADDLE_LOCAL_SIZE": "local_size",
    },
)
"""What ``paddle.distributed.launch`` sets, as far as a launcher of MPI's knows it.

Here and not in Paddle's front: ``python -m paddlempi run`` fills it before Paddle is imported.
"""


def is_worker() -> bool:
    """Whether ``multiprocessing`` started this process: it works for the one that did."""
    module = sys.modules.get("multiprocessing.process")
    if module is None:
        return False
    # While a worker that was not forked imports the main module, it is "inheriting" and no more.
    inheriting: bool = getattr(module.current_process(), "_inheriting", False)
    return inheriting or module.parent_process() is not None


# The end of a process that never started MPI


class _Watch:
    """What is known of the process that is watched; ``pid`` 0: none is.

    Invariant: ``exit`` is what :func:`_exit_noted` calls, and is never in front of it.
    """

    def __init__(self) -> None:
        self.pid = 0
        self.registered = False
        self.wrapped = False  # sys.exit, perhaps below wrappers of others
        self.started = False
        self.status: object = None
        self.launcher: Mapping[str, Any] = {}
        self.exit = sys.exit


_watch = _Watch()


def watch(launcher: Mapping[str, Any] | None) -> None:
    """Warn at the end of this process if it is a rank of many, ends well and never started MPI.

    It would have worked as a job of one rank, as N others beside it: a script that asks for the
    number of ranks and finds one does so without a word.

    Args:
        launcher: what :func:`find` returned.
    """
    if launcher is None or launcher["size"] < 2 or _watch.pid == os.getpid() or is_worker():
        return
    _watch.pid, _watch.launcher = os.getpid(), launcher
    if not _watch.wrapped:
        _watch.wrapped = True
        _watch.exit, sys.exit = sys.exit, _exit_noted
    if not _watch.registered:
        _watch.registered = True
        group.at_destroy(_note_start)
        atexit.register(_at_exit)


def unwatch() -> None:
    """Say nothing at the end."""
    _watch.pid = 0
    if sys.exit is _exit_noted:
        sys.exit = _watch.exit
        _watch.wrapped = False


def note_exit(status: object) -> None:
    """The process is about to end with what ``sys.exit`` was given, or ``SystemExit``."""
    _watch.status = status


@functools.wraps(sys.exit)
def _exit_noted(status: Any = None, /) -> Any:
    if threading.current_thread() is threading.main_thread():
        note_exit(status)
    _watch.exit(status)


def _note_start() -> None:
    _watch.started = True


def _at_exit() -> None:
    started = _watch.started or group.is_initialized() or _exit.mpi_is_foreign()
    failed = _watch.status not in (None, 0) or getattr(sys, "last_value", None) is not None
    if _watch.pid != os.getpid() or started or failed:
        return
    of = _watch.launcher
    rank, size = of["rank"], of["size"]
    warnings.warn(
        f"paddlempi: rank {rank} of the {size} that {of['path'] or of['name']} started has ended "
        "without MPI: neither init_parallel_env() nor init_process_group() was called, so it has "
        "worked as a job of one rank, and the others beside it. Where that is meant, "
        'warnings.filterwarnings("ignore", "paddlempi: rank") keeps this quiet',
        RuntimeWarning,
        stacklevel=2,
    )
