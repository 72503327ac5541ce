"""Futures of works, completed by one daemon thread.

The thread is started by the first ``get_future`` and sleeps in the core without
the GIL. It runs the callbacks too, in the order in which the works ended. A callback may
itself ask for the future of a work and wait for it (some of DDP's hooks do), which that
thread cannot complete meanwhile: the first time this happens, one thread more begins to
listen to the core, and every level of callbacks gets a thread of its own.
"""

from __future__ import annotations

import concurrent.futures
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from . import _native
from .errors import Error, GroupDestroyedError
from .group import at_destroy

__all__ = ["Future", "OnDevice", "WithFuture", "of"]


class OnDevice(Protocol):
    """What an operation has left queued on a device (``work.Tail``)."""

    def order(self) -> None: ...


class WithFuture(Protocol):
    """A work, as far as its future needs it (``work.WorkMethods``)."""

    _op: Any
    _future: Future | None

    def _value(self) -> list[Any]: ...

    def _end_on_device(self) -> OnDevice: ...


class Future(concurrent.futures.Future["list[Any]"]):
    """A ``concurrent.futures.Future`` with the names of ``torch.futures.Future`` too.

    Its value is the list of the tensors written to. It cannot be cancelled. It is done when the
    last copy or kernel of an operation on device tensors is queued: who takes the value, a callback
    too, has the stream that is current in its thread wait for that. What a callback itself queues
    is not waited for by others.
    """

    _tail: OnDevice | None = None

    def result(self, timeout: float | None = None) -> list[Any]:
        """The value, waited for up to ``timeout`` seconds."""
        value = super().result(timeout)
        if self._tail is not None:
            self._tail.order()
        return value

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
_thread: threading.Thread | None = None
"""Who listens to the core."""

_Ended = queue.SimpleQueue["WithFuture | None"]

_levels: list[_Ended] = []
"""What has ended, for the thread of each level; empty while the listener serves level 0."""


class _Here(threading.local):
    """In a callback of level n, n + 1; elsewhere 0."""

    level = 0


_here = _Here()


def of(work: WithFuture) -> Future:
    """The future of a work, always the same one."""
    global _thread
    with _lock:
        if work._future is not None:
            return work._future
        future = work._future = Future()
        level = _here.level
        if told := work._op.notify((work, level)):
            if level and not _levels:
                # The listener is this thread, in a callback. From its return it serves level 0.
                _levels.append(queue.SimpleQueue())
                _thread = None
            while level >= len(_levels) > 0:
                ended: _Ended = queue.SimpleQueue()
                _levels.append(ended)
                _begin(_serve, ended, len(_levels) - 1)
            if _thread is None or not _thread.is_alive():
                _thread = _begin(_complete_all)
    if not told:
        _complete(work)
    return future


def _complete(work: WithFuture) -> None:
    with _lock:
        future = work._future
        # Running is the mark that somebody has begun to complete it.
        if future is None or future.done() or future.running():
            return
        future.set_running_or_notify_cancel()
    try:
        tensors = work._value()  # the listener's stream is not to wait: it may be everybody's
    except BaseException as error:
        future.set_exception(error)
    else:
        if work._op.device:
            future._tail = work._end_on_device()
        future.set_result(tensors)


def _begin(target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, name="paddlempi-futures", daemon=True)
    thread.start()
    return thread


def _complete_all() -> None:
    """The listener: it outlives the library's being destroyed, to serve the next init."""
    global _thread
    try:
        while ended := _native.core().next_completions():
            for work, level in ended:
                if _levels:
                    _levels[level].put(work)
                else:
                    _here.level = 1
                    _complete(work)
                    _here.level = 0
            del work, ended  # they would live on until the next ones
            with _lock:
                replaced = _levels and _thread is not threading.current_thread()
                own = _levels[0] if replaced else None
            if own is not None:
                _serve(own, 0)
                return
    except Error:
        pass  # a core that has failed: nothing more will be completed
    with _lock:
        _thread = None
        for ended in _levels:
            ended.put(None)
        _levels.clear()


def _serve(ended: _Ended, level: int) -> None:
    """Complete the works of a level, until the listener ends."""
    _here.level = level + 1
    while work := ended.get():
        _complete(work)
        del work


def _abandon() -> None:
    """The library was destroyed: tell those who still wait."""
    for work, _ in _native.core().awaited() if _native.loaded() else ():
        future = work._future
        if future is not None and not future.done():
            future.set_exception(
                GroupDestroyedError("the process group was destroyed before the operation ended")
            )


at_destroy(_abandon)
