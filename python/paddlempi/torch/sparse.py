"""Collectives over sparse tensors in COO layout.

A sparse tensor has a list of positions and their values. The position of an element is its index in
the dense tensor's sparse dimensions, as one number. Members may have different numbers of elements
at different positions. So a collective is several operations of the core:

1. The members exchange their numbers of elements and compare their shapes.
2. They exchange their positions.
3. They exchange or reduce their values.

Before a reduction every member spreads its values over the union of all positions, with zeros at
the positions that it does not have. So the result is that of the same reduction of the dense
tensors, for every reduce op and dtype of docs/ops.md.

Bytes that a member moves, for n members that have m elements of b bytes, and u positions in the
union: 8(n-1)m for positions; then an all_reduce of ub, or (n-1)mb for the values of the other
collectives.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch

from .. import _native
from .._ops import ASYNC, Op
from ..errors import ArgumentError, DtypeError, Error
from ..errors import NotReadyError as CoreNotReadyError
from . import group_names
from .errors import MismatchError, NotReadyError
from .issue import Issuer
from .work import OperationWork, Work

__all__ = ["Steps", "allgather", "allreduce", "broadcast"]

_MAX_DIMENSIONS = 64


class _Step(NamedTuple):
    """One operation of the core."""

    code: Op
    send: Any
    recv: Any
    reduce_op: int = 0
    scale: float = 1.0
    root: int = -1


_Plan = Generator[_Step, None, None]
"""The steps of a collective. The generator is resumed, in any thread, when the step that it yielded
has ended."""


def allreduce(group: Issuer, tensor: Any, opts: Any, code: int, scale: float) -> Work:
    """Reduce sparse tensors in place. The result is coalesced.

    Args:
        group: the process group.
        tensor: input and output in COO layout; also uncoalesced, hybrid or without elements. The
            shape and the number of sparse dimensions are the same on every member.
        opts: torch's options of the call.
        code, scale: the core's reduce op and factor.
    """
    local = _coalesced(group, Op.ALL_REDUCE, tensor)

    def plan() -> _Plan:
        counts = yield from _meet(group, Op.ALL_REDUCE, local)
        parts = [torch.empty(count, dtype=torch.int64) for count in counts]
        positions = _positions(local)
        yield _Step(Op.ALL_GATHER, positions, parts)
        union = torch.unique(torch.cat(parts))
        values = local.values()
        spread = values.new_zeros((len(union), *values.shape[1:]))
        spread[torch.searchsorted(union, positions)] = values
        yield _Step(Op.ALL_REDUCE, None, spread, code, scale)
        _write(tensor, union, spread)

    return _run(group, plan, opts, [tensor])


def broadcast(group: Issuer, tensor: Any, opts: Any) -> Work:
    """Copy the root's sparse tensor into the tensor of every other member, which is coalesced then.

    Args:
        group: the process group.
        tensor: a tensor in COO layout, input on the root, output elsewhere. The shape and the
            number of sparse dimensions are the same on every member.
        opts: torch's options of the call.
    """
    root = opts.rootRank
    local = _coalesced(group, Op.BROADCAST, tensor)

    def plan() -> _Plan:
        counts = yield from _meet(group, Op.BROADCAST, local)
        if not 0 <= root < len(counts):
            raise ArgumentError(f"broadcast: root={root} is not in 0 to {len(counts) - 1}")
        positions, values = _positions(local), local.values().contiguous()
        if root != group._core._rank:
            positions = positions.new_empty(counts[root])
            values = values.new_empty((counts[root], *values.shape[1:]))
        yield _Step(Op.BROADCAST, None, positions, root=root)
        yield _Step(Op.BROADCAST, None, values, root=root)
        if root != group._core._rank:
            _write(tensor, positions, values)

    return _run(group, plan, opts, [tensor])


def allgather(group: Issuer, outputs: Sequence[Any], tensor: Any, opts: Any) -> Work:
    """Give every member the sparse tensors of all, coalesced.

    Args:
        group: the process group.
        outputs: for each member a tensor in COO layout with the shape, dtype and number of sparse
            dimensions of ``tensor``. Its elements are replaced.
        tensor: input in COO layout. The shape and the number of sparse dimensions are the same on
            every member.
        opts: torch's options of the call.
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
        positions = [torch.empty(count, dtype=torch.int64) for count in counts]
        parts = [values.new_empty((count, *values.shape[1:])) for count in counts]
        yield _Step(Op.ALL_GATHER, _positions(local), positions)
        yield _Step(Op.ALL_GATHER, values, parts)
        for output, at, part in zip(outputs, positions, parts, strict=True):
            _write(output, at, part)

    return _run(group, plan, opts, outputs)


