"""Gradients averaged over the ranks while backward runs.

The life of one backward of a :class:`Reducer`:

1. It joins the backward that runs when that comes to the model's outputs, or, where there is no
   model, when Paddle has accumulated the first gradient.
2. A gradient goes into its bucket; a bucket that is full starts its all_reduce, unless one
   before it is not full yet: every rank starts them in the same order.
3. When backward ends, what is left is sent with zeros or older gradients in the place of those
   that did not come, and all are waited for.
4. The marks in the buckets say which parameters had no gradient, on some ranks or on all. Some is
   an error: all ranks see it, tell each other the names and raise. All is taken as it is, told
   once, and expected from then on.
5. The first backward sends nothing before its end: from it the order of use is learnt, and how
   often a parameter's gradient comes. Rank 0's order divides the parameters anew for all.

An exception inside backward refuses what this rank has not started: the others raise
``RefusedError`` instead of waiting.
"""

from __future__ import annotations

import enum
import functools
import time
import weakref
from array import array
from collections.abc import Sequence
from typing import Any

import paddle

from .._ops import Op
from ..collectives import all_reduce, broadcast
from ..errors import ArgumentError, Error, UnsupportedError
from ..group import ProcessGroup
from ..reduce_op import ReduceOp
from ..work import Work
from . import autograd
from .buckets import DTYPES, Bucket, Slot, arrange
from .compression import Compression
from .overlap import Overlap
from .refusal import refuse
from .replicas import Buffers
from .sparse import Tables
from .usage import Usage

__all__ = ["Reducer", "averaged"]

_WHERE = "paddlempi.paddle.DataParallel"


class _Mode(enum.Enum):
    IDLE = enum.auto()  # no forward yet
    LOCAL = enum.auto()  # the last forward stood under no_sync
    SYNC = enum.auto()
    DETACHED = enum.auto()  # a younger reducer has its parameters


_living: weakref.WeakSet[Reducer] = weakref.WeakSet()


