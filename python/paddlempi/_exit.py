"""The two ways out that the core cannot see, looked at before the interpreter shuts down.

The core itself watches the exit status (``on_exit``) and ends the job with
``MPI_Abort`` where it is not 0. It comes too late in two cases, in which the other
ranks would wait for ever:

* a non-daemon thread is alive: the interpreter joins it before it exits;
* somebody else, mpi4py, owns MPI: it finalizes before ``exit`` is called.

So a callback looks for the status when the interpreter begins to shut down:

* An uncaught exception is where Python leaves it, in ``sys.last_traceback``. By then
  ``sys.excepthook`` has shown it, whosever hook that is. No hook of ours stands there:
  torch's keeps what the hooks below it write, and shows it after they have returned.
* The status given to ``sys.exit`` is noted by a function that stands in for it. A library
  call of the main thread that succeeds afterwards shows that somebody caught the
  SystemExit: the note is thrown away. ``raise SystemExit(n)`` is not seen.
"""

from __future__ import annotations

import array
import atexit
import importlib
import os
import stat
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NoReturn

from . import _native
from .errors import Error

__all__ = ["install", "mpi_is_foreign", "uninstall"]


_MOST_FOR_READER = 1.0
"""Seconds that an abort is put off for the launcher to read a pipe."""


class _Hooks:
    """What is in place of Python's own, between init and destroy."""

    def __init__(self) -> None:
        self.installed = False
        self.registered = False
        self.foreign = False
        self.status = 0  # of the sys.exit under way, 0 if there is none
        self.exit = sys.exit
        self.submit = _native.submit


_hooks = _Hooks()


def mpi_is_foreign() -> bool:
    """Whether mpi4py has initialised MPI and so will finalize it."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    return bool(mpi4py is not None and mpi4py.Is_initialized())


def install(foreign: bool) -> None:
    """Put the hooks in place. ``foreign``: somebody else will finalize MPI."""
    _hooks.foreign = foreign
    if _hooks.installed:
        return
    _hooks.exit, sys.exit = sys.exit, _exit
    _hooks.installed = True
    if not _hooks.registered:
        _hooks.registered = True
        # Callbacks of the threading module come last in, first out, before the
        # threads are joined. An executor's joins its workers: ours has to be later.
        importlib.import_module("concurrent.futures.thread")
        with suppress(ImportError):  # a Python without multiprocessing
            importlib.import_module("concurrent.futures.process")
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_at_shutdown)


def uninstall() -> None:
    """Give Python its own back, unless somebody has put another hook on top of ours."""
    if not _hooks.installed:
        return
    if sys.exit is _exit:
        sys.exit = _hooks.exit
    _forget()
    _hooks.installed = False


def _exit(status: Any = None, /) -> NoReturn:
    if _hooks.installed and _in_main_thread():
        _note(status)
    _hooks.exit(status)
    raise SystemExit(status)  # whatever was in place before us came back


def _note(status: object) -> None:
    _forget()
    if status is None:
        return
    code = status & 0xFF if isinstance(status, int) else 1
    if code:
        _hooks.status = code
        _hooks.submit, _native.submit = _native.submit, _submit_and_forget


def _forget() -> None:
    _hooks.status = 0
    if _native.submit is _submit_and_forget:
        _native.submit = _hooks.submit


def _submit_and_forget(*arguments: Any, **fields: Any) -> Any:
    answer = _hooks.submit(*arguments, **fields)
    if _in_main_thread():
        _forget()
    return answer


def _at_shutdown() -> None:
    if not _hooks.installed:
        return
    status = _uncaught() or _hooks.status
    if status and _core_comes_too_late():
        _abort(status)


def _uncaught() -> int:
    """The status that an uncaught exception ends the program with, 0 if there is none.

    Shells and test runners leave exceptions in the same place that they have caught: the
    tracebacks of those do not begin at the bottom of the program.
    """
    traceback = getattr(sys, "last_traceback", None)
    interactive = sys.flags.interactive or hasattr(sys, "ps1")  # goes on after an exception
    if traceback is None or interactive:
        return 0
    bottom = traceback.tb_frame
    program = bottom.f_globals.get("__name__") in ("__main__", "runpy")  # runpy: python -m
    if bottom.f_back is not None or not program:
        return 0
    return 130 if isinstance(sys.last_value, KeyboardInterrupt) else 1


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _core_comes_too_late() -> bool:
    main = threading.main_thread()
    return _hooks.foreign or any(
        not thread.daemon and thread is not main for thread in threading.enumerate()
    )


def _abort(status: int) -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):  # closed, None, or something else's: never mind
            stream.flush()  # type: ignore[union-attr]
    for pipe in (1, 2):
        _wait_for_reader(pipe)
    with suppress(Error):  # a fork, or a core that is gone: then the exit goes its usual way
        _native.control("abort", status=status)


def _wait_for_reader(pipe: int) -> None:
    """Wait until the launcher has taken what was printed: it drops what it finds at an abort."""
    end = time.monotonic() + _MOST_FOR_READER
    with suppress(OSError, ImportError):  # closed; not on Linux
        import fcntl
        import termios

        unread = array.array("i", [0])
        while stat.S_ISFIFO(os.fstat(pipe).st_mode) and time.monotonic() < end:
            fcntl.ioctl(pipe, termios.FIONREAD, unread)
            if not unread[0]:
                return
            time.sleep(0.001)
