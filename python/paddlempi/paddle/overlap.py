"""Overlap with the next forward: a step is made when its gradients are there, layer by layer.

The life of one step:

1. Backward ends while its buckets are under way (:meth:`Overlap.take`).
2. ``optimizer.step()`` notes itself and its learning rate at each of them, ``clear_gradient``
   likewise, and both return.
3. A layer that is about to run waits for the buckets of its own parameters; what was noted is
   then done to the parameters of those buckets, in the order in which it was noted.
4. Whoever else asks for a parameter or a gradient waits likewise: attributes, ``parameters()``
   and ``state_dict()`` of any layer, ``p.grad`` (:mod:`watched`), the state of an optimizer. The
   next backward and the end of the world wait for everything.

The bucket that the forward needs first is the last one of backward. It travels in a group of its
own, past those before it, and is waited for before any other: it says whether backward failed on
some rank or missed a parameter, so that nothing is updated then.

A parameter that a forward used though its update was still to come (somebody kept it in a place
that nobody watches) is an error in the backward that follows.
"""

from __future__ import annotations

import functools
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from .. import group
from . import autograd, late_steps, watched
from .buckets import Bucket
from .parameters import parameters_of
from .watched import busy

__all__ = ["LANES", "Overlap", "know"]

LANES = 3
"""Groups over which the buckets travel side by side; the last carries what is needed first."""

_living: weakref.WeakSet[Overlap] = weakref.WeakSet()
_optimizers: weakref.WeakSet[Any] = weakref.WeakSet()


class Host(Protocol):
    """What the reducer does for its :class:`Overlap`."""

    def arrive(self, bucket: Bucket) -> None:
        """Wait for a bucket and look at its marks; raises what went wrong on any rank."""

    def arrive_buffers(self) -> None:
        """Wait for the model's buffers."""

    def settled(self) -> None:
        """Everything has arrived: make ready for the next backward."""

    def give_up(self) -> None:
        """Something did not arrive: make new buckets."""


class _Late:
    """A bucket under way and what is to be done to its parameters once it is there."""

    __slots__ = ("bucket", "notes", "parameters", "steps", "there")

    def __init__(self, bucket: Bucket, parameters: Sequence[Any]) -> None:
        self.bucket = bucket
        self.parameters = parameters
        self.notes: list[Callable[[], None]] = []
        self.steps = False  # whether a step is noted: the parameters are not what they should be
        self.there = False


