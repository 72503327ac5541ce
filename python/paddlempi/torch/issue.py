"""How the process group issues operations: one way for collectives, one for messages.

The group's methods (:mod:`.process_group`) say what is sent and received; here it is handed
to the core, inline or as a :class:`~.work.Work`, with the deadline that holds for it, and shown
to the profiler.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import ProcessGroup

from .. import _native, group
from .. import future as core_future
from .._ops import ASYNC, Op
from ..group import to_seconds
from . import profile
from .work import DONE, OperationWork, Work

if TYPE_CHECKING:
    from .sparse import Steps

__all__ = ["Issuer", "tell_autograd"]

_ZERO = timedelta(0)
_OWN = -1.0  # the deadline that the core has of the group

tell_autograd = os.environ.get("PADDLEMPI_CHECK_AUTOGRAD") == "1"
"""Whether autograd is told that tensors were written to. By gloo and nccl it is not.

Programs of torch are made for those: ``distribute_tensor`` broadcasts into a leaf that its caller's
graph has saved. If it is told, a backward that would use overwritten values fails.
"""


class Issuer(ProcessGroup):  # type: ignore[misc]
    """The part of the process group that operations go through.

    Thread-safety: operations may be issued from any thread, those on one group run one
    after another.

    Args:
        core: the group of the core.
        timeout: how long its operations wait for its other members.
    """

    def __init__(self, core: group.ProcessGroup, timeout: timedelta) -> None:
        super().__init__(core.rank(), core.size())
        self._core = core
        self._gid = core._id
        self._timeout = timeout
        self._extension = _Extension()
        self._batch: list[Work] | None = None
        self._steps: Steps | None = None  # the last collective over sparse tensors, if async

    # Deadlines

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long the group's operations, from the next on, wait for its other members.

        Raises:
            ArgumentError: it is not above 0.
            GroupDestroyedError: the group was destroyed.
        """
        seconds = to_seconds(timeout, "set_timeout")
        _native.control("set_timeout", group=self._gid, timeout=seconds)
        self._timeout = timedelta(seconds=seconds)

    setTimeout = set_timeout

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """As torch's backends have it."""
        self.set_timeout(timeout)

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Give operations more time, until the first that is issued from now on has ended.

        ``torch.compile`` asks for it on a rank that found in its cache what the others
        still compile. Operations under way keep their deadlines.
        """
        self._extension.add(timeout.total_seconds())

    def _deadline(self, asked: timedelta) -> float:
        """Seconds for an operation whose options ask for so long; below 0: the group's own."""
        more = self._extension.seconds
        if asked <= _ZERO:
            return self._timeout.total_seconds() + more if more else _OWN
        return asked.total_seconds() + more

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
        limit = self._deadline(_ZERO) if self._extension.seconds else _OWN
        span = None
        if profile.state._is_profiler_enabled:
            span = profile.Span(code.label, (send, recv), list(self._core._ranks), peer, tag)
        return self._begin(
            span, output, finish, code, send, recv, peer=peer, tag=tag, timeout=limit
        )

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
        asked = opts.timeout
        plain = asked < _ZERO and not self._extension.seconds
        limit = _OWN if plain else self._deadline(asked)
        span = None
        if profile.state._is_profiler_enabled:
            span = profile.Span(code.label, (send, recv), list(self._core._ranks))
        fields: dict[str, Any] = {
            "root": root,
            "timeout": limit,
            "scale": scale,
            "send_splits": send_splits,
            "recv_splits": recv_splits,
        }
        if opts.asyncOp:
            return self._begin(span, output, finish, code, send, recv, reduce_op, **fields)
        own = None if plain else self._extension.take()
        quiet = self._quiet(code, root)
        try:
            _native.submit(code, self._gid, send, recv, reduce_op, quiet, **fields)
        finally:
            if own is not None:
                own()
            if span is not None:
                span.end()
        if finish is not None:
            finish()
        return DONE

    def _begin(
        self,
        span: profile.Span | None,
        output: Sequence[Any],
        finish: Callable[[], None] | None,
        code: Op,
        send: Any,
        recv: Any,
        reduce_op: int = 0,
        **fields: Any,
    ) -> Work:
        """Submit an operation that goes on by itself; from ``code`` on as the core wants it."""
        own = self._extension.take() if self._extension.seconds else None
        flags = ASYNC | self._quiet(code, fields.get("root", -1))
        try:
            operation = _native.submit(code, self._gid, send, recv, reduce_op, flags, **fields)
        except BaseException:
            if own is not None:
                own()
            if span is not None:
                span.end()
            raise
        if own is not None or span is not None:
            later = None if span is None else span.ends_later()
            ends = _all_of([call for call in (own, later) if call is not None])
            if not operation.at_end(ends):
                ends()
        part = OperationWork(operation, code, output)
        if span is not None:
            core_future.of(part)  # its thread notices the end if nobody else does
        work: Work = part
        if finish is not None:
            work = Work((work,), output, finish)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _quiet(self, code: Op, root: int) -> int:
        """The flag that says whether autograd is told of what an operation writes to."""
        told = tell_autograd and code.writes(root, self._core._rank)
        return _native.ONCE if told else _native.QUIET


def _all_of(calls: list[Callable[[], None]]) -> Callable[[], None]:
    def call() -> None:
        for one in calls:
            one()

    return call


class _Extension:
    """Time that operations get beyond their deadline, for a while; in seconds.

    Each addition ends with the operation that took it, the first issued after it.
    """

    __slots__ = ("_lock", "_taken", "seconds")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken = 0.0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        with self._lock:
            self.seconds += seconds

    def take(self) -> Callable[[], None] | None:
        """What to call at the end of the operation issued now; None if others took it all."""
        with self._lock:
            mine = self.seconds - self._taken
            self._taken += mine
        return (lambda: self._end(mine)) if mine else None

    def _end(self, mine: float) -> None:
        with self._lock:
            self._taken -= mine
            self.seconds -= mine
