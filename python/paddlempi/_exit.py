"""Abort the job in three cases of a failing exit that the core sees too late.

The core has a handler of ``on_exit``, which gets the exit status of the process and calls
``MPI_Abort`` if it is not 0. In three cases the handler runs too late, and the other ranks would
wait for ever:

* A non-daemon thread is alive. The interpreter joins it before the process exits.
* mpi4py has initialised MPI. It finalizes MPI before ``exit`` is called.
* A callback of ``atexit`` waits for the other ranks, as JAX's does.

So a callback finds out the status when the interpreter begins to shut down:

* After an uncaught exception Python leaves its traceback in ``sys.last_traceback``, and
  ``sys.excepthook`` has shown it by then. This module does not replace ``sys.excepthook``: torch
  replaces it too, keeps what the hooks below its own write, and shows that only after they have
  returned.
* ``sys.exit`` is replaced by a function that notes its status. The note is dropped if the program
  has caught the SystemExit: if an operation of the main thread succeeds afterwards; if the
  exception ends while a function of Python runs, because Python drops one that nobody catches after
  all functions have returned; or if the program keeps it. ``raise SystemExit(n)`` is not seen.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import os
import stat
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, NoReturn

from . import _marks, _native
from .errors import Error

__all__ = [
    "PREEMPTED",
    "fail",
    "failing",
    "install",
    "mpi_is_foreign",
    "tell_dead",
    "uninstall",
    "waits_at_shutdown",
]

PREEMPTED = 75
"""The exit status of a rank that has saved its work because the job was asked to end.

It is ``EX_TEMPFAIL`` of ``sysexits.h``. ``python -m paddlempi run`` does not count it as a failure.
All ranks end with it, so the core treats it as an end in order and does not abort the job.
"""

_MOST_FOR_READER = 1.0
"""For how many seconds an abort waits until the launcher has read a pipe."""


class _Mark:
    """Goes with the SystemExit of a ``sys.exit``, and sees how it ends."""

    __slots__ = ("__weakref__",)

    def __del__(self) -> None:
        hooks = _hooks
        if hooks is None or hooks.mark is None or hooks.mark() not in (None, self):
            return  # the interpreter is nearly gone; another sys.exit came after
        if sys._getframe().f_back is not None and not hooks.ends:
            _forget()


class _Hooks:
    """The state of the replaced functions. They are in place between init and destroy."""

    def __init__(self) -> None:
        self.installed = False
        self.registered = False  # the callback for the shutdown
        self.foreign = False  # mpi4py will finalize MPI
        self.waits = False  # a callback of atexit waits for the other ranks
        self.status = 0  # the status of a sys.exit that was not caught yet; 0: none
        self.cause: BaseException | None = None  # the exception that was handled at that sys.exit
        self.mark: weakref.ref[_Mark] | None = None  # of that sys.exit
        self.ends = False  # how an exception ends now says nothing
        self.exit = sys.exit  # the function that _exit replaces
        self.submit = _native.submit  # the function that _submit_and_forget replaces


_hooks = _Hooks()


def mpi_is_foreign() -> bool:
    """Whether MPI runs and mpi4py is imported, which then finalizes MPI at exit."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    return bool(mpi4py is not None and mpi4py.Is_initialized())


def install(foreign: bool) -> None:
    """Replace ``sys.exit`` and register the callback for the shutdown.

    Args:
        foreign: mpi4py will finalize MPI.
    """
    _hooks.foreign = foreign
    if _hooks.installed:
        return
    _hooks.exit, sys.exit = sys.exit, _exit
    _hooks.installed = True
    if not _hooks.registered:
        _hooks.registered = True
        # The threading module runs its callbacks before it joins threads, the latest registered
        # first. Those of executors join their workers, so ours has to be registered after them.
        importlib.import_module("concurrent.futures.thread")
        with suppress(ImportError):  # a Python without multiprocessing
            importlib.import_module("concurrent.futures.process")
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_at_shutdown)


def waits_at_shutdown() -> None:
    """Say that another library's callback of ``atexit`` waits for the other ranks."""
    _hooks.waits = True


def uninstall() -> None:
    """Put ``sys.exit`` back, unless another library has replaced it after us."""
    if not _hooks.installed:
        return
    if sys.exit is _exit:
        sys.exit = _hooks.exit
    _forget()
    _hooks.installed = False


