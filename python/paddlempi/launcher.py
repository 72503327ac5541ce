"""What a process can know of its launcher and its job before MPI runs. Nothing here starts MPI.

:func:`paddlempi_place.find` returns the launcher and this process's place.

* :class:`Variables` sets environment variables from which frameworks read their ranks.
* :func:`watch` warns if a process that a launcher started as a rank ends without having used MPI.

Thread-safety: call :class:`Variables`, :func:`watch` and :func:`unwatch` from one thread only,
because they change the environment and ``sys.exit`` of the process.
"""

from __future__ import annotations

import atexit
import functools
import os
import re
import sys
import threading
import warnings
import zlib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from paddlempi_place import Place

from . import _exit, group

__all__ = [
    "PADDLE",
    "Variables",
    "is_worker",
    "note_exit",
    "unwatch",
    "watch",
]


class Variables:
    """Environment variables that this module sets to the launcher's numbers if the user has not.

    Child processes inherit the variables. One more variable, the mark, tells them which variables
    were set here, in which job and by which process, and whether that process runs MPI. Therefore

    * a new job that this process starts gets the values of that job;
    * another program that a rank starts while MPI runs gets no values, because it is no rank;
    * a worker of ``multiprocessing`` keeps the values of its parent.

    Args:
        mark: the name of the mark.
        table: for each variable the number that it has: ``"rank"``, ``"size"``, ``"local_rank"``
            or ``"local_size"``.
    """

    def __init__(self, mark: str, table: Mapping[str, str]) -> None:
        self._mark = mark
        self.table = table

    def fill(self, launcher: Place | None) -> bool:
        """Set the variables that the user has not set to the launcher's numbers.

        Args:
            launcher: what :func:`paddlempi_place.find` returned. None: unset the variables that
                were set here.

        Returns:
            Whether this process is a rank of the launcher, and not a child of a process that
            filled the variables for the same rank before.
        """
        if launcher is None:
            self.clear()
            return False
        mark, me = self._read(), os.getpid()
        if self.rank_above(launcher):
            if not is_worker():
                self._unset_ours()
                self._write(mark, ())
            return False
        self._unset_ours()
        numbers = launcher._asdict()
        values = {name: numbers[key] for name, key in self.table.items() if numbers[key] >= 0}
        again = mark.pid == me
        self._set(values, _Mark(launcher.job, me, again and mark.runs_mpi))
        return again or mark.job != launcher.job

    def set_from_mpi(self, numbers: Mapping[str, int], others: Mapping[str, str]) -> None:
        """Set the variables that the user has not set to MPI's numbers, once MPI runs.

        Args:
            numbers: MPI's numbers, by the names that the table uses.
            others: more variables, with their values.
        """
        job = self._read().job
        values: dict[str, object] = {name: numbers[key] for name, key in self.table.items()}
        values.update(others)
        self._unset_ours()
        self._set(values, _Mark(job, os.getpid(), True))

    def is_ours(self, name: str) -> bool:
        """Whether a variable was set by this class, here or in the process it is inherited from."""
        value = os.environ.get(name)
        return value is not None and self._read().sums.get(name) == _sum(value)

    def rank_above(self, launcher: Place | None) -> int:
        """The pid of a process above this one that runs MPI as the launcher's rank; 0: none."""
        mark = self._read()
        same = launcher is not None and bool(mark.job) and mark.job == launcher.job
        return mark.pid if same and mark.runs_mpi and mark.pid != os.getpid() else 0

    def clear(self) -> None:
        """Unset the variables that were set by this class, and the mark."""
        self._unset_ours()
        os.environ.pop(self._mark, None)

    def _set(self, values: Mapping[str, object], mark: _Mark) -> None:
        """Set the variables that are not set, and the mark."""
        unset = [name for name in values if name not in os.environ]
        for name in unset:
            os.environ[name] = str(values[name])
        self._write(mark, unset)

    def _unset_ours(self) -> None:
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
    """The content of the mark of a :class:`Variables`."""

    job: str
    pid: int  # of the process that set the variables
    runs_mpi: bool  # whether that process runs MPI
    # For each variable that was set, a checksum of its value: the user may change it later.
    sums: Mapping[str, str] = MappingProxyType({})


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
"""The variables of ``paddle.distributed.launch`` whose values an MPI's launcher knows.

They are not in Paddle's front, because ``python -m paddlempi run`` sets them before Paddle is
imported.
"""


def is_worker() -> bool:
    """Whether ``multiprocessing`` started this process, which then is no rank itself."""
    module = sys.modules.get("multiprocessing.process")
    if module is None:
        return False
    # While a spawned worker imports the main module it has no parent process yet, only this flag.
    inheriting: bool = getattr(module.current_process(), "_inheriting", False)
    return inheriting or module.parent_process() is not None


# The end of a process that never started MPI


class _Watch:
    """The state of :func:`watch`.

    Invariant: ``exit`` is the function that :func:`_exit_noted` calls, and never calls
    :func:`_exit_noted` itself.
    """

    def __init__(self) -> None:
        self.pid = 0  # of the process that is watched; 0: none
        self.registered = False
        self.wrapped = False  # sys.exit is _exit_noted, or another library's wrapper of it
        self.started = False
        self.status: object = None  # the argument of sys.exit
        self.launcher: Place | None = None
        self.exit = sys.exit


_watch = _Watch()


def watch(launcher: Place | None) -> None:
    """Warn when this process ends well, is one of several ranks, and has never started MPI.

    Such a process has worked as a job of one rank, and so have the other ranks. A script does that
    without any error if it asks for the number of ranks and gets 1.

    Args:
        launcher: what :func:`paddlempi_place.find` returned.
    """
    if launcher is None or launcher.size < 2 or _watch.pid == os.getpid() or is_worker():
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
    """Undo :func:`watch`: there will be no warning."""
    _watch.pid = 0
    if sys.exit is _exit_noted:
        sys.exit = _watch.exit
        _watch.wrapped = False


def note_exit(status: object) -> None:
    """Note the argument of ``sys.exit`` or ``SystemExit``, which is about to end the process."""
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
    launcher = _watch.launcher
    if launcher is None or _watch.pid != os.getpid() or started or failed:
        return
    warnings.warn(
        f"paddlempi: rank {launcher.rank} of the {launcher.size} that "
        f"{launcher.path or launcher.name} started has ended "
        "without MPI: neither init_parallel_env() nor init_process_group() was called, so it has "
        "worked as a job of one rank, and so have the others. If that is intended, "
        'warnings.filterwarnings("ignore", "paddlempi: rank") suppresses this warning',
        RuntimeWarning,
        stacklevel=2,
    )
