"""Notices a thread that blocks while it has futures to complete.

A thread counts as blocked if it sleeps and has used no CPU for :data:`PATIENCE` seconds, unless it
waits in this package: an operation that it waits for has a deadline of its own.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from .. import _daemons

__all__ = ["Watched", "watch"]

PATIENCE = 2.0
_INTERVAL = 0.25
_PACKAGE = __name__.partition(".")[0]


class Watched:
    """What has futures to complete, in one thread: its length is their number."""

    def __init__(self) -> None:
        self._steps = 0
        self._served_by = (0, 0)  # the thread's number in Python and in the system
        self._seen: Any = None
        self._since = 0.0

    def __len__(self) -> int:
        raise NotImplementedError

    def leave(self) -> None:
        """Have another thread complete the futures."""
        raise NotImplementedError

    def serve_here(self) -> None:
        """Note that this thread completes the futures."""
        self._served_by = threading.get_ident(), threading.get_native_id()

    def is_served_by(self, ident: int) -> bool:
        """Whether the thread with this number completes the futures."""
        return self._served_by[0] == ident

    def step(self) -> None:
        """Note that something was completed."""
        self._steps += 1

    def is_blocked(self) -> bool:
        """Whether nothing has happened for so long that nothing will. Called again and again."""
        ident, native = self._served_by
        frame = sys._current_frames().get(ident)
        name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
        seen = (self._steps, native, _sleeping(native))
        now = time.monotonic()
        if seen != self._seen or seen[2] is None or name.partition(".")[0] == _PACKAGE:
            self._seen, self._since = seen, now
        return now - self._since >= PATIENCE


def _sleeping(native: int) -> tuple[str, str] | None:
    """Return the CPU time of a thread that sleeps or has ended; None if it runs."""
    try:
        with open(f"/proc/self/task/{native}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return ("ended", "")
    return None if fields[0] == "R" else (fields[11], fields[12])


_lock = threading.Lock()
_watched: set[Watched] = set()
_wanted = threading.Event()
_thread: threading.Thread | None = None


def watch(what: Watched) -> None:
    """Watch something until its length is 0."""
    global _thread
    with _lock:
        _watched.add(what)
        if _thread is None or not _thread.is_alive():
            _thread = _daemons.Daemon(_run, "paddlempi-watch")
            _thread.start()
    _wanted.set()


def _wait() -> None:
    _wanted.wait()
    time.sleep(_INTERVAL)


def _run() -> None:
    while True:
        _daemons.idle(_wait)
        with _lock:
            for what in [what for what in _watched if not len(what)]:
                what._seen = None
                _watched.discard(what)
            if not _watched:
                _wanted.clear()
            watched = list(_watched)
        for what in watched:
            if what.is_blocked():
                what._seen = None
                what.leave()
        del watched
