"""An operation under way: what ``async_op=True``, ``isend`` and ``irecv`` return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ._buffer import consumer, record
from .errors import ArgumentError
from .group import ProcessGroup, to_seconds

if TYPE_CHECKING:
    from .future import Future

__all__ = ["Tail", "Work", "WorkMethods"]

_making = threading.Lock()
"""Held while a work gets its tail: it has one, whichever threads wait for it."""


class Tail:
    """What an operation on device tensors leaves queued on the device when the host is done.

    Invariant: ``tensors`` is None once they may be freed, ``consumer`` once the device is known
    to be done.

    Thread-safety: all methods may be called from any thread.
    """

    __slots__ = ("consumer", "operation", "tensors")

    def __init__(self, operation: Any) -> None:
        self.operation = operation
        self.tensors: object = operation.tensors
        self.consumer: Callable[[], int] | None = consumer(self.tensors)

    def order(self) -> None:
        """Make the stream that is current in this thread wait for it; the host does not.

        Raises:
            CudaError: the device failed.
        """
        current = self.consumer
        if current is None:
            return
        self.operation.order(current())
        tensors = self.tensors
        if tensors is not None and record(tensors):
            self.tensors = None
            self.operation.let_go()

    def end(self) -> None:
        """The device is done."""
        self.consumer = self.tensors = None


class WorkMethods:
    """What a work does, whichever object it is: :class:`Work`, or a work of a framework's.

    The operation is the core's (``_core.Operation``): it keeps the tensors and knows how it ended.
    """

    if not TYPE_CHECKING:
        __slots__ = ()
    else:
        _op: Any
        _name: str
        _output: Any  # what was written to: a tensor, a sequence of them, or None
        _ranks: Sequence[int] | None  # the group's, to tell global ranks; None: ranks of the group
        _future: Future | None
        _tail: Tail | None  # of device tensors

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
        operation = self._op
        operation.wait(-1.0 if timeout is None else to_seconds(timeout, "Work.wait"))
        if operation.device:
            self._end_on_device().order()
        return True

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not, on its device too. Does not wait."""
        if not self._op.test():
            return False
        if self._tail is not None:
            self._tail.end()
        return True

    def is_success(self) -> bool:
        """Whether the operation has ended without an error. Does not wait."""
        return self.is_completed() and self._op.error is None

    def exception(self) -> BaseException | None:
        """The error that the operation ended with; None if it did not or is under way."""
        error: BaseException | None = self._op.error if self.is_completed() else None
        return error

    def source_rank(self) -> int:
        """The global rank that a receive was served by. Waits for its end.

        Raises:
            ArgumentError: the operation receives from no single rank.
        """
        self.wait()
        source: int = self._op.source
        if source < 0:
            raise ArgumentError(f"source_rank: {self._name} has no source")
        return source if self._ranks is None else self._ranks[source]

    def result(self) -> list[Any]:
        """The tensors written to, in the order in which they were given. As :meth:`wait`."""
        self.wait()
        return self._written()

    def _value(self) -> list[Any]:
        """As :meth:`result`, but no stream waits for the device."""
        self._op.wait()
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
        if not (self._op.done or self.is_completed()):
            import asyncio

            from . import future

            yield from asyncio.wrap_future(future.of(self)).__await__()
        return self.result()

    def __repr__(self) -> str:
        state = "under way" if not self._op.done else "failed" if self._op.error else "done"
        return f"<Work {self._name}, {state}>"

    def _end_on_device(self) -> Tail:
        """What it left on its device. It has ended well for the host."""
        with _making:
            if self._tail is None:
                self._tail = Tail(self._op)
            return self._tail


class Work(WorkMethods):
    """One operation under way. It keeps its tensors alive until the operation ends.

    The tensors must not be written to (those received into not even read) before
    :meth:`wait` has returned; on a device, by other streams than the one that was current then.
    Dropping a Work neither waits nor cancels.

    Thread-safety: all methods may be called from any thread. ``await work`` gives
    what :meth:`result` gives.

    Source: :class:`torch.distributed.Work`.
    """

    __slots__ = ("__weakref__", "_future", "_name", "_op", "_output", "_ranks", "_tail")

    def __init__(
        self, operation: Any, name: str, output: object, group: ProcessGroup | None
    ) -> None:
        self._op = operation
        self._name = name
        self._output = output
        self._ranks = group._ranks if group is not None else None
        self._future: Future | None = None
        self._tail: Tail | None = None