class Reducer:
    """The gradients of some parameters.

    Args:
        parameters: names and parameters to train, the same on every rank.
        frozen: names and parameters that must stay frozen.
        group: of this reducer alone: the order of its collectives is its own.
        limit: bytes of a bucket.
        last_limit: bytes of the last bucket.
        find_unused: parameters may be out of use; their ranks contribute nothing.
        buffers: what is made equal at the end of a backward too.
        tables: indices of the parameters whose gradients are rows.
        compression: what happens to a bucket before and after its all_reduce.
        lanes: groups of this reducer alone, over which buckets travel side by side, the last one
            in the last; None: one after the other in ``group``.
        overlap: what waits for the buckets after backward has ended; None: backward does.

    Raises:
        UnsupportedError: a parameter's dtype has no gradients.

    Thread-safety: none; forward and backward of one model are one thread's at a time.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, Any]],
        frozen: Sequence[tuple[str, Any]],
        group: ProcessGroup,
        limit: int,
        last_limit: int,
        find_unused: bool,
        buffers: Buffers,
        tables: Sequence[int] = (),
        compression: Compression | None = None,
        lanes: Sequence[ProcessGroup] | None = None,
        overlap: Overlap | None = None,
    ) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._frozen = frozen
        self._group = group
        self._lanes = lanes or [group]
        self._limit = limit
        self._last_limit = last_limit
        self._usage = Usage(parameters, group, find_unused)
        self._buffers = buffers
        self._compression = compression
        for name, parameter in parameters:
            if parameter.dtype not in DTYPES:
                raise UnsupportedError(
                    f"{_WHERE}: parameter '{name}' has dtype {parameter.dtype}, whose gradients "
                    "cannot be averaged: freeze it or set its no_sync"
                )
        self._waited = 0.0
        self._mode = _Mode.IDLE
        self._joined = False
        self._failure: Exception | None = None
        self._tables = Tables(
            [(index, self._parameters[index]) for index in tables], self._lanes[-1]
        )
        # The last parameter is the first whose gradient comes, as a guess.
        self._arrange([i for i in range(len(parameters) - 1, -1, -1) if i not in tables])
        self._ids = frozenset(map(id, self._parameters))
        self._overlap = overlap
        if overlap is not None:
            overlap.begin(self, self._parameters)
        for other in _living:
            if not self._ids.isdisjoint(other._ids):
                other._detach()
        _living.add(self)
        autograd.on_gradients(self._parameters, self)

    # Forward

    def prepare(self, sync: bool) -> None:
        """A forward has run; the next backwards are synchronized, or not."""
        if self._mode is _Mode.DETACHED:
            raise ArgumentError(
                f"{_WHERE}: the parameters of this model were given to a younger DataParallel, "
                "which averages their gradients: use that one"
            )
        self._mode = _Mode.SYNC if sync else _Mode.LOCAL
        if self._overlap is not None:
            self._overlap.forward_ended()

    # Backward

    def reached(self) -> None:
        """Backward has come to what the model gave: to its parameters, or it fails before."""
        if self._mode is not _Mode.SYNC or self._joined or not autograd.running():
            return
        if not all(parameter.stop_gradient for parameter in self._parameters):
            self._join()

    def came(self, index: int) -> None:
        """Paddle has accumulated into the gradient of a parameter."""
        mode = self._mode
        if mode is _Mode.LOCAL or mode is _Mode.DETACHED:
            return
        if not self._joined:
            self._join()
        if mode is _Mode.IDLE:
            self._fail(
                ArgumentError(
                    f"{_WHERE}: backward reached parameter '{self._names[index]}' without "
                    "a forward: call the DataParallel, not the model inside it"
                )
            )
        if self._overlap is not None and self._overlap.was_missed(self._parameters[index]):
            self._fail(
                ArgumentError(
                    f"{_WHERE}: overlap_next_forward: parameter '{self._names[index]}' was used "
                    "before its update had come, for it was not read from its layer: let the "
                    "forward take it from there (layer.weight), or call synchronize() before"
                )
            )
        if self._failure is not None:
            return
        usage = self._usage
        count = usage.count(index)
        if usage.learning:
            return
        slot = self._slots.get(index)
        if slot is None:  # a table: its rows are known when all of them have come
            return
        if slot.packed:
            self._fail(
                ArgumentError(
                    f"{_WHERE}: the gradient of parameter '{self._names[index]}' came "
                    f"{count} times in this backward, and {usage.times[index]} times in the first "
                    "one, after which it was sent: use the layer as often in every step, or "
                    "recompute with use_reentrant=False"
                )
            )
        elif count == usage.times[index]:
            try:
                self._pack(slot)
                self._start_full()
            except Exception as error:
                self._fail(error)

    def finish(self) -> None:
        """Backward has ended: send what is left, wait for all, look at the marks."""
        self._leave()
        try:
            self._send_rest()
            began = time.perf_counter()
            if self._overlap is not None and not self._usage.learning:
                self._exchange_tables()
                self._waited += time.perf_counter() - began
                self._overlap.take(self._buckets, self._parameters)
                return
            self._wait()
            self._judge()
            self._tables.exchange()
            self._waited += time.perf_counter() - began
            if self._usage.learning:
                self._learn()
        except BaseException:
            self._renew()
            raise
        self._reset()

    def abort(self) -> None:
        """Backward ended with an exception: tell the others not to wait for this rank."""
        self._leave()
        try:
            self._refuse()
        finally:
            self._renew()

    # What the overlap with the next forward asks for, after backward

    @property
    def seconds_waited(self) -> float:
        """Seconds at the ends of backwards, or before layers, with nothing else to do."""
        return self._waited + (0.0 if self._overlap is None else self._overlap.waited)

    def synchronize(self) -> None:
        """Wait for what is under way."""
        if self._overlap is not None:
            self._overlap.finish()

    def arrive(self, bucket: Bucket) -> None:
        """Wait for a bucket and look at its marks."""
        bucket.wait()
        if bucket.surprises[0]:  # the last one, which is waited for first, speaks for all
            for other in self._buckets:
                other.wait()
            self._judge()
        else:
            self._judge_bucket(bucket)

    def arrive_buffers(self) -> None:
        """Wait for the model's buffers."""
        self._buffers.finish()

    def settled(self) -> None:
        """All has arrived: ready for the next backward."""
        self._reset()

    def give_up(self) -> None:
        """Something has not."""
        self._renew()

    # Inside

    def _detach(self) -> None:
        self.synchronize()
        self._mode = _Mode.DETACHED

    def _join(self) -> None:
        autograd.join(self)
        self._joined = True

    def _leave(self) -> None:
        self._joined = False
        if self._overlap is not None:
            self._overlap.backward_ended()

    def _fail(self, error: Exception) -> None:
        """Remember what went wrong: an exception out of a hook would reach the user as another."""
        if self._failure is None:
            self._failure = error

    def _pack(self, slot: Slot) -> None:
        parameter = self._parameters[slot.index]
        gradient = autograd.gradient_of(parameter)
        if gradient is None:  # Paddle 3.0 gives none to a parameter without elements
            gradient = paddle.zeros_like(parameter)
        if gradient.dtype != slot.bucket.dtype:
            raise ArgumentError(
                f"{_WHERE}: the gradient of parameter '{self._names[slot.index]}' has dtype "
                f"{gradient.dtype}, the parameter {slot.bucket.dtype}"
            )
        slot.pack(parameter, gradient)
        slot.bucket.pending -= 1

    def _start_full(self) -> None:
        """Start the all_reduce of every full bucket that no bucket before it holds up."""
        buckets = self._buckets
        while self._started < len(buckets) and not buckets[self._started].pending:
            bucket = buckets[self._started]
            compression = self._compression if bucket.compressible else None
            wire = None if compression is None else compression.compress(bucket.gradients)
            self._started += 1  # whatever becomes of it, its place in the order is taken
            group = self._lane(self._started - 1)
            if compression is None:
                bucket.under_way([_sum(bucket.storage, bucket.op, group)])
            else:  # the marks go by themselves: they must come through as they are
                bucket.under_way(
                    [_sum(bucket.marks, bucket.op, group), _sum(wire, bucket.op, group)],
                    functools.partial(compression.decompress, wire, bucket.gradients),
                )

    def _lane(self, number: int) -> ProcessGroup:
        """The group of a bucket. The last one, which the next forward needs first, has its own."""
        lanes = self._lanes
        if number == len(self._buckets) - 1:
            return lanes[-1]
        return lanes[number % max(1, len(lanes) - 1)]

    def _exchange_tables(self) -> None:
        """Sparse gradients are there when backward ends, whatever the buckets do."""
        self._tables.wait()
        if self._tables.is_wrong(self._usage.find_unused):
            self._wait()
            self._usage.complain()
        self._usage.expect(self._tables.reached())
        self._tables.exchange()

    def _send_rest(self) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            for name, parameter in self._frozen:
                if not parameter.stop_gradient:
                    raise ArgumentError(
                        f"{_WHERE}: parameter '{name}' was frozen when the model was wrapped and "
                        "is not any more: make a new DataParallel of the model"
                    )
            self._pack_rest()
            self._start_full()
            self._tables.start(self._usage.came)
        except Exception:
            self._refuse()
            raise
        self._buffers.start()

    def _pack_rest(self) -> None:
        for bucket in self._buckets[self._started :]:
            for slot in bucket.slots:
                if slot.packed:
                    continue
                parameter = self._parameters[slot.index]
                has = autograd.gradient_of(parameter) is not None
                if not self._usage.came[slot.index]:
                    bucket.mark_absent(slot.number, has)
                if self._usage.is_surprise(slot.index):
                    self._buckets[-1].mark_surprise()
                if has:
                    self._pack(slot)
                else:
                    slot.fill_zero()
                    bucket.pending -= 1

    def _wait(self) -> None:
        failure: Error | None = None
        waits = [bucket.wait for bucket in self._buckets]
        for wait in [*waits, self._tables.wait, self._buffers.finish]:
            try:
                wait()
            except Error as error:  # the others end too, all of them on every rank
                failure = failure or error
        if failure is not None:
            raise failure

    def _judge(self) -> None:
        """Look at what the marks say of all ranks."""
        if self._tables.is_wrong(self._usage.find_unused):
            self._usage.complain()
        for bucket in self._buckets:
            self._judge_bucket(bucket)
        reached = self._tables.reached()
        if self._buckets and self._buckets[-1].surprises[0]:
            for bucket in self._buckets:
                used = (bucket.used != 0).tolist()
                reached.update(zip((slot.index for slot in bucket.slots), used, strict=True))
        self._usage.expect(reached)

    def _judge_bucket(self, bucket: Bucket) -> None:
        absent = bucket.absent
        if not absent.any():
            return
        if not self._usage.find_unused and ((bucket.used != 0) & (absent != 0)).any():
            self._usage.complain()
        for slot in bucket.slots:
            if bucket.has[slot.number]:
                parameter = self._parameters[slot.index]
                if autograd.gradient_of(parameter) is None:
                    slot.bind(parameter)

    def _learn(self) -> None:
        """Divide the parameters anew, by the order in which rank 0 had them."""
        came = [index for index in self._usage.learn() if index in self._slots]
        order = array("q", dict.fromkeys([*came, *self._slots]))
        if order:
            broadcast(order, group=self._group, group_src=0)
            self._arrange(order)

    def _arrange(self, order: Sequence[int]) -> None:
        self._members = arrange(order, self._parameters, self._limit, self._last_limit)
        self._renew()

    def _renew(self) -> None:
        """New buckets: MPI may still write to those of a backward that went wrong."""
        size = self._group.size()
        self._buckets = [
            Bucket([(index, self._parameters[index]) for index in members], size)
            for members in self._members
        ]
        self._slots = {slot.index: slot for bucket in self._buckets for slot in bucket.slots}
        self._reset()

    def _reset(self) -> None:
        self._failure = None
        self._usage.reset()
        self._started = 0
        for bucket in self._buckets:
            bucket.reset()

    def _refuse(self) -> None:
        """Take the places of the collectives that this rank will not start."""
        for number, bucket in enumerate(self._buckets[self._started :], self._started):
            compressed = self._compression is not None and bucket.compressible
            refuse(Op.ALL_REDUCE, self._lane(number), times=2 if compressed else 1)
        self._tables.refuse()
        self._buffers.refuse()


def _sum(tensor: Any, op: ReduceOp, group: ProcessGroup) -> Work:
    work = all_reduce(tensor, op, group, async_op=True)
    assert work is not None, "the group has this rank"
    return work


def averaged(parameters: Sequence[Any]) -> bool:
    """Whether some reducer averages the gradients of any of these parameters."""
    ids = set(map(id, parameters))
    return any(
        other._mode is not _Mode.DETACHED and not ids.isdisjoint(other._ids) for other in _living
    )
