"""An operation under way, as Paddle sees it, and those of a group."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from typing import Any

from .. import work as core_work

__all__ = ["DONE", "Task", "UnderWay"]


class Task:
    """What the process group's methods return.

    Args:
        work: the work of the core; None where the operation is over.

    Source: ``paddle.base.core.task``. Thread-safety: as :class:`paddlempi.work.Work`.
    """

    __slots__ = ("_work",)

    def __init__(self, work: core_work.Work | None) -> None:
        self._work = work

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the operation has ended; ``timeout`` in milliseconds, as in Paddle.

        On a GPU the host waits until the last copy or kernel is queued, and the current stream for
        that to end.

        Raises:
            NotReadyError: ``timeout`` ran out. The operation goes on.
            Error: what the operation ended with.
        """
        if self._work is not None:
            self._work.wait(timeout / 1000 if timeout is not None and timeout > 0 else None)
        return True

    def synchronize(self) -> None:
        """The same as ``wait()``."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not, on its device too. Does not wait."""
        return self._work is None or self._work.is_completed()

    def is_sync(self) -> bool:
        """Whether it had ended when it was returned."""
        return self._work is None


DONE = Task(None)
"""The task of an operation that is over."""


_Extent = tuple[int, int]
"""Addresses: the first byte, and the one behind the last."""


class _Started:
    """An operation that was started, and what memory it reads or writes."""

    __slots__ = ("extents", "failed", "work")

    def __init__(self, work: core_work.Work, extents: list[_Extent]) -> None:
        self.work = work
        self.extents = extents
        self.failed = False  # and nobody has been told


class UnderWay:
    """The operations of a group that were started and may not have ended.

    Who drops a task has ``paddle.distributed.wait(tensor)`` left, which names no operation.

    Thread-safety: all methods may be called from any thread.
    """

    _FEW = 8
    """As many are kept before those that have ended are looked for: each may hold its tensors."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: list[_Started] = []
        self._enough = self._FEW

    def add(self, work: core_work.Work, tensors: Any) -> None:
        """One was started; ``tensors`` may be nested, with None among them."""
        started = _Started(work, list(_extents(tensors)))
        with self._lock:
            if len(self._started) >= self._enough:
                self._started = [one for one in self._started if _is_wanted(one)]
                self._enough = max(self._FEW, 2 * len(self._started))
            self._started.append(started)

    def wait(self, tensor: Any) -> None:
        """Wait for those that read or write memory of a tensor.

        Raises:
            Error: what one of them ended with.
        """
        mine = list(_extents(tensor))
        with self._lock:
            found = [one for one in self._started if _meet(one.extents, mine)]
        for one in found:
            try:
                one.work.wait()
            finally:
                with self._lock, contextlib.suppress(ValueError):  # another thread was quicker
                    self._started.remove(one)


def _is_wanted(one: _Started) -> bool:
    """Whether an operation may go on, or has failed and nobody has asked it how it ended."""
    if one.failed:
        return True
    if one.work._op.done:
        return False
    one.failed = one.work.is_completed() and not one.work.is_success()
    return one.failed or not one.work._op.done


def _extents(tensors: Any) -> Iterator[_Extent]:
    """Where tensors lie; the gaps of strided ones count."""
    if isinstance(tensors, (list, tuple)):
        for one in tensors:
            yield from _extents(one)
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


def _meet(some: list[_Extent], others: list[_Extent]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)
