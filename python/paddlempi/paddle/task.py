"""The tasks that Paddle sees of its operations, and the operations of a group under way."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

from .. import work as core_work

__all__ = ["DONE", "Task", "UnderWay"]


class Task:
    """An operation, as the methods of the process group return it.

    Args:
        work: the work of the core; None if the operation is over.

    Source: ``paddle.base.core.task``. Thread-safety: as :class:`paddlempi.work.Work`.
    """

    __slots__ = ("_work",)

    def __init__(self, work: core_work.Work | None) -> None:
        self._work = work

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the operation has ended.

        On a GPU the host waits until the last copy or kernel is queued, and the current stream
        waits until that has ended.

        Args:
            timeout: milliseconds, as in Paddle. None, zero or less: no limit.

        Raises:
            NotReadyError: ``timeout`` ran out. The operation goes on.
            Error: what the operation ended with.
        """
        if self._work is not None:
            self._work.wait(timeout / 1000 if timeout is not None and timeout > 0 else None)
        return True

    def synchronize(self) -> None:
        """Do the same as ``wait()``."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether the operation has ended, well or not, on its device too. Do not wait."""
        return self._work is None or self._work.is_completed()

    def is_sync(self) -> bool:
        """Return whether the operation had ended when it was returned."""
        return self._work is None


DONE = Task(None)
"""The task of an operation that is over."""


_Extent = tuple[int, int]
"""Some memory: the address of its first byte, and the address after its last byte."""


class _Started:
    """An operation that was started, and the memory that it reads or writes."""

    __slots__ = ("extents", "failed", "work")

    def __init__(self, work: core_work.Work, extents: list[_Extent]) -> None:
        self.work = work
        self.extents = extents
        self.failed = False  # and the error was not raised yet


class UnderWay:
    """The operations of a group that were started and may not have ended.

    They are kept for ``paddle.distributed.wait(tensor)``, which waits for the operations of
    a tensor. A program that dropped their tasks has no other way to wait.

    Thread-safety: all methods may be called from any thread.
    """

    _MIN_LIMIT = 8
    """So many operations are kept before :meth:`add` drops those that have ended.

    It is a small number, because an operation may keep its tensors alive.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: list[_Started] = []
        self._limit = self._MIN_LIMIT

    def add(self, work: core_work.Work, tensors: Any) -> None:
        """Keep an operation; ``tensors`` may be nested, and may contain None."""
        started = _Started(work, list(_extents(tensors)))
        with self._lock:
            if len(self._started) >= self._limit:
                self._started = [kept for kept in self._started if _must_keep(kept)]
                self._limit = max(self._MIN_LIMIT, 2 * len(self._started))
            self._started.append(started)

    def wait(self, tensor: Any) -> None:
        """Wait for the operations that read or write memory of a tensor.

        Raises:
            Error: what one of them ended with.
        """
        wanted = list(_extents(tensor))
        with self._lock:
            found = [started for started in self._started if _intersect(started.extents, wanted)]
        for started in found:
            try:
                started.work.wait()
            finally:
                with self._lock, contextlib.suppress(ValueError):  # removed by another thread
                    self._started.remove(started)


def _must_keep(started: _Started) -> bool:
    """Return whether an operation may be under way, or has failed without a wait for it."""
    if started.failed:
        return True
    if started.work._op.done:
        return False
    started.failed = started.work.is_completed() and not started.work.is_success()
    return started.failed or not started.work._op.done


def _extents(tensors: Any) -> Iterator[_Extent]:
    """Return the memory of tensors. That of a strided tensor includes the gaps."""
    if isinstance(tensors, (list, tuple)):
        for tensor in tensors:
            yield from _extents(tensor)
    elif tensors is not None:
        first, shape = tensors.data_ptr(), tensors.shape
        if not first or 0 in shape:
            return
        if tensors.is_contiguous():
            count = math.prod(shape)
        else:
            strides = tensors.strides
            count = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        yield first, first + count * tensors.element_size()


def _intersect(some: list[_Extent], others: list[_Extent]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)