def _exit(status: Any = None, /) -> NoReturn:
    noted = _hooks.installed and _in_main_thread() and _note(status)
    try:
        _hooks.exit(status)
    except SystemExit as error:
        if noted:
            mark = error.__dict__["_paddlempi_mark"] = _Mark()
            _hooks.mark = weakref.ref(mark)
        raise
    raise SystemExit(status)  # the replaced function is another library's and has returned


def _note(status: object) -> bool:
    _forget()
    code = 0 if status is None else status & 0xFF if isinstance(status, int) else 1
    if code:
        _hooks.status, _hooks.cause = code, sys.exc_info()[1]
        _hooks.submit, _native.submit = _native.submit, _submit_and_forget
    return code != 0


def _noted() -> int:
    """The status of a ``sys.exit`` that nobody has caught, when the interpreter shuts down."""
    if _hooks.status and _hooks.mark is not None and _hooks.mark() is not None:
        _hooks.ends = True
        gc.collect()  # one that nobody has caught may refer to itself, by way of its traceback
        _hooks.ends = False
        if _hooks.mark() is not None:
            _forget()
    return _hooks.status


def _forget() -> None:
    _hooks.status, _hooks.cause, _hooks.mark = 0, None, None
    if _native.submit is _submit_and_forget:
        _native.submit = _hooks.submit


def _submit_and_forget(*arguments: Any, **fields: Any) -> Any:
    answer = _hooks.submit(*arguments, **fields)
    if _in_main_thread():
        _forget()
    return answer


def _at_shutdown() -> None:
    status, noted = _uncaught(), _noted()
    error = sys.last_value if status else _hooks.cause
    if error is not None:
        _marks.raised(error)
    if not _hooks.installed:
        return
    status = status or noted
    if status:
        tell_dead()
    if status not in (0, PREEMPTED) and _core_comes_too_late():
        _abort(status)


def tell_dead() -> None:
    """Tell ``run`` which ranks of the world have died, as far as this one knows."""
    if _marks.file() is not None:
        with suppress(Error):  # after a failure of the core
            seen = _native.control("info")["liveness"] or {"dead": []}  # None: MPI was finalized
            _marks.dead([one["rank"] for one in seen["dead"]])


def fail(error: BaseException) -> None:
    """End this process, and with it the job, by an exception that a callback of ``atexit`` met.

    Python would show it, and end with the status 0 all the same.
    """
    sys.excepthook(type(error), error, error.__traceback__)
    _marks.raised(error)
    tell_dead()
    _abort(130 if isinstance(error, KeyboardInterrupt) else 1)


def failing() -> bool:
    """Whether this process ends with an uncaught exception or a ``sys.exit`` that says failure.

    For callbacks of ``atexit``. After a success, or in the middle of a program, it is False.
    """
    return (_uncaught() or _noted()) not in (0, PREEMPTED)


def _uncaught() -> int:
    """The exit status of an uncaught exception; 0 if there is none.

    Shells and test runners also set ``sys.last_traceback``, for exceptions that they have caught.
    The traceback of such an exception does not begin in the outermost frame of the program.
    """
    traceback = getattr(sys, "last_traceback", None)
    interactive = sys.flags.interactive or hasattr(sys, "ps1")  # exceptions do not end a shell
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
    return (
        _hooks.foreign
        or _hooks.waits
        or any(not thread.daemon and thread is not main for thread in threading.enumerate())
    )


def _abort(status: int) -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(Exception):  # it may be closed, None, or any object of the program
            stream.flush()  # type: ignore[union-attr]
    for pipe in (1, 2):
        _wait_for_reader(pipe)
    with suppress(Error):  # in a fork, or after a failure of the core, the process just exits
        _native.control("abort", status=status)


def _wait_for_reader(pipe: int) -> None:
    """Wait until the launcher has read a pipe. At an abort it drops what it has not read."""
    end = time.monotonic() + _MOST_FOR_READER
    with suppress(OSError, ImportError):  # the pipe is closed; the system is not Linux
        import fcntl
        import termios

        unread = array.array("i", [0])
        while stat.S_ISFIFO(os.fstat(pipe).st_mode) and time.monotonic() < end:
            fcntl.ioctl(pipe, termios.FIONREAD, unread)
            if not unread[0]:
                return
            time.sleep(0.001)
