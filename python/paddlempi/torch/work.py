"""An operation under way, as torch sees it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work as _Work

from .. import work as core_work

__all__ = ["DONE", "Work"]


class Work(_Work):  # type: ignore[misc]
    """What the process group's methods return: one or more operations of the core, as one.

    The tensors must not be written to (those received into not even read) before
    :meth:`wait` has returned or the future is done. Dropping a Work neither waits nor cancels.

    Thread-safety: all methods may be called from any thread; those that wait drop the GIL.

    Args:
        parts: the works of the core; empty where the operation is over.
        output: the tensors written to, what :meth:`result` gives.
        finish: what is left to do once the parts have ended well; called once.

    Source: :class:`torch.distributed.Work`.
    """

    def __init__(
        self,
        parts: Sequence[core_work.Work] = (),
        output: Sequence[Any] = (),
        finish: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._parts = parts
        self._output = list(output)
        self._finish = finish
        self._lock = threading.Lock() if finish is not None else None
        self._future: Any = None

    @classmethod
    def joined(cls, works: Sequence[Work]) -> Work:
        """Several works as one."""
        finishers = [work._run_finish for work in works if work._finish is not None]

        def finish() -> None:
            for run in finishers:
                run()

        return cls(
            [part for work in works for part in work._parts],
            [tensor for work in works for tensor in work._output],
            finish if finishers else None,
        )

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end. ``timeout``: None or not above 0, until the group's own deadline.

        Raises:
            NotReadyError: (a ``DistBackendError``) ``timeout`` ran out; the operation goes on.
            Error: what the operation ended with.
        """
        limit = timeout if timeout is not None and timeout.total_seconds() > 0 else None
        for part in self._parts:
            part.wait(limit)
        if self._finish is not None:
            self._run_finish()
        return True

    def synchronize(self) -> None:
        """The same as ``wait()``: host memory has no stream."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not. Does not wait."""
        return all(part.is_completed() for part in self._parts)

    def is_success(self) -> bool:
        """Whether the operation has ended without an error. Does not wait."""
        return all(part.is_success() for part in self._parts)

    def exception(self) -> BaseException | None:
        """The error that the operation ended with; None if it did not or is under way."""
        for part in self._parts:
            error = part.exception()
            if error is not None:
                return error
        return None

    def result(self) -> list[Any]:
        """The tensors written to. Waits for the end."""
        self.wait()
        return self._output

    def source_rank(self) -> int:
        """The rank in the group of the sender that a receive was served by. Waits for the end."""
        return self._parts[0].source_rank()

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A ``torch.futures.Future`` of :meth:`result`, completed without anybody's waiting."""
        if self._future is not None:
            return self._future
        future = self._future = torch.futures.Future()
        left = len(self._parts)
        if not left:
            future.set_result(self._output)
            return future
        lock = threading.Lock()

        def complete(_: object) -> None:
            nonlocal left
            with lock:
                left -= 1
                if left:
                    return
            try:
                future.set_result(self.result())
            except Exception as error:
                future.set_exception(error)

        for part in self._parts:
            part.get_future().add_done_callback(complete)
        return future

    def _run_finish(self) -> None:
        assert self._lock is not None
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()


DONE = Work()
"""What a synchronous operation returns: torch's wrapper only calls its ``wait``."""
