"""Overlap with the next forward: the optimizer's step is made bucket by bucket, and later.

One step goes like this:

1. Backward ends while its buckets are under way (:meth:`Overlap.start`).
2. ``optimizer.step()`` adds its update to each of these buckets, with the present learning rate,
   and returns. So does ``clear_gradient``.
3. A layer that is about to run waits for the buckets that hold its parameters. What was added to
   these buckets is then done, in the order in which it was added.
4. Everything else that reads parameters or gradients waits likewise: attributes, ``parameters()``
   and ``state_dict()`` of any layer, ``p.grad`` (:mod:`watched`), the state of an optimizer. The
   next backward and ``destroy_process_group`` wait for everything.

The forward first needs the bucket that backward filled last. This bucket travels in a group of its
own, past the other buckets, and is always waited for first. That raises if backward failed on some
rank, or if (by the bucket's marks) a parameter was reached on some ranks only. So these errors are
found before any parameter is updated.

A program may keep a parameter where its reading is not noticed. If a forward uses such a parameter
before its update, the next backward raises an error.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from .. import _log, group
from . import autograd, late_steps, watched
from .buckets import Bucket
from .parameters import parameters_of
from .watched import busy

__all__ = ["GROUP_COUNT", "Overlap", "register"]

GROUP_COUNT = 3
"""How many groups carry the buckets; the last one is for the bucket that is needed first."""

_living: weakref.WeakSet[Overlap] = weakref.WeakSet()
_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()


class BucketOwner(Protocol):
    """What an :class:`Overlap` calls of its reducer."""

    def wait_for_bucket(self, bucket: Bucket) -> None:
        """Wait for a bucket and check its marks.

        Raises:
            Error: what went wrong in this backward, on any rank.
        """

    def wait_for_buffers(self) -> None:
        """Wait for the model's buffers."""

    def all_complete(self) -> None:
        """Prepare for the next backward: all buckets and buffers are complete."""

    def discard_buckets(self) -> None:
        """Make new buckets: a bucket or the buffers failed."""


class _PendingBucket:
    """A bucket that may be under way, and what to do with its parameters when it is complete."""

    __slots__ = ("actions", "bucket", "complete", "has_step", "parameters")

    def __init__(self, bucket: Bucket, parameters: Sequence[Any]) -> None:
        self.bucket = bucket
        self.parameters = parameters
        self.actions: list[Callable[[], None]] = []
        self.has_step = False  # whether the actions will change the values of the parameters
        self.complete = False


