"""How the process group issues operations: one way for collectives, one for messages.

The group's methods (:mod:`.process_group`) say what is sent and received; here it is handed
to the core, inline or as a :class:`~.work.Work`, with the deadline that holds for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import ProcessGroup

from .. import _native, group
from .. import work as core_work
from .._buffer import bump
from .._ops import Op
from ..errors import TimeoutError
from ..group import to_seconds
from .work import DONE, Work

if TYPE_CHECKING:
    from .sparse import Steps

__all__ = ["Issuer"]


class Issuer(ProcessGroup):  # type: ignore[misc]
    """The part of the process group that operations go through.

    Args:
        core: the group of the core.
        timeout: how long its operations wait for its other members.
    """

    def __init__(self, core: group.ProcessGroup, timeout: timedelta) -> None:
        super().__init__(core.rank(), core.size())
        self._core = core
        self._gid = core._id
        self._timeout = timeout
        self._limit = -1.0
        self._batch: list[Work] | None = None
        self._steps: Steps | None = None  # the last collective over sparse tensors, if async

    # Deadlines

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long the group's operations wait for its other members."""
        _native.control("set_timeout", group=self._gid, timeout=to_seconds(timeout, "set_timeout"))
        self._timeout = timeout

    # Several operations as one

    def _start_coalescing(self, device: Any = None) -> None:
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Work:
        batch, self._batch = self._batch or [], None
        return Work.joined(batch)

    start_coalescing = _start_coalescing
    end_coalescing = _end_coalescing

    # The two ways

    def _message(
        self,
        code: Op,
        send: Any,
        recv: Any,
        peer: int,
        tag: int,
        output: Sequence[Any] = (),
        finish: Callable[[], None] | None = None,
    ) -> Work:
        gid, limit = self._gid, self._limit

        def submit(flags: int) -> Any:
            return _native.submit(code, gid, send, recv, 0, flags, -1, peer, tag, limit)

        part = core_work.start(code.label, None, send, recv, submit)
        work = Work((part,), output, finish)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _issue(
        self,
        code: Op,
        send: Any,
        recv: Any,
        opts: Any,
        output: Sequence[Any] = (),
        reduce_op: int = 0,
        scale: float = 1.0,
        root: int = -1,
        send_splits: Sequence[int] | None = None,
        recv_splits: Sequence[int] | None = None,
        finish: Callable[[], None] | None = None,
    ) -> Work:
        if self._steps is not None:
            self._steps.settle()  # what it has still to submit comes first, as on all members
        gid, limit = self._gid, self._limit

        def submit(flags: int) -> Any:
            return _native.submit(
                code,
                gid,
                send,
                recv,
                reduce_op,
                flags,
                root,
                -1,
                0,
                limit,
                scale,
                send_splits,
                recv_splits,
            )

        if opts.asyncOp:
            part = core_work.start(code.label, None, send, recv, submit)
            work = Work((part,), output, finish)
            if self._batch is not None:
                self._batch.append(work)
            return work
        try:
            submit(0)
        except (TimeoutError, KeyboardInterrupt):
            core_work.keep((send, recv))
            raise
        if recv is not None:
            bump(recv)
        if finish is not None:
            finish()
        return DONE
