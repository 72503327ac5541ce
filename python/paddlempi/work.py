"""Works: what ``async_op=True``, ``isend`` and ``irecv`` return."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ._buffer import consumer, record
from .errors import ArgumentError
from .group import ProcessGroup
from .group_arguments import to_seconds

if TYPE_CHECKING:
    from .future import Future

__all__ = ["Tail", "Work", "WorkMethods"]

_making = threading.Lock()
"""Held while a work gets its tail. Several threads may wait for a work, which has one tail."""


class Tail:
    """The copies and kernels that an operation has queued on a device and that may still run.

    The operation has ended on the host when its tail is made.

    Invariant: ``tensors`` is None once the tensors may be freed. ``consumer`` is None once the
    device is known to be done.

    Thread-safety: all methods may be called from any thread.
    """

    __slots__ = ("consumer", "operation", "tensors")

    def __init__(self, operation: Any) -> None:
        self.operation = operation
        self.tensors: object = operation.tensors
        self.consumer: Callable[[], int] | None = consumer(self.tensors)

    def order(self) -> None:
        """Make the stream that is current in this thread wait for the device. The host does not.

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
        """Forget the stream and the tensors, because the device is done."""
        self.consumer = self.tensors = None


class WorkMethods:
    """The methods of :class:`Work`, which a framework's class of works (torch's) shares.

    ``_op`` is the core's ``_core.Operation``. It keeps the tensors alive and knows how the
    operation ended.
    """

    if not TYPE_CHECKING:
        __slots__ = ()
    else:
        _op: Any
        _name: str
        _output: Any  # the tensors written to: one, a sequence, or None
        _ranks: Sequence[int] | None  # the group's global ranks; None: source_rank is a group rank
        _future: Future | None
        _tail: Tail | None  # None without device tensors, and before the first wait

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """Wait until the operation has ended.

        If the tensors are in device memory, wait until the last copy or kernel of the operation
        is queued on the device. The stream that is current in this thread then waits for that
        copy or kernel, and the host does not.

        Args:
            timeout: how long to wait, a timedelta or seconds. None: until the operation ends.
                The group's deadline ends it at the latest.

        Returns:
            True.

        Raises:
            NotReadyError: ``timeout`` ran out. The operation goes on; wait again.
            Error: the error that the operation ended with; the same in every call.
            KeyboardInterrupt: Ctrl-C during the wait. The operation goes on.
        """
        operation = self._op
        operation.wait(-1.0 if timeout is None else to_seconds(timeout, "Work.wait"))
        if operation.device:
            self._end_on_device().order()
        return True

    def is_completed(self) -> bool:
        """Whether the operation has ended, with or without an error, also on its device.

        Does not wait.
        """
        if not self._op.test():
            return False
        if self._tail is not None:
            self._tail.end()
        return True

    def is_success(self) -> bool:
        """Whether the operation has ended without an error. Does not wait."""
        return self.is_completed() and self._op.error is None

    def exception(self) -> BaseException | None:
        """The error that the operation ended with; None if there is none or it has not ended."""
        error: BaseException | None = self._op.error if self.is_completed() else None
        return error

    def source_rank(self) -> int:
        """Wait for a receive to end and return the global rank of the sender.

        Raises:
            ArgumentError: the operation is no receive.
        """
        self.wait()
        source: int = self._op.source
        if source < 0:
            raise ArgumentError(f"source_rank: {self._name} has no source")
        return source if self._ranks is None else self._ranks[source]

    def result(self) -> list[Any]:
        """Wait as :meth:`wait` does and return the tensors written to, in the caller's order."""
        self.wait()
        return self._written()

    def _value(self) -> list[Any]:
        """Do as :meth:`result`, but let no stream wait for the device."""
        self._op.wait()
        return self._written()

    def _written(self) -> list[Any]:
        output = self._output
        if output is None:
            return []
        return list(output) if isinstance(output, (list, tuple)) else [output]

    def get_future(self) -> Future:
        """Return a future of :meth:`result`. It is completed when the operation ends.

        The first call in the process starts a daemon thread, which completes all futures.
        Functions given to ``then`` and ``add_done_callback`` run in that thread, or at once if
        the future is done.
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
        """Return the tail of the operation, which has ended on the host without an error."""
        with _making:
            if self._tail is None:
                self._tail = Tail(self._op)
            return self._tail


class Work(WorkMethods):
    """An operation that was submitted asynchronously.

    Until :meth:`wait` has returned, the caller must not write to the tensors of the operation, nor
    read the tensors that it writes to. After that, tensors in device memory may be used on the
    stream that was current in :meth:`wait`, and on streams that wait for it.

    The library keeps the tensors alive until the operation ends. Dropping a Work neither waits
    for the operation nor cancels it. ``await work`` gives what :meth:`result` gives, without
    blocking the event loop.

    Thread-safety: all methods may be called from any thread.

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
