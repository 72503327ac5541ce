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
from .._ops import ASYNC, Op
from ..errors import ArgumentError, DtypeError, Error, NotReadyError
from .errors import MismatchError
from .work import OperationWork, Work

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

    return _run(group, plan, opts, [tensor])


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

    return _run(group, plan, opts, [tensor])


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

    return _run(group, plan, opts, outputs)


# Steps, one after the other


class Steps(Work):
    """A plan under way.

    Whoever waits drives it, and so does the thread that completes futures, when it is told
    that a step has ended. It must have submitted all its steps before its group submits
    anything else, for that is so on all members: :meth:`settle`.

    Args:
        plan: the steps.
        output: the tensors written to.
        submit: hands a step to the core and returns its handle.
        at_end: called once nothing is left to submit.
    """

    def __init__(
        self,
        plan: _Plan,
        output: Sequence[Any],
        submit: Callable[[_Step], Any],
        at_end: Callable[[], None],
    ) -> None:
        super().__init__((), output)
        self._plan = plan
        self._submit = submit
        self._at_end = at_end
        self._driving = threading.Lock()  # held while the plan goes on, and until it begins
        self._driving.acquire()
        self._told = False  # a step has ended; whoever lets go of the lock looks again
        self._current: OperationWork | None = None
        self._over = False
        self._calls: list[Callable[[], None]] = []  # for its end; guarded by _calling
        self._calling = threading.Lock()

    def begin(self) -> None:
        """Submit the first step. To be called once."""
        try:
            self._go_on()
        finally:
            self._driving.release()
        if self._told:
            self._tell()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As that of any work."""
        if not self._over:
            seconds = 0.0 if timeout is None else timeout.total_seconds()
            self._drive(seconds if seconds > 0 else None)
        if self._failed is not None:
            raise self._failed
        return True

    def settle(self) -> None:
        """Wait until nothing is left to submit; what went wrong is for :meth:`wait` to say."""
        if not self._over:
            self._drive(None)

    def is_completed(self) -> bool:
        """As that of any work. Does not wait, but goes on with what has ended."""
        if not self._over:
            self._tell()
        return self._over

    def _when_done(self, call: Callable[[], None]) -> None:
        with self._calling:
            if not self._over:
                self._calls.append(call)
                return
        call()

    def _drive(self, seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        if not self._driving.acquire(timeout=-1 if seconds is None else min(seconds, 1e6)):
            raise NotReadyError(f"a sparse collective is still under way after {seconds} s")
        try:
            while self._current is not None:
                left = None
                if until is not None:  # a limit of 0 would be none
                    left = timedelta(seconds=max(until - time.monotonic(), 1e-6))
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

    def _tell(self) -> None:
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
            self._current = OperationWork(self._submit(step), step.code, ())
        except StopIteration:
            pass
        except Exception as error:
            self._failed = error
        if self._current is not None:
            self._current._when_done(self._tell)
            return
        self._at_end()
        with self._calling:
            self._over = True
            calls, self._calls = self._calls, []
        for call in calls:
            call()


def _run(
    group: ProcessGroupMPI, plan: Callable[[], _Plan], opts: Any, output: Sequence[Any]
) -> Work:
    if not opts.asyncOp:
        for code, send, recv, reduce_op, scale, root in plan():
            group._issue(code, send, recv, opts, (), reduce_op, scale, root)
        return Work((), output)
    if group._steps is not None:
        group._steps.settle()
    gid, limit = group._gid, group._deadline(opts.timeout)

    def submit(step: _Step) -> Any:
        code, send, recv, reduce_op, scale, root = step
        return _native.submit(
            code,
            gid,
            send,
            recv,
            reduce_op,
            ASYNC | _native.QUIET,  # tensors of the plan's own
            root=root,
            timeout=limit,
            scale=scale,
        )

    def forget() -> None:
        group._steps = None  # still this one, for another waits until it is over

    group._steps = work = Steps(plan(), output, submit, forget)
    work.begin()
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
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
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
    whole = tensor._base
    if whole is not None and whole.is_complex() and not tensor.is_complex():
        # torch gives view_as_real(whole), which shares nothing any more once its places change.
        _write(whole, places, torch.view_as_complex(values))
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
