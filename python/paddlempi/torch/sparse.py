"""Collectives over sparse tensors in COO layout.

Members may have different numbers of elements at different places, so that each of these is
several operations of the core: all members tell how many they have (and hold their shapes
against each other), then their places, numbered as in a dense tensor, and then the values. A
reduction brings every member's values to the union of the places first, zeros where it has
none: what comes out is what the same reduction of the dense tensors would give, for every
reduce op and dtype of docs/ops.md.

Moved by a member of n, with m elements of b bytes on each and u places in their union:
8(n-1)m bytes of places; an all_reduce of ub bytes, or for the others (n-1)mb of values.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from .. import _native
from .. import work as core_work
from .._ops import Op
from ..errors import ArgumentError, DtypeError, Error, NotReadyError
from ..future import Future
from ..group import to_seconds
from .errors import MismatchError
from .work import Work

if TYPE_CHECKING:
    from .process_group import ProcessGroupMPI

__all__ = ["Steps", "allgather", "allreduce", "broadcast"]

_MOST_DIMENSIONS = 64


class _Step(NamedTuple):
    """One operation of the core."""

    code: Op
    send: Any
    recv: Any
    reduce_op: int = 0
    scale: float = 1.0
    root: int = -1


_Plan = Generator[_Step, None, None]
"""The steps of a collective; it goes on when the step it gave has ended, in any thread."""


def allreduce(group: ProcessGroupMPI, tensor: Any, opts: Any, code: int, scale: float) -> Work:
    """Reduce sparse tensors in place; every member's becomes the result, coalesced.

    Args:
        tensor: COO, also uncoalesced, hybrid or without elements; the same shape and the same
            number of sparse dimensions on every member.
        code, scale: the core's reduce op.
    """
    local = _coalesced(group, Op.ALL_REDUCE, tensor)

    def plan() -> _Plan:
        counts = yield from _meet(group, Op.ALL_REDUCE, local)
        parts = [torch.empty(count, dtype=torch.int64) for count in counts]
        mine = _places(local)
        yield _Step(Op.ALL_GATHER, mine, parts)
        union = torch.unique(torch.cat(parts))
        values = local.values()
        spread = values.new_zeros((len(union), *values.shape[1:]))
        spread[torch.searchsorted(union, mine)] = values
        yield _Step(Op.ALL_REDUCE, None, spread, code, scale)
        _write(tensor, union, spread)

    return _run(group, Op.ALL_REDUCE, plan, opts, [tensor])


def broadcast(group: ProcessGroupMPI, tensor: Any, opts: Any) -> Work:
    """Copy the root's sparse tensor into that of every member, there coalesced.

    Args:
        tensor: COO; the same shape and number of sparse dimensions on every member.
    """
    root = opts.rootRank
    local = _coalesced(group, Op.BROADCAST, tensor)

    def plan() -> _Plan:
        counts = yield from _meet(group, Op.BROADCAST, local)
        if not 0 <= root < len(counts):
            raise ArgumentError(f"broadcast: root={root} is not in 0 to {len(counts) - 1}")
        mine, values = _places(local), local.values().contiguous()
        if root != group._core._rank:
            mine = mine.new_empty(counts[root])
            values = values.new_empty((counts[root], *values.shape[1:]))
        yield _Step(Op.BROADCAST, None, mine, root=root)
        yield _Step(Op.BROADCAST, None, values, root=root)
        if root != group._core._rank:
            _write(tensor, mine, values)

    return _run(group, Op.BROADCAST, plan, opts, [tensor])


def allgather(group: ProcessGroupMPI, outputs: Sequence[Any], tensor: Any, opts: Any) -> Work:
    """Give every member the sparse tensors of all, coalesced.

    Args:
        outputs: COO tensors of the shape, dtype and number of sparse dimensions of ``tensor``,
            one for each member; what they hold is replaced.
        tensor: COO; the same shape and number of sparse dimensions on every member.
    """
    local = _coalesced(group, Op.ALL_GATHER, tensor)
    for i, output in enumerate(outputs):
        if _form(output) != _form(tensor) or output.dtype != tensor.dtype:
            group._refuse(
                Op.ALL_GATHER,
                ArgumentError(
                    f"all_gather: output {i} is {_spell(output)} of {output.dtype}, the sparse "
                    f"input {_spell(tensor)} of {tensor.dtype}"
                ),
            )

    def plan() -> _Plan:
        counts = yield from _meet(group, Op.ALL_GATHER, local)
        values = local.values().contiguous()
        places = [torch.empty(count, dtype=torch.int64) for count in counts]
        parts = [values.new_empty((count, *values.shape[1:])) for count in counts]
        yield _Step(Op.ALL_GATHER, _places(local), places)
        yield _Step(Op.ALL_GATHER, values, parts)
        for output, place, part in zip(outputs, places, parts, strict=True):
            _write(output, place, part)

    return _run(group, Op.ALL_GATHER, plan, opts, outputs)


# Steps, one after the other


class Steps(core_work.Work):
    """A plan under way: a work of the core that is made of several.

    Whoever waits drives it, and so does the thread that completes futures, when it is told
    that a step has ended. It must have submitted all its steps before its group submits
    anything else, for that is so on all members: :meth:`settle`.
    """

    __slots__ = ("_current", "_driving", "_limit", "_plan", "_submit", "_told")

    def __init__(
        self, name: str, plan: _Plan, output: Sequence[Any], submit: Callable[[_Step, int], int]
    ) -> None:
        super().__init__(0, name, None, output, None)
        self._done = False
        self._plan = plan
        self._submit = submit
        self._driving = threading.Lock()  # held while the plan goes on
        self._told = False  # a step has ended; whoever lets go of the lock looks again
        self._current: core_work.Work | None = None
        self._future = Future()
        with self._driving:
            self._go_on()
        if self._told:
            self._tell()

    def wait(self, timeout: timedelta | float | None = None) -> bool:
        """As that of any work."""
        if not self._done:
            self._drive(None if timeout is None else to_seconds(timeout, "Work.wait"))
        if self._error is not None:
            raise self._error
        return True

    def settle(self) -> None:
        """Wait until nothing is left to submit; what went wrong is for :meth:`wait` to say."""
        if not self._done:
            self._drive(None)

    def is_completed(self) -> bool:
        """As that of any work. Does not wait, but goes on with what has ended."""
        if not self._done:
            self._tell()
        return self._done

    def get_future(self) -> Future:
        """As that of any work."""
        future = self._future
        assert future is not None
        return future

    def _drive(self, seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        # Not more than a wait can take, and none at all below 0.
        if not self._driving.acquire(timeout=-1 if seconds is None else min(seconds, 1e6)):
            raise NotReadyError(f"{self._name}: still under way after {seconds} s")
        try:
            while self._current is not None:
                left = None if until is None else max(until - time.monotonic(), 0.0)
                try:
                    self._current.wait(left)
                except NotReadyError:
                    raise
                except Error:
                    pass  # the plan hears of it
                self._go_on()
        finally:
            self._driving.release()
            if self._told:
                self._tell()

    def _tell(self, _: object = None) -> None:
        """Go on as far as steps have ended, unless another thread does it."""
        self._told = True
        while self._told and self._driving.acquire(blocking=False):
            try:
                self._told = False
                while self._current is not None and self._current.is_completed():
                    self._go_on()
            finally:
                self._driving.release()

    def _go_on(self) -> None:
        """Start the next step; the current one has ended."""
        ended, self._current = self._current, None
        try:
            if ended is not None:
                ended.wait()
            step = next(self._plan)
            self._current = core_work.start(
                self._name, None, step.send, step.recv, lambda flags: self._submit(step, flags)
            )
        except StopIteration:
            pass
        except Exception as error:
            self._error = error
        if self._current is not None:
            self._current.get_future().add_done_callback(self._tell)
            return
        self._done = True
        future = self._future
        assert future is not None
        if self._error is not None:
            future.set_exception(self._error)
        else:
            future.set_result(self.result())


def _run(
    group: ProcessGroupMPI,
    code: Op,
    plan: Callable[[], _Plan],
    opts: Any,
    output: Sequence[Any],
) -> Work:
    if not opts.asyncOp:
        for step in plan():
            group._issue(
                step.code,
                step.send,
                step.recv,
                opts,
                (),
                step.reduce_op,
                step.scale,
                step.root,
            )
        return Work((), output)
    if group._steps is not None:
        group._steps.settle()
    gid, limit = group._gid, group._limit

    def submit(step: _Step, flags: int) -> int:
        handle: int = _native.submit(
            step.code,
            gid,
            step.send,
            step.recv,
            step.reduce_op,
            flags,
            step.root,
            -1,
            0,
            limit,
            step.scale,
        )
        return handle

    group._steps = steps = Steps(code.label, plan(), output, submit)
    work = Work((steps,), output)
    if group._batch is not None:
        group._batch.append(work)
    return work


# Tensors


def _coalesced(group: ProcessGroupMPI, code: Op, tensor: Any) -> Any:
    """A tensor with every place once and in order, without history; refuses what has none."""
    try:
        if tensor.device.type != "cpu":
            raise DtypeError(
                f"{code.label}: a sparse tensor on device '{tensor.device}': move it to the CPU"
            )
        if tensor.dim() > _MOST_DIMENSIONS:
            raise ArgumentError(
                f"{code.label}: a sparse tensor of {tensor.dim()} dimensions, "
                f"at most {_MOST_DIMENSIONS} are supported"
            )
        if math.prod(tensor.shape[: tensor.sparse_dim()]) >= 2**63:
            raise ArgumentError(
                f"{code.label}: a sparse tensor of shape {tuple(tensor.shape)} has 2^63 places "
                "or more"
            )
        with torch.no_grad():
            return tensor.detach().coalesce()
    except Error as error:
        group._refuse(code, error)
    except (RuntimeError, NotImplementedError) as reason:  # torch has no such kernel
        group._refuse(code, DtypeError(f"{code.label}: torch cannot coalesce the tensor: {reason}"))


def _form(tensor: Any) -> tuple[int, ...]:
    sparse = tensor.sparse_dim() if tensor.is_sparse else -1
    return (sparse, tensor.dim(), *tensor.shape)


def _spell(tensor: Any) -> str:
    return f"{tuple(tensor.shape)} with {_form(tensor)[0]} sparse dimensions"


def _meet(group: ProcessGroupMPI, code: Op, tensor: Any) -> Generator[_Step, None, list[int]]:
    """How many elements each member has, after their tensors were held against each other."""
    form = _form(tensor)
    mine = torch.zeros(_MOST_DIMENSIONS + 3, dtype=torch.int64)
    mine[: len(form)] = torch.tensor(form)
    mine[-1] = tensor._nnz()
    table = torch.empty((group._core.size(), len(mine)), dtype=torch.int64)
    yield _Step(Op.ALL_GATHER, mine, table)
    forms = [tuple(row[: 2 + row[1]]) for row in table[:, :-1].tolist()]
    if len(set(forms)) > 1:
        ranks = group._core._ranks
        error = MismatchError(
            f"{code.label}: the members have sparse tensors of different shapes: "
            + "; ".join(
                f"rank {rank} has {form[2:]} with {form[0]} sparse dimensions"
                for rank, form in zip(ranks, forms, strict=True)
            )
        )
        error.ranks = tuple(
            rank for rank, other in zip(ranks, forms, strict=True) if other != forms[0]
        )
        raise error
    counts: list[int] = table[:, -1].tolist()
    return counts


def _places(tensor: Any) -> Any:
    """The indices of a coalesced tensor as one ascending row of numbers."""
    indices = tensor.indices()
    numbers = torch.zeros(indices.shape[1], dtype=torch.int64)
    for axis in range(tensor.sparse_dim()):
        numbers = numbers * tensor.shape[axis] + indices[axis]
    return numbers


def _write(tensor: Any, places: Any, values: Any) -> None:
    """Make a tensor hold these values at these places, in order, and nothing else."""
    rows: list[Any] = []
    for extent in reversed(tensor.shape[: tensor.sparse_dim()]):
        rows.insert(0, places % extent)
        places = places // extent
    indices = torch.stack(rows) if rows else torch.empty((0, len(places)), dtype=torch.int64)
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        made = torch.sparse_coo_tensor(
            indices, values, tensor.shape, check_invariants=False, is_coalesced=True
        )
        tensor.copy_(made)
