"""Futures of works, completed by one daemon thread.

The thread is started by the first ``get_future`` and sleeps in the core without
the GIL.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

from . import _native
from .errors import Error, GroupDestroyedError
from .group import at_destroy
from .work import Work, reap

__all__ = ["Future", "of"]


class Future(concurrent.futures.Future["list[Any]"]):
    """A ``concurrent.futures.Future`` with the names of ``torch.futures.Future`` too.

    Its value is the list of the tensors written to. It cannot be cancelled.
    """

    def wait(self) -> list[Any]:
        """Wait for the end; the value, or raises what the operation ended with."""
        return self.result()

    def value(self) -> list[Any]:
        """The value of a future that is done.

        Raises:
            TimeoutError: it is not.
        """
        return self.result(timeout=0)

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """A future of ``callback(self)``, which runs as soon as this one is done."""
        after = Future()

        def run(_: object) -> None:
            try:
                after.set_result(callback(self))
            except BaseException as error:  # whatever it is belongs to whoever asks for the value
                after.set_exception(error)

        self.add_done_callback(run)
        return after

    def cancel(self) -> bool:
        """False: an operation that other ranks take part in cannot be taken back."""
        return False


_lock = threading.Lock()
_waiting: dict[int, Work] = {}
_thread: threading.Thread | None = None


def of(work: Work) -> Future:
    """The future of a work, always the same one."""
    global _thread
    with _lock:
        if work._future is not None:
            return work._future
        future = work._future = Future()
        if not work._done:
            core = _native.core()
            core.notify(work._handle)
            _waiting[work._handle] = work
            if _thread is None or not _thread.is_alive():
                _thread = threading.Thread(
                    target=_complete_all, name="paddlempi-futures", daemon=True
                )
                _thread.start()
    if work.is_completed():  # an operation that ended before notify tells nobody else
        _complete(work)
    return future


def _complete(work: Work) -> None:
    with _lock:
        _waiting.pop(work._handle, None)
        future = work._future
        # Running is the mark that somebody has begun to complete it.
        if future is None or future.done() or future.running():
            return
        future.set_running_or_notify_cancel()
    try:
        tensors = work.result()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(tensors)


def _complete_all() -> None:
    """The thread: it outlives the library's being destroyed, to serve the next init."""
    global _thread
    try:
        while handle := _native.core().next_completion(-1.0):
            work = _waiting.get(handle)
            if work is not None:
                _complete(work)
            reap()
    except Error:
        pass  # a core that has failed: nothing more will be completed
    with _lock:
        _thread = None


def _abandon() -> None:
    """The library was destroyed: tell those who still wait."""
    with _lock:
        left = [work._future for work in _waiting.values()]
        _waiting.clear()
    for future in left:
        if future is not None and not future.done():
            future.set_exception(
                GroupDestroyedError("the process group was destroyed before the operation ended")
            )


at_destroy(_abandon)
