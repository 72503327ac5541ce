"""An operation under way: what ``async_op=True``, ``isend`` and ``irecv`` return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from . import _native
from ._buffer import bump, consumer, record
from ._ops import ASYNC
from .errors import CudaError, Error, NotReadyError
from .group import ProcessGroup, to_seconds

if TYPE_CHECKING:
    from .future import Future

__all__ = ["Operation", "Tail", "Work", "run", "start"]

_making = threading.Lock()
"""Held while a work gets its tail: it has one, whichever threads wait for it."""


def _release(
    handle: int,
    # Bound now, as this function is where it is called: at the interpreter's end the module's
    # names may be gone.
    native: Any = _native,
    suppress: Any = suppress,
    errors: tuple[type[BaseException], ...] = (Error, AttributeError, TypeError),
) -> None:
    """Forget a work. The core keeps its tensors for as long as MPI or the device uses them."""
    with suppress(errors):  # a fork, or destroyed since: nothing is left to free
        native.core().release(handle)


class Tail:
    """What an operation on device tensors leaves queued on the device when the host is done.

    Invariant: the handle is the core's until :meth:`__del__`; ``tensors`` is None once they may
    be freed, ``consumer`` once the device is known to be done.

    Thread-safety: all methods may be called from any thread.
    """

    __slots__ = ("consumer", "handle", "tensors")

    def __init__(self, handle: int, tensors: object) -> None:
        self.handle = handle
        self.tensors = tensors
        self.consumer: Callable[[], int] | None = consumer(tensors)

    def order(self) -> None:
        """Make the stream that is current in this thread wait for it; the host does not.

        Raises:
            CudaError: the device failed.
        """
        current = self.consumer
        if current is None:
            return
        _native.core().order(self.handle, current())
        tensors = self.tensors
        if tensors is not None and record(tensors):
            self.tensors = None
            _native.core().let_go(self.handle)

    def end(self) -> None:
        """The device is done."""
        self.consumer = self.tensors = None
        _native.core().let_go(self.handle)

    def __del__(self, release: Callable[[int], None] = _release) -> None:
        release(self.handle)


class Operation:
    """What a work does, whichever object it is: :class:`Work`, or a work of a framework's.

    Invariant: ``_handle`` is the core's until :meth:`__del__`, or ``_tail``'s from when there is
    one; ``_done`` is set last, once ``_error``, ``_source`` and ``_tail`` tell how it ended.
    """

    if not TYPE_CHECKING:
        __slots__ = ()
    else:
        _handle: int  # 0: it ended while it was submitted
        _name: str
        _tensors: object  # kept alive until the end
        _output: Any  # what was written to: a tensor, a sequence of them, or None
        _ranks: Sequence[int] | None  # the group's, to tell global ranks; None: ranks of the group
        _error: BaseException | None
        _source: int | None
        _future: Future | None
        _tail: Tail | None  # of device tensors
        _done: bool  # for the host

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Wait until the operation has ended.

        With tensors in device memory: until its last copy or kernel is queued there. The stream
        that is current in this thread then waits for it, and the host does not.

        Args:
            timeout: how long, a timedelta or seconds. None: until the operation
                ends or its group's own deadline breaks it.

        Returns:
            True.

        Raises:
            NotReadyError: ``timeout`` ran out. The operation goes on; wait again.
            Error: what the operation ended with.
            KeyboardInterrupt: Ctrl-C during the wait.
        """
        if not self._done:
            self._settle(-1.0 if timeout is None else to_seconds(timeout, "Work.wait"))
        if self._error is not None:
            raise self._error
        if self._tail is not None:
            self._tail.order()
        return True

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not, on its device too. Does not wait."""
        tail = self._tail
        if self._done and (tail is None or tail.consumer is None):
            return True
        failed = None
        try:
            if not _native.core().test(self._handle):
                return False
        except CudaError as error:  # the device is lost: nothing will happen there any more
            failed = error
        if not self._done:
            try:
                self._settle(0.0)
            except NotReadyError:
                return False
        if self._tail is not None:
            self._tail.end()
        if failed is not None and self._error is None:
            self._error = failed
        return True

    def is_success(self) -> bool:
        """Whether the operation has ended without an error. Does not wait."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """The error that the operation ended with; None if it did not or is under way."""
        return self._error if self.is_completed() else None

    def source_rank(self) -> int:
        """The global rank that a receive was served by. Waits for its end.

        Raises:
            ArgumentError: the operation receives from no single rank.
        """
        self.wait()
        if self._source is None:
            from .errors import ArgumentError

            raise ArgumentError(f"source_rank: {self._name} has no source")
        return self._source

    def result(self) -> list[Any]:
        """The tensors written to, in the order in which they were given. As :meth:`wait`."""
        self.wait()
        return self._written()

    def _value(self) -> list[Any]:
        """As :meth:`result`, but no stream waits for the device."""
        if not self._done:
            self._settle(-1.0)
        if self._error is not None:
            raise self._error
        return self._written()

    def _written(self) -> list[Any]:
        output = self._output
        if output is None:
            return []
        return list(output) if isinstance(output, (list, tuple)) else [output]

    def get_future(self) -> Future:
        """A future of :meth:`result`, completed without anybody's waiting.

        The first call starts the one thread this library has; functions given to
        ``then`` and ``add_done_callback`` run in it.
        """
        from . import future

        return future.of(self)

    def __await__(self) -> Generator[Any, None, list[Any]]:
        if not (self._done or self.is_completed()):
            import asyncio

            from . import future

            yield from asyncio.wrap_future(future.of(self)).__await__()
        return self.result()

    def __repr__(self) -> str:
        state = "under way" if not self._done else "failed" if self._error else "done"
        return f"<Work {self._name}, {state}>"

    def _settle(self, seconds: float) -> None:
        """Wait, note how the operation ended, let go of its tensors."""
        try:
            answer = _native.core().wait(self._handle, seconds)
        except NotReadyError:
            raise
        except Error as error:
            self._error = error
        else:
            if answer is not None:
                source, _, _, device = answer
                ranks = self._ranks
                if source >= 0:
                    self._source = source if ranks is None else ranks[source]
                if device:
                    with _making:
                        if self._tail is None:
                            self._tail = Tail(self._handle, self._tensors)
        if not self._done:
            self._end()
        self._tensors = None
        self._done = True

    def _end(self) -> None:
        """What a kind of work has to do once at the end, well or not."""

    def __del__(self, release: Callable[[int], None] = _release) -> None:
        handle = getattr(self, "_handle", 0)
        if handle and self._tail is None:
            release(handle)


class Work(Operation):
    """One operation under way. It keeps its tensors alive until the operation ends.

    The tensors must not be written to (those received into not even read) before
    :meth:`wait` has returned; on a device, by other streams than the one that was current then.
    Dropping a Work neither waits nor cancels.

    Thread-safety: all methods may be called from any thread. ``await work`` gives
    what :meth:`result` gives.

    Source: :class:`torch.distributed.Work`.
    """

    __slots__ = (
        "__weakref__",
        "_done",
        "_error",
        "_future",
        "_handle",
        "_name",
        "_output",
        "_ranks",
        "_source",
        "_tail",
        "_tensors",
    )

    def __init__(
        self, handle: int, name: str, tensors: object, output: object, group: ProcessGroup | None
    ) -> None:
        self._handle = handle
        self._name = name
        self._tensors = tensors
        self._output = output
        self._ranks = group._ranks if group is not None else None
        self._error: BaseException | None = None
        self._source: int | None = None
        self._future: Future | None = None
        self._tail: Tail | None = None
        self._done = handle == 0
        if self._done:
            self._tensors = None

    def _end(self) -> None:
        if self._output is not None:
            bump(self._output)


def start(
    name: str,
    group: ProcessGroup | None,
    tensors: object,
    written: object,
    submit: Callable[[int], int],
) -> Work:
    """Start an operation and return its work; ``submit(ASYNC)`` returns the handle.

    ``tensors`` is kept alive until the end, ``written`` is what is written to of them.
    """
    handle = submit(ASYNC)
    if written is not None:
        bump(written)
    return Work(handle, name, tensors, written, group)


def run(written: object, submit: Callable[[int], Any]) -> Any:
    """Carry out an operation; what ``submit(0)`` returns. Arguments as for :func:`start`."""
    answer = submit(0)
    if written is not None:
        bump(written)
    return answer