class Overlap:
    """What one model has under way between a backward and the next.

    Invariants: ``_late`` is in the order in which a forward needs the buckets; ``_of`` has the
    parameters of these and no others; the object is in ``busy`` while there is anything in
    ``_late`` or ``_buffers_late`` holds.

    Args:
        model: its layers get hooks before their forwards, and watched tables of parameters.

    Thread-safety: none, as the reducer's.
    """

    def __init__(self, model: Any) -> None:
        self.waited = 0.0  # seconds in which there was nothing to do but wait
        self._host: Host
        self._late: list[_Late] = []
        self._of: dict[int, _Late] = {}
        self._buffers_late = False
        self._missed: set[int] = set()
        self._safe = False  # the bucket of the first layers has come, and all is well
        self._told = False
        self._served = False
        watched.watch_gradients()
        watched.watch_layers(model, weakref.ref(self))

    def begin(self, host: Host, parameters: Sequence[Any]) -> None:
        """Serve a reducer; find the optimizers of its parameters.

        Raises:
            ArgumentError: one of them cannot make its step bucket by bucket.
        """
        self._host = host
        self._ids = frozenset(map(id, parameters))
        for optimizer in list(_optimizers):
            self._attach(optimizer)
        _living.add(self)

    # Backward

    def take(self, buckets: Sequence[Bucket], parameters: Sequence[Any]) -> None:
        """Backward has ended; all its buckets are under way, and the model's buffers."""
        watched.watch_gradients()
        if not (self._told or self._served):
            self._told = True
            warnings.warn(
                f"{late_steps.OPTION}: no optimizer of this model is known, so nothing overlaps: "
                "import paddlempi.paddle before making it",
                stacklevel=2,
            )
        self._safe = not buckets
        for bucket in reversed(buckets):
            late = _Late(bucket, [parameters[slot.index] for slot in bucket.slots])
            self._late.append(late)
            self._of.update((id(parameter), late) for parameter in late.parameters)
        self._buffers_late = True
        busy.add(self)

    def forward_ended(self) -> None:
        """A forward has run: what it did not wait for, it should not have used."""
        self._missed.update(i for i, late in self._of.items() if late.steps)

    def was_missed(self, parameter: Any) -> bool:
        """Whether a forward has run that this parameter's update came too late for."""
        return id(parameter) in self._missed

    def backward_ended(self) -> None:
        """What was missed has been looked at."""
        self._missed.clear()

    # What is asked for

    def needs(self, parameters: Collection[int]) -> None:
        """The values of parameters with these ids are about to be read."""
        if self._missed:
            self._missed.difference_update(parameters)
        for i in parameters:
            late = self._of.get(i)
            if late is not None and late.steps:
                self._finish(late)

    def needs_buffers(self) -> None:
        """The model's buffers are about to be read."""
        if self._buffers_late:
            self._head()
            self._arrive_buffers()
            self._rest()

    def needs_gradient(self, parameter: Any) -> None:
        """``parameter.grad`` is about to be read or set."""
        late = self._of.get(id(parameter))
        if late is not None:
            self._finish(late)

    def finish(self) -> None:
        """Wait for everything and do what is noted."""
        while self._late:
            self._finish(self._late[0])
        if self._buffers_late:
            self._arrive_buffers()
            self._rest()

    # What is noted

    def note_step(self, ids: Collection[int], step: Callable[[Collection[int]], None]) -> set[int]:
        """``step(ids)`` is to be done when the gradients are there.

        Args:
            ids: of the parameters that it is meant for.

        Returns:
            The ids of those for which it is noted; the others' gradients are there.
        """
        noted: set[int] = set()
        for late in self._late:
            mine = {id(parameter) for parameter in late.parameters}.intersection(ids)
            if mine:
                late.notes.append(functools.partial(step, mine))
                late.steps = True
                noted |= mine
        return noted

    def note_clear(self, parameter: Any, set_to_zero: bool) -> bool:
        """Clear a gradient once it is there. False: it is, do it now."""
        late = self._of.get(id(parameter))
        if late is None:
            return False
        late.notes.append(lambda: parameter.clear_gradient(set_to_zero))
        return True

    # Inside

    def _finish(self, wanted: _Late) -> None:
        """Wait for a bucket, and do what is noted at it; meanwhile at others that are there."""
        self._head()
        while not (wanted.there or wanted.bucket.arrived()):
            ready = (one for one in self._late if one.steps and one is not wanted)
            other = next((one for one in ready if one.there or one.bucket.arrived()), None)
            if other is None:
                break
            self._apply(other)
        if wanted in self._late:  # what an update asks for may have brought it
            self._apply(wanted)

    def _head(self) -> None:
        """The bucket of the first layers says of all whether they may be used."""
        if not self._safe:
            self._arrive(self._late[0])
            self._safe = True

    def _arrive(self, late: _Late) -> None:
        began = time.perf_counter()
        self._or_give_up(lambda: self._host.arrive(late.bucket))
        self.waited += time.perf_counter() - began
        late.there = True

    def _arrive_buffers(self) -> None:
        self._buffers_late = False
        self._or_give_up(self._host.arrive_buffers)

    def _or_give_up(self, wait: Callable[[], None]) -> None:
        try:
            wait()
        except BaseException:
            self._late.clear()
            self._of.clear()
            self._buffers_late = False
            busy.discard(self)
            self._host.give_up()
            raise

    def _apply(self, late: _Late) -> None:
        if not late.there:
            self._arrive(late)
        self._late.remove(late)
        for parameter in late.parameters:
            del self._of[id(parameter)]
        try:
            for note in late.notes:
                note()
        finally:
            self._rest()

    def _rest(self) -> None:
        if not self._late and not self._buffers_late and self in busy:
            busy.discard(self)
            self._host.settled()

    # Optimizers

    def _attach(self, optimizer: Any) -> None:
        """Let an optimizer of these parameters note its steps here."""
        if self._ids.isdisjoint(map(id, parameters_of(optimizer))):
            return
        late_steps.attach(optimizer, self)
        self._served = True


def know(optimizer: Any) -> None:
    """An optimizer was made.

    Raises:
        ArgumentError: it updates parameters of a model with ``overlap_next_forward``, and cannot.
    """
    _optimizers.add(optimizer)
    for overlap in list(_living):
        overlap._attach(optimizer)


autograd.at_begin(watched.finish_all)
group.before_destroy(watched.finish_all)
