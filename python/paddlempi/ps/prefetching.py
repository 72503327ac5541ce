"""Rows that are pulled while the program computes."""

from __future__ import annotations

import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from .. import _daemons

__all__ = ["Prefetched", "finish", "start"]


class Prefetched:
    """The rows of ``ids``, which a thread pulls.

    Attributes:
        ids: what :meth:`paddlempi.ps.RemoteTable.prefetch` was given.
    """

    def __init__(self, ids: Any, pull: Callable[[], Any]) -> None:
        self.ids = ids
        self._pull = pull
        self._rows: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def wait(self) -> Any:
        """Wait for the rows and return them, or raise what the pull has raised."""
        return self._rows.result()

    def done(self) -> bool:
        """Whether the rows are there, or the pull has failed."""
        return self._rows.done()

    def _run(self) -> None:
        try:
            self._rows.set_result(self._pull())
        except BaseException as error:  # for the caller that waits
            self._rows.set_exception(error)


class _Worker:
    """A thread that pulls, in the order of the calls."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.waiting: queue.SimpleQueue[Prefetched] = queue.SimpleQueue()
        self.last: Prefetched | None = None
        _daemons.Daemon(self._work, "paddlempi-prefetch").start()

    def _work(self) -> None:
        while True:
            _daemons.idle(self.waiting.get)._run()


_lock = threading.RLock()  # a signal handler may interrupt who holds it
_worker: _Worker | None = None


def start(ids: Any, pull: Callable[[], Any]) -> Prefetched:
    """Have the thread call ``pull()``. A fork has no such thread, and calls it at once."""
    global _worker
    asked = Prefetched(ids, pull)
    with _lock:
        if _worker is None:
            _worker = _Worker()
        if _worker.pid != os.getpid():
            asked._run()
        else:
            _worker.last = asked
            _worker.waiting.put(asked)
    return asked


def finish() -> None:
    """Wait until all pulls that were started have ended. Their errors stay with them."""
    worker = _worker
    if worker is not None and worker.last is not None and worker.pid == os.getpid():
        concurrent.futures.wait([worker.last._rows])
