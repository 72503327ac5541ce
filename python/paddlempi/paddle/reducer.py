"""Gradients averaged over the ranks while backward runs.

One backward of a :class:`Reducer` goes like this:

1. When backward comes to the model's outputs, the reducer begins to listen to it. Without a model
   (:mod:`optimizers`) it begins when Paddle has accumulated the first gradient.
2. Every gradient is copied into its bucket. When a bucket is full, its all_reduce starts, unless an
   earlier bucket is not full yet: all ranks start the buckets in the same order.
3. When backward ends, the reducer fills the other buckets. A parameter without a new gradient
   contributes the gradient of an earlier backward, or zeros. Then it waits for all buckets.
4. The marks in the buckets say which parameters had no gradient on which ranks. If only some ranks
   had one, all ranks see it, exchange the names and raise. If no rank had one, the gradient stays
   as it is, rank 0 warns once, and the same is expected of the next backward.
5. The first backward sends nothing before its end. It shows in which order gradients come, and how
   often the gradient of each parameter comes. The parameters are then divided into new buckets, by
   the order that rank 0 saw.

If backward raises an exception, this rank refuses the collectives that it has not started. The
other ranks then raise ``RefusedError`` instead of waiting.
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
from .buckets import DTYPES, Bucket, Entry, arrange
from .compression import Compression
from .overlap import Overlap
from .refusal import refuse
from .replicas import Buffers
from .sparse import Tables
from .usage import Usage

__all__ = ["Reducer", "is_averaged"]

_WHERE = "paddlempi.paddle.DataParallel"


class _Mode(enum.Enum):
    IDLE = enum.auto()  # no forward has run yet
    LOCAL = enum.auto()  # the last forward ran under no_sync
    SYNC = enum.auto()  # the next backward averages the gradients
    DETACHED = enum.auto()  # a newer reducer averages the gradients of these parameters


_living: weakref.WeakSet[Reducer] = weakref.WeakSet()


class Reducer:
    """Averages the gradients of some parameters.

    Args:
        parameters: names and parameters to train, the same on every rank.
        frozen: names and parameters that must stay frozen.
        group: a group that nothing else uses, so that the order of its collectives is known.
        limit: bytes of a bucket.
        last_limit: bytes of the last bucket.
        find_unused: a backward may leave parameters out. Ranks that do so contribute zeros.
        buffers: the buffers of the model, which are made equal at the end of a backward.
        tables: indices of the parameters whose gradients are SelectedRows.
        compression: what happens to a bucket before and after its all_reduce.
        groups: more groups that nothing else uses. The buckets travel in them side by side, and
            the last bucket has the last group for itself. None: all travel in ``group``.
        overlap: what waits for the buckets after backward has ended. None: backward waits.

    Raises:
        UnsupportedError: a parameter's dtype has no gradients.

    Thread-safety: none. One thread at a time runs the forwards and backwards of a model.
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
        groups: Sequence[ProcessGroup] | None = None,
        overlap: Overlap | None = None,
    ) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        self._frozen = frozen
        self._group = group
        self._groups = groups or [group]
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
        self._listening = False
        self._failure: Exception | None = None
        self._tables = Tables(
            [(index, self._parameters[index]) for index in tables], self._groups[-1]
        )
        # Until a backward has shown the order: the last parameter probably gets its gradient first.
        self._arrange([i for i in range(len(parameters) - 1, -1, -1) if i not in tables])
        self._ids = frozenset(map(id, self._parameters))
        self._overlap = overlap
        if overlap is not None:
            overlap.begin(self, self._parameters)
        for other in _living:
            if not self._ids.isdisjoint(other._ids):
                other.detach()
        _living.add(self)
        autograd.on_gradients(self._parameters, self)

    # Forward

    def prepare(self, sync: bool) -> None:
        """Prepare for the backwards that follow a forward; ``sync``: they average the gradients.

        Raises:
            ArgumentError: a newer reducer has some of the parameters.
        """
        if self._mode is _Mode.DETACHED:
            raise ArgumentError(
                f"{_WHERE}: a newer DataParallel has parameters of this model and averages their "
                "gradients: use that one"
            )
        self._mode = _Mode.SYNC if sync else _Mode.LOCAL
        if self._overlap is not None:
            self._overlap.forward_ended()

    # Backward

    def reached(self) -> None:
        """Take note that backward has come to an output of the model."""
        if self._mode is not _Mode.SYNC or self._listening or not autograd.running():
            return
        if not all(parameter.stop_gradient for parameter in self._parameters):
            self._listen()

    def gradient_added(self, index: int) -> None:
        """Take note that Paddle has accumulated into the gradient of a parameter."""
        mode = self._mode
        if mode is _Mode.LOCAL or mode is _Mode.DETACHED:
            return
        if not self._listening:
            self._listen()
        if mode is _Mode.IDLE:
            self._keep_error(
                ArgumentError(
                    f"{_WHERE}: backward reached parameter '{self._names[index]}' without "
                    "a forward: call the DataParallel, not the model inside it"
                )
            )
        if self._overlap is not None and self._overlap.was_stale(self._parameters[index]):
            self._keep_error(
                ArgumentError(
                    f"{_WHERE}: overlap_next_forward: parameter '{self._names[index]}' was used "
                    "before its update had come, because the forward did not read it from its "
                    "layer: read it from there (layer.weight), or call synchronize() before"
                )
            )
        if self._failure is not None:
            return
        usage = self._usage
        count = usage.count(index)
        if usage.learning:
            return
        entry = self._entries.get(index)
        if entry is None:  # of a sparse table: its rows are read when backward has ended
            return
        if entry.packed:
            self._keep_error(
                ArgumentError(
                    f"{_WHERE}: the gradient of parameter '{self._names[index]}' came "
                    f"{count} times in this backward, and {usage.times[index]} times in the first "
                    "one, after which it was sent: use the layer as often in every step, or "
                    "recompute with use_reentrant=False"
                )
            )
        elif count == usage.times[index]:
            try:
                self._pack(entry)
                self._start_full()
            except Exception as error:
                self._keep_error(error)

    def finish(self) -> None:
        """End a backward: send the other buckets, wait for all, and check the marks.

        If there is an overlap, it waits for the buckets and checks the marks after backward.
        """
        self._stop_listening()
        try:
            self._send_rest()
            began = time.perf_counter()
            if self._overlap is not None and not self._usage.learning:
                self._exchange_tables()
                self._waited += time.perf_counter() - began
                self._overlap.start(self._buckets, self._parameters)
                return
            self._wait()
            self._check_marks()
            self._tables.exchange()
            self._waited += time.perf_counter() - began
            if self._usage.learning:
                self._learn()
        except BaseException:
            self._make_buckets()
            raise
        self._reset()

    def abort(self) -> None:
        """End a backward that raised an exception; tell the other ranks, which then do not wait."""
        self._stop_listening()
        try:
            self._refuse()
        finally:
            self._make_buckets()

    # What the overlap with the next forward calls, after backward

    @property
    def seconds_waited(self) -> float:
        """Seconds waited at the ends of backwards and, with an overlap, before layers."""
        return self._waited + (0.0 if self._overlap is None else self._overlap.waited)

    def synchronize(self) -> None:
        """Wait for the buckets that are under way, and apply what waits for them."""
        if self._overlap is not None:
            self._overlap.finish()

    def wait_for_bucket(self, bucket: Bucket) -> None:
        """Wait for a bucket and check its marks.

        Raises:
            Error: what went wrong in this backward, on any rank.
        """
        bucket.wait()
        # Only the last bucket has this mark, and it is the first that is waited for.
        if bucket.unexpected[0]:
            for other in self._buckets:
                other.wait()
            self._check_marks()
        else:
            self._check_bucket_marks(bucket)

    def wait_for_buffers(self) -> None:
        """Wait for the model's buffers."""
        self._buffers.finish()

    def all_complete(self) -> None:
        """Prepare for the next backward: all buckets and buffers are complete."""
        self._reset()

    def discard_buckets(self) -> None:
        """Make new buckets: a bucket or the buffers failed."""
        self._make_buckets()

    # Inside

    def detach(self) -> None:
        """Average nothing any more: another reducer does, or will."""
        self.synchronize()
        self._mode = _Mode.DETACHED

    def _listen(self) -> None:
        autograd.listen(self)
        self._listening = True

    def _stop_listening(self) -> None:
        self._listening = False
        if self._overlap is not None:
            self._overlap.backward_ended()

    def _keep_error(self, error: Exception) -> None:
        """Keep an error until backward ends, because Paddle turns what a hook raises into another.

        Only the first one is kept.
        """
        if self._failure is None:
            self._failure = error

    def _pack(self, entry: Entry) -> None:
        parameter = self._parameters[entry.index]
        gradient = autograd.gradient_of(parameter)
        if gradient is None:  # Paddle 3.0 gives none to a parameter without elements
            gradient = paddle.zeros_like(parameter)
        if gradient.dtype != entry.bucket.dtype:
            raise ArgumentError(
                f"{_WHERE}: the gradient of parameter '{self._names[entry.index]}' has dtype "
                f"{gradient.dtype}, the parameter {entry.bucket.dtype}"
            )
        entry.pack(parameter, gradient)
        entry.bucket.pending -= 1

    def _start_full(self) -> None:
        """Start the all_reduce of every full bucket, up to the first one that is not full."""
        buckets = self._buckets
        while self._started < len(buckets) and not buckets[self._started].pending:
            bucket = buckets[self._started]
            compression = self._compression if bucket.compressible else None
            wire = None if compression is None else compression.compress(bucket.gradients)
            # Counted first: if the all_reduce fails, _refuse must not refuse this bucket again.
            self._started += 1
            group = self._group_of(self._started - 1)
            if compression is None:
                bucket.set_works([_start_all_reduce(bucket.storage, bucket.op, group)])
            else:  # the marks travel by themselves, because compression would change them
                bucket.set_works(
                    [
                        _start_all_reduce(bucket.marks, bucket.op, group),
                        _start_all_reduce(wire, bucket.op, group),
                    ],
                    functools.partial(compression.decompress, wire, bucket.gradients),
                )

    def _group_of(self, number: int) -> ProcessGroup:
        """Return the group of bucket ``number``.

        The last bucket has a group for itself, because the next forward needs it first.
        """
        groups = self._groups
        if number == len(self._buckets) - 1:
            return groups[-1]
        return groups[number % max(1, len(groups) - 1)]

    def _exchange_tables(self) -> None:
        """Average the sparse gradients before backward ends, also if the buckets are not over."""
        self._tables.wait()
        if self._tables.is_wrong(self._usage.find_unused):
            self._wait()
            self._usage.raise_mismatch()
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
            self._tables.start(self._usage.counts)
        except Exception:
            self._refuse()
            raise
        self._buffers.start()

    def _pack_rest(self) -> None:
        for bucket in self._buckets[self._started :]:
            for entry in bucket.entries:
                if entry.packed:
                    continue
                parameter = self._parameters[entry.index]
                has_gradient = autograd.gradient_of(parameter) is not None
                if not self._usage.counts[entry.index]:
                    bucket.mark_not_reached(entry.number, has_gradient)
                if self._usage.is_unexpected(entry.index):
                    self._buckets[-1].mark_unexpected()
                if has_gradient:
                    self._pack(entry)
                else:
                    entry.fill_zero()
                    bucket.pending -= 1

    def _wait(self) -> None:
        failure: Error | None = None
        waits = [bucket.wait for bucket in self._buckets]
        for wait in [*waits, self._tables.wait, self._buffers.finish]:
            try:
                wait()
            except Error as error:  # wait for the others too, as every rank does
                failure = failure or error
        if failure is not None:
            raise failure

    def _check_marks(self) -> None:
        """Check the marks of all buckets and tables. They are the same on all ranks.

        Raises:
            MismatchError: only some ranks' backwards have reached a parameter.
        """
        if self._tables.is_wrong(self._usage.find_unused):
            self._usage.raise_mismatch()
        for bucket in self._buckets:
            self._check_bucket_marks(bucket)
        reached = self._tables.reached()
        if self._buckets and self._buckets[-1].unexpected[0]:
            for bucket in self._buckets:
                used = (bucket.reached != 0).tolist()
                reached.update(zip((entry.index for entry in bucket.entries), used, strict=True))
        self._usage.expect(reached)

    def _check_bucket_marks(self, bucket: Bucket) -> None:
        not_reached = bucket.not_reached
        if not not_reached.any():
            return
        if not self._usage.find_unused and ((bucket.reached != 0) & (not_reached != 0)).any():
            self._usage.raise_mismatch()
        for entry in bucket.entries:
            if bucket.has_gradient[entry.number]:
                parameter = self._parameters[entry.index]
                if autograd.gradient_of(parameter) is None:
                    entry.bind(parameter)

    def _learn(self) -> None:
        """Divide the parameters anew, by the order in which gradients came on rank 0."""
        added = [index for index in self._usage.learn() if index in self._entries]
        order = array("q", dict.fromkeys([*added, *self._entries]))
        if order:
            broadcast(order, group=self._group, group_src=0)
            self._arrange(order)

    def _arrange(self, order: Sequence[int]) -> None:
        self._members = arrange(order, self._parameters, self._limit, self._last_limit)
        self._make_buckets()

    def _make_buckets(self) -> None:
        """Make new buckets. After a failure MPI may still write to the old ones."""
        size = self._group.size()
        self._buckets = [
            Bucket([(index, self._parameters[index]) for index in members], size)
            for members in self._members
        ]
        self._entries = {entry.index: entry for bucket in self._buckets for entry in bucket.entries}
        self._reset()

    def _reset(self) -> None:
        self._failure = None
        self._usage.reset()
        self._started = 0
        for bucket in self._buckets:
            bucket.reset()

    def _refuse(self) -> None:
        """Refuse the collectives of this backward that this rank has not started."""
        for number, bucket in enumerate(self._buckets[self._started :], self._started):
            compressed = self._compression is not None and bucket.compressible
            refuse(Op.ALL_REDUCE, self._group_of(number), times=2 if compressed else 1)
        self._tables.refuse()
        self._buffers.refuse()


def _start_all_reduce(tensor: Any, op: ReduceOp, group: ProcessGroup) -> Work:
    work = all_reduce(tensor, op, group, async_op=True)
    assert work is not None, "the group has this rank"
    return work


def is_averaged(parameters: Sequence[Any]) -> bool:
    """Return whether some reducer averages the gradients of any of these parameters."""
    ids = set(map(id, parameters))
    return any(
        other._mode is not _Mode.DETACHED and not ids.isdisjoint(other._ids) for other in _living
    )
