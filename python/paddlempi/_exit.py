"""The two ways out that the core cannot see: a hook for each.

The core itself watches the exit status (``on_exit``) and ends the job with
``MPI_Abort`` where it is not 0. It comes too late in two cases, in which the other
ranks would wait for ever:

* a non-daemon thread is alive: the interpreter joins it before it exits;
* somebody else, mpi4py, owns MPI: it finalizes before ``exit`` is called.

So an uncaught exception is met in ``sys.excepthook``, and the status given to
``sys.exit`` is noted and looked at when the interpreter begins to shut down. A
library call that succeeds after ``sys.exit`` shows that somebody caught the
SystemExit: the note is thrown away. ``raise SystemExit(n)`` is not seen.
"""

from __future__ import annotations

import atexit
import importlib
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, NoReturn

from . import _native
from .errors import Error

__all__ = ["install", "mpi_is_foreign", "uninstall"]


class _Hooks:
    """What is in place of Python's own, between init and destroy."""

    def __init__(self) -> None:
        self.installed = False
        self.registered = False
        self.foreign = False
        self.status = 0  # of the sys.exit under way, 0 if there is none
        self.excepthook = sys.excepthook
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
    _hooks.excepthook, _hooks.exit = sys.excepthook, sys.exit
    sys.excepthook, sys.exit = _excepthook, _exit
    _hooks.installed = True
    if not _hooks.registered:
        _hooks.registered = True
        # Callbacks of the threading module come last in, first out, before the
        # threads are joined. An executor's joins its workers: ours has to be later.
        importlib.import_module("concurrent.futures.thread")
        register = getattr(threading, "_register_atexit", atexit.register)
        register(_at_shutdown)


def uninstall() -> None:
    """Give Python its own back, unless somebody has put another hook on top of ours."""
    if not _hooks.installed:
        return
    if sys.excepthook is _excepthook:
        sys.excepthook = _hooks.excepthook
    if sys.exit is _exit:
        sys.exit = _hooks.exit
    _forget()
    _hooks.installed = False


def _excepthook(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    _hooks.excepthook(kind, error, traceback)
    # An interactive interpreter goes on after the exception.
    interactive = sys.flags.interactive or hasattr(sys, "ps1")
    if _hooks.installed and not interactive and _in_main_thread() and _core_comes_too_late():
        _abort(130 if issubclass(kind, KeyboardInterrupt) else 1)


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


def _submit_and_forget(*arguments: Any) -> Any:
    answer = _hooks.submit(*arguments)
    _forget()
    return answer


def _at_shutdown() -> None:
    if _hooks.installed and _hooks.status and _core_comes_too_late():
        _abort(_hooks.status)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _core_comes_too_late() -> bool:
    main = threading.main_thread()
    return _hooks.foreign or any(
        not thread.daemon and thread is not main for thread in threading.enumerate()
    )


def _abort(status: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or None: never mind
            stream.flush()
    with suppress(Error):  # a fork, or a core that is gone: then the exit goes its usual way
        _native.control("abort", status=status)
