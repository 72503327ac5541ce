"""An operation under way, as Paddle sees it."""

from __future__ import annotations

from .. import work as core_work

__all__ = ["DONE", "Task"]


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
