"""Futures of works, which a daemon thread completes.

The first ``get_future`` starts the thread. It sleeps in the core without the GIL, completes the
futures of works that have ended, and runs their callbacks, in the order in which the works ended.

A callback may itself get the future of a work and wait for it; some of DDP's hooks do. The thread
that runs the callback cannot complete that future. So futures have levels: a future that is made
outside callbacks has level 0, and one that is made in a callback of level n has level n + 1. When a
callback first makes a future of a work that is under way, a new thread takes over listening to the
core. From then on every level has a thread, which completes the futures of its level.

A thread that is going to wait anyway, such as that of a backward, does this itself (:func:`end`).
That spares two switches between threads, and no other thread takes its core meanwhile. The thread
of futures does it only if no thread comes.
"""

from __future__ import annotations

import concurrent.futures
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from . import _daemons, _native
from .errors import Error, GroupDestroyedError
from .group import at_destroy

__all__ = ["Ending", "Future", "OnDevice", "WithFuture", "end", "of", "when_over"]


class OnDevice(Protocol):
    """The part of ``work.Tail`` that a future needs."""

    def order(self) -> None: ...


class WithFuture(Protocol):
    """The part of ``work.WorkMethods`` that a future needs."""

    _op: Any
    _future: Future | None

    def _value(self) -> list[Any]: ...

    def _end_on_device(self) -> OnDevice: ...


