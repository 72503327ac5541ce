"""How the process group submits operations: one way for collectives, one for messages.

The group's methods (:mod:`.process_group`) name the tensors. This module submits the operation to
the core with its deadline, synchronously or as a :class:`~.work.Work`, and shows it to the
profiler.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import ProcessGroup

from .. import _native, group
from .. import future as core_future
from .._ops import ASYNC, Op
from ..errors import UnsupportedError
from ..group_arguments import to_seconds
from . import group_names, profile
from .work import DONE, OperationWork, Work

__all__ = ["Issuer", "tell_autograd"]

_ZERO = timedelta(0)
_GROUP_DEADLINE = -1.0  # as a timeout for the core: the group's deadline

tell_autograd = os.environ.get("PADDLEMPI_CHECK_AUTOGRAD") == "1"
"""Whether autograd is told that operations write to tensors.

gloo and nccl do not tell it, and programs rely on that: ``distribute_tensor`` broadcasts into a
leaf that its caller's graph has saved. If autograd is told, a backward that would use overwritten
values fails.
"""


class Issuer(ProcessGroup):  # type: ignore[misc]
    """The base class of the process group, which submits its operations.

    Thread-safety: operations may be submitted from any thread. Collectives of one group run one
    after another.

    Args:
        core: the group of the core.
        timeout: how long its operations wait for other members.
    """

    def __init__(self, core: group.ProcessGroup, timeout: timedelta) -> None:
        super().__init__(core.rank(), core.size())
        self._timeout = timeout
        self._become(core)

    def _become(self, core: group.ProcessGroup) -> None:
        self._core = core
        self._gid = core._id
        self._extension = _Extension()
        self._batch: list[Work] | None = None  # between start and end of coalescing
        self._steps: Work | None = None  # the asynchronous sparse collective under way

    def renew(self, core: group.ProcessGroup) -> None:
        """Become the group of other members: all ranks of a new world.

        Raises:
            UnsupportedError: this torch does not ask a group of Python for its size.
        """
        group_names.forget(self.group_name)
        self._become(core)
        if ProcessGroup.size(self) != core.size():
            raise UnsupportedError(
                f"torch {torch.__version__} keeps the number of ranks that a group began with: "
                "use a newer one"
            )
        c10d._world.pg_group_ranks[self] = {rank: rank for rank in core._ranks}

    # C++ asks these: what it keeps itself is of the first members.

    def getRank(self) -> int:
        """Return this process's rank in the group."""
        return self._core._rank

    def getSize(self) -> int:
        """Return the number of members."""
        return len(self._core._ranks)

    rank, size = getRank, getSize

    # Deadlines

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long operations submitted from now on wait for other members.

        Raises:
            ArgumentError: ``timeout`` is not above 0.
            GroupDestroyedError: the group was destroyed.
        """
        seconds = to_seconds(timeout, "set_timeout")
        _native.control("set_timeout", group=self._gid, timeout=seconds)
        self._timeout = timedelta(seconds=seconds)

    setTimeout = set_timeout

    def _set_default_timeout(self, timeout: timedelta) -> None:
        """Do the same as ``set_timeout``, under the name that torch's backends have."""
        self.set_timeout(timeout)

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Extend the deadlines of operations until the next one to be submitted has ended.

        ``torch.compile`` asks for this on a rank that has found in its cache what other ranks
        still compile. Operations under way keep their deadlines.
        """
        self._extension.add(timeout.total_seconds())
        group_names.forget(self.group_name)  # kernels in C know only the group's own deadline

    def _deadline(self, asked: timedelta) -> float:
        """Return the deadline of an operation in seconds; below 0: the group's deadline.

        Args:
            asked: the timeout in the operation's options; not above 0: none.
        """
        more = self._extension.seconds
        if asked <= _ZERO:
            return self._timeout.total_seconds() + more if more else _GROUP_DEADLINE
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
        limit = self._deadline(_ZERO) if self._extension.seconds else _GROUP_DEADLINE
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
            self._steps.settle()  # its remaining steps come first on all members
        asked = opts.timeout
        plain = asked < _ZERO and not self._extension.seconds
        limit = _GROUP_DEADLINE if plain else self._deadline(asked)
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
        end_extension = None if plain else self._extension.take()
        quiet = self._quiet(code, root)
        try:
            _native.submit(code, self._gid, send, recv, reduce_op, quiet, **fields)
        finally:
            if end_extension is not None:
                end_extension()
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
        """Submit an asynchronous operation.

        Args:
            span: the operation's entry in the profiler's trace, or None.
            output: the tensors written to.
            finish: called once the operation has ended well, or None.
            code, send, recv, reduce_op, fields: the arguments of ``_native.submit``.
        """
        end_extension = self._extension.take() if self._extension.seconds else None
        flags = ASYNC | self._quiet(code, fields.get("root", -1))
        try:
            operation = _native.submit(code, self._gid, send, recv, reduce_op, flags, **fields)
        except BaseException:
            if end_extension is not None:
                end_extension()
            if span is not None:
                span.end()
            raise
        if end_extension is not None or span is not None:
            end_span = None if span is None else span.ends_later()
            at_end = _all_of([call for call in (end_extension, end_span) if call is not None])
            if not operation.at_end(at_end):
                at_end()
        part = OperationWork(operation, code, output, self._gid)
        if span is not None:
            core_future.of(part)  # the thread of futures sees the end if the program does not wait
        work: Work = part
        if finish is not None:
            work = Work((work,), output, finish)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _quiet(self, code: Op, root: int) -> int:
        """Return the flag of submit that tells autograd of the tensors written to, or does not."""
        tell = tell_autograd and code.writes(root, self._core._rank)
        return _native.ONCE if tell else _native.QUIET


def _all_of(calls: list[Callable[[], None]]) -> Callable[[], None]:
    def call_all() -> None:
        for call in calls:
            call()

    return call_all


class _Extension:
    """Seconds that are added to the deadlines of all operations submitted while it lasts.

    The first operation that is submitted after an addition takes the addition. When that operation
    ends, the addition ends.
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
        """Take the added seconds that no operation has taken yet, for the next operation.

        Returns:
            The function to call when the operation ends; None if there was nothing to take.
        """
        with self._lock:
            taken = self.seconds - self._taken
            self._taken += taken
        return (lambda: self._end(taken)) if taken else None

    def _end(self, taken: float) -> None:
        with self._lock:
            self._taken -= taken
            self.seconds -= taken
