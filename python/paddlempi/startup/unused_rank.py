"""Warns if a process that a launcher started as a rank ends without having used MPI: :func:`watch`.

Thread-safety: call :func:`watch` and :func:`unwatch` from one thread only, because they change
``sys.exit`` of the process.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from typing import Any

from paddlempi_bootstrap.mpi_launcher import Place

from .. import _exit, _log, _processes, group

__all__ = ["note_exit", "unwatch", "watch"]


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
        launcher: what :func:`paddlempi_bootstrap.mpi_launcher.find` returned.
    """
    if launcher is None or launcher.size < 2 or _watch.pid == os.getpid() or _processes.is_worker():
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
    _log.warn(
        f"paddlempi: rank {launcher.rank} of the {launcher.size} that "
        f"{launcher.path or launcher.name} started has ended "
        "without MPI: neither init_parallel_env() nor init_process_group() was called, so it has "
        "worked as a job of one rank, and so have the others. If that is intended, "
        'warnings.filterwarnings("ignore", "paddlempi: rank") suppresses this warning',
        RuntimeWarning,
        stacklevel=2,
    )
