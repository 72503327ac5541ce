"""Daemon threads that make calls of the program or of a framework, and the end of Python.

Once Python ends, it ends every other thread that asks for the GIL. Before Python 3.14 it does so
with ``pthread_exit``, which unwinds the thread's stack. If a frame of C++ lies there, the whole
process aborts ("terminate called without an active exception"). torch, for instance, drops the GIL
while it completes a future, and calls the functions of ``then`` from C++.

So a daemon thread of this package says when it waits for work, and only there Python may end it. A
callback of ``atexit`` waits until all such threads do, and from then on none begins a call.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from . import _native

__all__ = ["MOST", "Daemon", "begin", "idle"]

MOST = 2.0
"""For how many seconds the end of Python waits for calls that daemon threads have under way."""

_HELD = 0.1
"""For how many seconds after our callback no thread begins a call, unless Python ends earlier.

After that the program has callbacks of ``atexit`` that run after ours, and they may wait for a
thread.
"""

_STEP = 0.0005

_T = TypeVar("_T")
_held_until = 0.0


class Daemon(threading.Thread):
    """A daemon thread that calls ``target(*args)``. In it :func:`idle` waits for work."""

    busy = False
    """Whether a call is under way, so that Python must not end yet."""

    def __init__(self, target: Callable[..., None], name: str, args: tuple[object, ...] = ()):
        super().__init__(target=target, args=args, name=name, daemon=True)


def idle(wait: Callable[[], _T]) -> _T:
    """Return what ``wait()`` returns, in a :class:`Daemon`. Python may end during the wait."""
    _daemon().busy = False
    got = wait()
    begin()
    return got


def begin() -> None:
    """Note that this :class:`Daemon` has a call under way. While Python ends it does not return."""
    daemon = _daemon()
    daemon.busy = True
    # The other thread first sets _held_until and then looks at busy, so one of us sees the other.
    while time.monotonic() < _held_until:
        daemon.busy = False
        time.sleep(_STEP)
        daemon.busy = True


def _daemon() -> Daemon:
    daemon = threading.current_thread()
    assert isinstance(daemon, Daemon)
    return daemon


def _hold() -> bool:
    """Have no thread begin a call from now on. Return whether none is under way."""
    global _held_until
    _held_until = time.monotonic() + _HELD
    return not any(thread.busy for thread in threading.enumerate() if isinstance(thread, Daemon))


def _at_exit() -> None:
    global _held_until
    end = time.monotonic() + MOST
    with suppress(KeyboardInterrupt):
        while not _hold() and time.monotonic() < end:
            _held_until = 0.0  # what is under way may wait for a call of another thread
            time.sleep(_STEP)
    _hold()
    if _native.loaded():
        _native.core().ending(_HELD)
        with suppress(KeyboardInterrupt):
            time.sleep(_STEP)  # for threads of the program that have just come back from the core


# The callbacks of what is imported later, and of the program that uses it, run before this one.
atexit.register(_at_exit)