# Steps, one after another


class Steps(Work):
    """The work of an asynchronous sparse collective.

    A thread that waits for the work submits its steps, one after another. So does the thread that
    completes futures, which learns of the end of a step.

    Invariant: all steps are submitted before the group submits another collective, because the
    members must submit collectives in the same order. The group calls :meth:`settle` for that.

    Args:
        plan: the steps.
        output: the tensors written to.
        submit: submits a step to the core and returns its ``_core.Operation``.
        at_end: called when nothing is left to submit.
        group: the core's number of the group.
    """

    def __init__(
        self,
        plan: _Plan,
        output: Sequence[Any],
        submit: Callable[[_Step], Any],
        at_end: Callable[[], None],
        group: int,
    ) -> None:
        super().__init__((), output)
        self._gid = group
        self._plan = plan
        self._submit = submit
        self._at_end = at_end
        self._driving = threading.Lock()  # held while the plan is resumed, and until begin()
        self._driving.acquire()
        # Set by a thread that has seen the end of a step and did not get the lock. The thread that
        # has the lock looks at the step again when it has released the lock.
        self._step_ended = False
        self._current: OperationWork | None = None
        self._over = False
        self._calls: list[Callable[[], None]] = []  # to call at the end; guarded by _calling
        self._calling = threading.Lock()

    def begin(self) -> None:
        """Submit the first step. Call it once."""
        try:
            self._next_step()
        finally:
            self._driving.release()
        if self._step_ended:
            self._advance()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Do as :meth:`Work.wait`."""
        if not self._over:
            seconds = 0.0 if timeout is None else timeout.total_seconds()
            self._drive(seconds if seconds > 0 else None)
        if self._failed is not None:
            raise self._failed
        return True

    def settle(self) -> None:
        """Wait until nothing is left to submit. Errors are left to :meth:`wait`."""
        if not self._over:
            self._drive(None)

    @property
    def _group(self) -> int:
        return self._gid

    def _settle(self, limit: float) -> None:
        if not self._over:
            self._drive(limit if limit >= 0 else None)
        if self._failed is not None:
            raise self._failed

    def _complete_future(self) -> None:
        self.settle()
        if self._entry is not None:
            self._entry.run_if_mine()

    def is_completed(self) -> bool:
        """Whether the collective has ended. Does not wait, but submits the next step if it can."""
        if not self._over:
            self._advance()
        return self._over

    def _when_done(self, call: Callable[[], None], awaited: bool = False) -> None:
        with self._calling:
            if not self._over:
                self._calls.append(call)
                return
        call()

    def _drive(self, seconds: float | None) -> None:
        """Wait for the steps and submit the next ones until the plan is over.

        Args:
            seconds: how long to wait before ``NotReadyError`` is raised; None: for ever.
        """
        until = None if seconds is None else time.monotonic() + seconds
        if not self._driving.acquire(timeout=-1 if seconds is None else min(seconds, 1e6)):
            raise NotReadyError(f"a sparse collective is still under way after {seconds} s")
        try:
            while self._current is not None:
                left = None
                if until is not None:  # above 0, because a timeout of 0 means no limit
                    left = timedelta(seconds=max(until - time.monotonic(), 1e-6))
                try:
                    self._current.wait(left)
                except CoreNotReadyError:  # the class above torch's
                    raise
                except Error:
                    pass  # _next_step gets the error again and notes it
                self._next_step()
        finally:
            self._driving.release()
            if self._step_ended:
                self._advance()

    def _advance(self) -> None:
        """Submit the next step as long as the current one has ended, unless another thread does."""
        self._step_ended = True
        while self._step_ended and self._driving.acquire(blocking=False):
            try:
                self._step_ended = False
                while self._current is not None and self._current.is_completed():
                    self._next_step()
            finally:
                self._driving.release()

    def _next_step(self) -> None:
        """Submit the next step, or end the work. The current step has ended."""
        ended, self._current = self._current, None
        try:
            if ended is not None:
                ended.wait()
            step = next(self._plan)
            self._current = OperationWork(self._submit(step), step.code, (), self._gid)
        except StopIteration:
            pass
        except Exception as error:
            self._failed = error
        if self._current is not None:
            self._current._when_done(self._advance, awaited=True)
            return
        self._at_end()
        with self._calling:
            self._over = True
            calls, self._calls = self._calls, []
        for call in calls:
            call()


def _run(group: Issuer, plan: Callable[[], _Plan], opts: Any, output: Sequence[Any]) -> Work:
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
            ASYNC | _native.QUIET,  # autograd knows nothing of the plan's tensors
            root=root,
            timeout=limit,
            scale=scale,
        )

    def forget() -> None:
        group._steps = None  # it is this work: another one begins only after this one has ended

    group._steps = work = Steps(plan(), output, submit, forget, gid)
    group_names.forget(group.group_name)  # kernels in C do not wait for it
    work.begin()
    if group._batch is not None:
        group._batch.append(work)
    return work


# Tensors


def _coalesced(group: Issuer, code: Op, tensor: Any) -> Any:
    """Return the coalesced form of a tensor, without autograd's history.

    Refuse the operation if the tensor cannot be coalesced or is on another device than the CPU.
    """
    try:
        if tensor.device.type != "cpu":
            raise DtypeError(
                f"{code.label}: a sparse tensor on device '{tensor.device}': move it to the CPU"
            )
        if tensor.dim() > _MAX_DIMENSIONS:
            raise ArgumentError(
                f"{code.label}: a sparse tensor of {tensor.dim()} dimensions, "
                f"at most {_MAX_DIMENSIONS} are supported"
            )
        if math.prod(tensor.shape[: tensor.sparse_dim()]) >= 2**63:
            raise ArgumentError(
                f"{code.label}: a sparse tensor of shape {tuple(tensor.shape)} has 2^63 positions "
                "or more"
            )
        with torch.inference_mode(tensor.is_inference()), torch.no_grad():
            return tensor.detach().coalesce()
    except Error as error:
        group._refuse(code, error)
    except (RuntimeError, NotImplementedError) as reason:  # torch has no kernel for the dtype
        group._refuse(code, DtypeError(f"{code.label}: torch cannot coalesce the tensor: {reason}"))


def _form(tensor: Any) -> tuple[int, ...]:
    sparse = tensor.sparse_dim() if tensor.is_sparse else -1
    return (sparse, tensor.dim(), *tensor.shape)


def _spell(tensor: Any) -> str:
    return f"{tuple(tensor.shape)} with {_form(tensor)[0]} sparse dimensions"


def _meet(group: Issuer, code: Op, tensor: Any) -> Generator[_Step, None, list[int]]:
    """Compare the members' tensors and return the number of elements of every member.

    Raises:
        MismatchError: the shapes or the numbers of sparse dimensions differ.
    """
    form = _form(tensor)
    row = torch.zeros(_MAX_DIMENSIONS + 3, dtype=torch.int64)
    row[: len(form)] = torch.tensor(form)
    row[-1] = tensor._nnz()
    table = torch.empty((group._core.size(), len(row)), dtype=torch.int64)
    yield _Step(Op.ALL_GATHER, row, table)
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


def _positions(tensor: Any) -> Any:
    """Return the positions of the elements of a coalesced tensor, in ascending order."""
    indices = tensor.indices()
    numbers = torch.zeros(indices.shape[1], dtype=torch.int64)
    for axis in range(tensor.sparse_dim()):
        numbers = numbers * tensor.shape[axis] + indices[axis]
    return numbers


def _write(tensor: Any, positions: Any, values: Any) -> None:
    """Replace the elements of a tensor by ``values`` at ``positions``, which are in order."""
    whole = tensor._base
    if whole is not None and whole.is_complex() and not tensor.is_complex():
        # torch passes view_as_real(whole). Once the view gets other positions, it no longer shares
        # memory with whole, which is the caller's tensor.
        _write(whole, positions, torch.view_as_complex(values))
    rows: list[Any] = []
    for extent in reversed(tensor.shape[: tensor.sparse_dim()]):
        rows.insert(0, positions % extent)
        positions = positions // extent
    indices = torch.stack(rows) if rows else torch.empty((0, len(positions)), dtype=torch.int64)
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        made = torch.sparse_coo_tensor(
            indices, values, tensor.shape, check_invariants=False, is_coalesced=True
        )
        tensor.copy_(made)