class Overlap:
    """The gradients and updates of one model that are under way between two backwards.

    Implements :class:`watched.PendingUpdates` and :class:`late_steps.StepQueue`.

    Invariants: ``_pending`` is in the order in which a forward needs the buckets.
    ``_by_parameter`` has the parameters of these buckets and no others. The object is in ``busy``
    while ``_pending`` is not empty or ``_buffers_pending`` is true.

    Args:
        model: its layers get hooks before their forwards, and watched dictionaries of parameters.

    Thread-safety: none, as the reducer's.
    """

    def __init__(self, model: Any) -> None:
        self.waited = 0.0  # seconds
        self._owner: BucketOwner
        self._pending: list[_PendingBucket] = []
        self._by_parameter: dict[int, _PendingBucket] = {}  # by the id of a parameter
        self._buffers_pending = False
        self._stale: set[int] = set()  # ids of parameters that a forward used before their update
        self._first_checked = False  # the first bucket is complete, and its marks are right
        self._warned = False
        self._has_optimizer = False
        watched.watch_gradients()
        watched.watch_layers(model, weakref.ref(self))

    def begin(self, owner: BucketOwner, parameters: Sequence[Any]) -> None:
        """Set the reducer, and find the optimizers of its parameters.

        Raises:
            ArgumentError: one of the optimizers cannot make its step bucket by bucket.
        """
        self._owner = owner
        self._ids = frozenset(map(id, parameters))
        for optimizer in list(_optimizers):
            self._attach(optimizer)
        _living.add(self)

    # Backward

    def start(self, buckets: Sequence[Bucket], parameters: Sequence[Any]) -> None:
        """Take over the buckets and buffers that a backward has left under way."""
        watched.watch_gradients()
        if not (self._warned or self._has_optimizer):
            self._warned = True
            _log.warn(
                f"{late_steps.OPTION}: no optimizer of this model is known, so nothing overlaps: "
                "import paddlempi.paddle before making it",
                stacklevel=2,
            )
        self._first_checked = not buckets
        for bucket in reversed(buckets):
            pending = _PendingBucket(bucket, [parameters[entry.index] for entry in bucket.entries])
            self._pending.append(pending)
            self._by_parameter.update((id(parameter), pending) for parameter in pending.parameters)
        self._buffers_pending = True
        busy.add(self)

    def forward_ended(self) -> None:
        """Mark the parameters without their update: the forward may have used them too early."""
        self._stale.update(i for i, pending in self._by_parameter.items() if pending.has_step)

    def was_stale(self, parameter: Any) -> bool:
        """Return whether a forward may have used a parameter before its update."""
        return id(parameter) in self._stale

    def backward_ended(self) -> None:
        """Forget which parameters were stale: the backward has checked it."""
        self._stale.clear()

    # What the program reads

    def wait_for_parameters(self, ids: Collection[int]) -> None:
        """Complete the values of the parameters with these ids; they are about to be read."""
        if self._stale:
            self._stale.difference_update(ids)
        for i in ids:
            pending = self._by_parameter.get(i)
            if pending is not None and pending.has_step:
                self._finish(pending)

    def wait_for_buffers(self) -> None:
        """Complete the model's buffers; they are about to be read."""
        if self._buffers_pending:
            self._check_first()
            self._wait_for_buffers()
            self._end_if_complete()

    def wait_for_gradient(self, parameter: Any) -> None:
        """Complete ``parameter.grad``; it is about to be read or set."""
        pending = self._by_parameter.get(id(parameter))
        if pending is not None:
            self._finish(pending)

    def finish(self) -> None:
        """Complete everything."""
        while self._pending:
            self._finish(self._pending[0])
        if self._buffers_pending:
            self._wait_for_buffers()
            self._end_if_complete()

    # What is done when a bucket is complete

    def add_step(self, ids: Collection[int], step: Callable[[Collection[int]], None]) -> set[int]:
        """Call ``step(ids)`` for every bucket, when it is complete.

        Args:
            ids: the ids of the parameters to update.
            step: is called with those of them that a bucket holds.

        Returns:
            The ids that pending buckets hold. The gradients of the other parameters are complete.
        """
        added: set[int] = set()
        for pending in self._pending:
            chosen = {id(parameter) for parameter in pending.parameters}.intersection(ids)
            if chosen:
                pending.actions.append(functools.partial(step, chosen))
                pending.has_step = True
                added |= chosen
        return added

    def add_clear(self, parameter: Any, set_to_zero: bool) -> bool:
        """Clear a gradient when it is complete.

        Returns:
            False if it is complete: then the caller clears it.
        """
        pending = self._by_parameter.get(id(parameter))
        if pending is None:
            return False
        pending.actions.append(lambda: parameter.clear_gradient(set_to_zero))
        return True

    # Inside

    def _finish(self, wanted: _PendingBucket) -> None:
        """Wait for a bucket and do its actions. Update other complete buckets in the meantime."""
        self._check_first()
        while not (wanted.complete or wanted.bucket.is_completed()):
            others = (p for p in self._pending if p.has_step and p is not wanted)
            other = next((p for p in others if p.complete or p.bucket.is_completed()), None)
            if other is None:
                break
            self._apply(other)
        if wanted in self._pending:  # not if an update of another bucket has finished it
            self._apply(wanted)

    def _check_first(self) -> None:
        """Wait for the first bucket: its marks say whether the others may be used."""
        if not self._first_checked:
            self._wait_for_bucket(self._pending[0])
            self._first_checked = True

    def _wait_for_bucket(self, pending: _PendingBucket) -> None:
        began = time.perf_counter()
        self._or_discard(lambda: self._owner.wait_for_bucket(pending.bucket))
        self.waited += time.perf_counter() - began
        pending.complete = True

    def _wait_for_buffers(self) -> None:
        self._buffers_pending = False
        self._or_discard(self._owner.wait_for_buffers)

    def _or_discard(self, wait: Callable[[], None]) -> None:
        try:
            wait()
        except BaseException:
            self._pending.clear()
            self._by_parameter.clear()
            self._buffers_pending = False
            busy.discard(self)
            self._owner.discard_buckets()
            raise

    def _apply(self, pending: _PendingBucket) -> None:
        if not pending.complete:
            self._wait_for_bucket(pending)
        self._pending.remove(pending)
        for parameter in pending.parameters:
            del self._by_parameter[id(parameter)]
        try:
            for action in pending.actions:
                action()
        finally:
            self._end_if_complete()

    def _end_if_complete(self) -> None:
        if not self._pending and not self._buffers_pending and self in busy:
            busy.discard(self)
            self._owner.all_complete()

    # Optimizers

    def _attach(self, optimizer: Any) -> None:
        """Let an optimizer add its steps here, if it updates parameters of this model."""
        if self._ids.isdisjoint(map(id, parameters_of(optimizer))):
            return
        late_steps.attach(optimizer, self)
        self._has_optimizer = True


def register(optimizer: Any) -> None:
    """Attach a new optimizer to the models with ``overlap_next_forward`` that it updates.

    Raises:
        ArgumentError: it updates such a model, and cannot make its step bucket by bucket.
    """
    _optimizers.add(optimizer)
    for overlap in list(_living):
        overlap._attach(optimizer)


autograd.before_backward(watched.finish_all)
group.before_destroy(watched.finish_all)