class Future(concurrent.futures.Future["list[Any]"]):
    """A ``concurrent.futures.Future`` that also has the methods of ``torch.futures.Future``.

    Its value is the list of the tensors written to. It cannot be cancelled.

    With device tensors the future is done when the last copy or kernel of the operation is queued.
    Taking the value makes the stream that is current in the calling thread wait for that copy or
    kernel; this holds in callbacks too. No stream waits for what a callback itself queues.
    """

    _tail: OnDevice | None = None

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait for the value up to ``timeout`` seconds (None: for ever) and return it.

        Raises:
            TimeoutError: the future is not done yet.
            Error: what the operation ended with.
        """
        value = super().result(timeout)
        if self._tail is not None:
            self._tail.order()
        return value

    def wait(self) -> list[Any]:
        """Wait for the value and return it, or raise what the operation ended with."""
        return self.result()

    def value(self) -> list[Any]:
        """Return the value of a future that is done.

        Raises:
            TimeoutError: the future is not done.
        """
        return self.result(timeout=0)

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        """Have ``fn(self)`` called when this future is done: at once if it is.

        What it raises in the thread that completes the future is logged by the logger
        ``concurrent.futures``, also SystemExit. Only a KeyboardInterrupt in the main thread goes
        on, to the call that waits there.
        """
        adds = threading.get_ident()

        def run(future: Any) -> None:
            try:
                fn(future)
            except Exception:
                raise  # to concurrent.futures, which logs it
            except BaseException as error:
                if threading.get_ident() == adds:
                    raise  # to the caller of add_done_callback, since the future was done
                main = threading.current_thread() is threading.main_thread()
                if main and isinstance(error, KeyboardInterrupt):
                    raise
                _LOG.error("exception in a callback of %r", self, exc_info=error)

        super().add_done_callback(run)
        adds = 0

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """Return a future of ``callback(self)``, which runs when this future is done."""
        chained = Future()

        def run(_: object) -> None:
            try:
                chained.set_result(callback(self))
            except BaseException as error:  # for the caller that asks for the value
                chained.set_exception(error)

        self.add_done_callback(run)
        return chained

    def cancel(self) -> bool:
        """Return False: one rank cannot take back an operation of several."""
        return False


_LOG = logging.getLogger("concurrent.futures")
_lock = threading.Lock()
_thread: threading.Thread | None = None
"""The listener: the thread that asks the core which works have ended."""

_Ended = queue.SimpleQueue["Ending | None"]

_levels: list[_Ended] = []
"""For each level what is to be called, until the thread of the level calls it; None ends the
thread. The list is empty while the listener itself completes futures, all of level 0."""


class _Local(threading.local):
    """The level of the futures that this thread makes: n + 1 in a callback of level n, else 0."""

    level = 0


_local = _Local()


class Ending(Protocol):
    """What is called once when an operation has ended: one of the two methods."""

    def __call__(self) -> None: ...

    def abandon(self, error: Error) -> None:
        """The library was destroyed before the operation ended."""


class _Completion:
    """Completes the future of a work."""

    __slots__ = ("_work",)

    def __init__(self, work: WithFuture) -> None:
        self._work = work

    def __call__(self) -> None:
        _complete(self._work)

    def abandon(self, error: Error) -> None:
        future = self._work._future
        if future is not None and not future.done():
            future.set_exception(error)


def of(work: WithFuture) -> Future:
    """Return the future of a work, in every call the same one."""
    with _lock:
        if work._future is not None:
            return work._future
        future = work._future = Future()
        under_way = _notify(work._op, _Completion(work), False)
    if not under_way:
        _complete(work)
    return future


def when_over(operation: Any, ending: Ending, awaited: bool = False) -> bool:
    """Have ``ending`` called in the thread of futures when an operation has ended.

    Args:
        operation: the core's ``_core.Operation``.
        ending: what to call.
        awaited: a thread is going to call :func:`end`, which calls ``ending`` in that thread. The
            thread of futures does it if no thread has waited in the core for 2 ms.

    Returns:
        False if the operation is over: then the caller calls ``ending``.
    """
    with _lock:
        return _notify(operation, ending, awaited)


def _notify(operation: Any, ending: Ending, awaited: bool) -> bool:
    """Do as :func:`when_over`, under the lock."""
    global _thread
    level = _local.level
    under_way: bool = operation.notify((ending, level), awaited)
    if under_way:
        if level and not _levels:
            # This thread is the listener and runs a callback. When the callback returns, the
            # thread serves level 0, and the thread started below is the listener.
            _levels.append(queue.SimpleQueue())
            _thread = None
        while level >= len(_levels) > 0:
            ended: _Ended = queue.SimpleQueue()
            _levels.append(ended)
            _begin(_serve, ended, len(_levels) - 1)
        if _thread is None or not _thread.is_alive():
            _thread = _begin(_complete_all)
    return under_way


def end(operation: Any, limit: float) -> bool:
    """Wait for an operation, and call its endings in this thread if they are ``awaited``.

    Does nothing if they are not, or if the thread of futures has them.

    Args:
        operation: the core's ``_core.Operation``.
        limit: seconds. Below 0: no limit.

    Returns:
        False if the limit ran out: the thread of futures then calls the endings.

    Raises:
        KeyboardInterrupt: Ctrl-C during the wait. Likewise.
    """
    contexts = operation.take_contexts()
    if not contexts:
        return True
    try:
        operation.wait(limit)
    except BaseException as error:
        if not operation.done:
            for context in contexts:
                if not operation.notify(context):
                    context[0]()
            if isinstance(error, Error):
                return False
            raise
    for ending, _ in contexts:
        ending()
    return True


def _complete(work: WithFuture) -> None:
    with _lock:
        future = work._future
        # A future is running once a thread has begun to complete it.
        if future is None or future.done() or future.running():
            return
        future.set_running_or_notify_cancel()
    try:
        # No stream waits here: this thread's may be the default stream, which others use.
        tensors = work._value()
    except BaseException as error:
        future.set_exception(error)
    else:
        if work._op.device:
            future._tail = work._end_on_device()
        future.set_result(tensors)


def _begin(target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = _daemons.Daemon(target, "paddlempi-futures", arguments)
    thread.start()
    return thread


def _complete_all() -> None:
    """Complete futures, or pass works on to the threads of their levels, as the core reports ends.

    This is the listener. It goes on after ``destroy_process_group``, for the next init.
    """
    global _thread
    try:
        while ended := _daemons.idle(_next_ended):
            for ending, level in ended:
                if _levels:
                    _levels[level].put(ending)
                else:
                    _local.level = 1
                    ending()
                    _local.level = 0
            del ending, ended  # they would be kept alive until the next end
            with _lock:
                replaced = _levels and _thread is not threading.current_thread()
                level_0 = _levels[0] if replaced else None
            if level_0 is not None:
                _serve(level_0, 0)
                return
    except Error:
        pass  # the core has failed and will report nothing more
    with _lock:
        _thread = None
        for ended in _levels:
            ended.put(None)
        _levels.clear()


def _next_ended() -> Any:
    # The core drops the tensors of works that have ended, which is a call of C++, after begin.
    return _native.core().next_completions(-1.0, _daemons.begin)


def _serve(ended: _Ended, level: int) -> None:
    """Complete the futures of one level, until the listener ends."""
    _local.level = level + 1
    while ending := _daemons.idle(ended.get):
        ending()
        del ending


def _abandon() -> None:
    """Fail the futures that are not done, because the library was destroyed."""
    for ending, _ in _native.core().awaited() if _native.loaded() else ():
        ending.abandon(
            GroupDestroyedError("the process group was destroyed before the operation ended")
        )


at_destroy(_abandon)
