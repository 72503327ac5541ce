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

import paddle
from paddle.nn import ClipGradByNorm, ClipGradByValue
from paddle.optimizer.lr import LRScheduler

from .. import group
from ..errors import ArgumentError
from . import autograd, private, watched
from .buckets import Bucket
from .parameters import STATE, only, parameters_of
from .watched import busy

__all__ = ["LANES", "Overlap", "know"]

LANES = 3
"""Groups over which the buckets travel side by side; the last carries what is needed first."""

_NAME = "paddlempi.paddle.DataParallel: overlap_next_forward"

# These update a parameter from its own gradient and states alone.
_KNOWN = tuple(
    getattr(paddle.optimizer, name)
    for name in (
        "SGD",
        "Momentum",
        "Adam",
        "AdamW",
        "Adamax",
        "Adagrad",
        "Adadelta",
        "RMSProp",
        "Lamb",
        "NAdam",
        "RAdam",
        "Rprop",
        "ASGD",
    )
    if hasattr(paddle.optimizer, name)
)

_Note = Callable[[Sequence[Any]], None]

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
        self.notes: list[_Note] = []
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
                f"{_NAME}: no optimizer of this model is known, so nothing overlaps: import "
                "paddlempi.paddle before making it",
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
                late.notes.append(functools.partial(_call, step, mine))
                late.steps = True
                noted |= mine
        return noted

    def note_clear(self, parameter: Any, set_to_zero: bool) -> bool:
        """Clear a gradient once it is there. False: it is, do it now."""
        late = self._of.get(id(parameter))
        if late is None:
            return False
        late.notes.append(lambda _: parameter.clear_gradient(set_to_zero))
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
                note(late.parameters)
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
        cls = type(optimizer)
        if not issubclass(cls, _Overlapped):
            private.check_object(optimizer, (*STATE, "_learning_rate", "_use_multi_tensor"))
            if hasattr(optimizer, "_paddlempi_zero"):
                raise ArgumentError(
                    f"{_NAME}: get_context().zero_opt_level shards the states of this "
                    f"{cls.__name__}: use one of the two"
                )
            if cls not in _KNOWN or optimizer._use_multi_tensor:
                what = "use_multi_tensor" if cls in _KNOWN else f"optimizer {cls.__qualname__}"
                raise ArgumentError(
                    f"{_NAME}: {what} may update several parameters at once, and cannot wait for "
                    "each by itself: take an optimizer of paddle.optimizer without it, or leave "
                    "overlap_next_forward out"
                )
            _check_clip(optimizer)
            optimizer._paddlempi_overlaps = weakref.WeakSet()
            optimizer.__class__ = type(
                cls.__name__, (_Overlapped, cls), {"__module__": cls.__module__}
            )
        optimizer._paddlempi_overlaps.add(self)
        self._served = True


def _call(step: Callable[[Collection[int]], None], ids: Collection[int], _: Any) -> None:
    step(ids)


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


def _check_clip(optimizer: Any) -> None:
    groups = optimizer._param_groups
    clips = [optimizer._grad_clip]
    if groups and isinstance(groups[0], dict):
        clips += [one.get("grad_clip") for one in groups]
    for clip in clips:
        if clip is not None and type(clip) not in (ClipGradByValue, ClipGradByNorm):
            raise ArgumentError(
                f"{_NAME}: grad_clip={type(clip).__name__} needs all gradients before the first "
                "parameter is updated: use ClipGradByNorm or ClipGradByValue, or leave "
                "overlap_next_forward out"
            )


class _Fixed(LRScheduler):  # type: ignore[misc]
    """In the place of a schedule: the learning rate that it gave when ``step`` was called."""

    def __init__(self, rate: float) -> None:
        self.last_lr = rate


class _Overlapped:
    """What stands before the class of an optimizer: its steps are noted where they must wait."""

    _paddlempi_overlaps: weakref.WeakSet[Overlap]

    def step(self) -> None:
        """Update what has its gradient; the rest when its gradient is there."""
        optimizer: Any = self
        _check_clip(optimizer)
        late = [overlap for overlap in self._paddlempi_overlaps if overlap in busy]
        if optimizer._global_learning_rate() is None:  # the first step makes the states
            for overlap in late:
                overlap.finish()
            late = []
        if not late:
            super().step()  # type: ignore[misc]
            return
        trained = {id(p) for p in parameters_of(optimizer) if not p.stop_gradient}
        step = functools.partial(self._step_late, optimizer.get_lr())
        noted: set[int] = set()
        for overlap in late:
            noted |= overlap.note_step(trained, step)
        rest = trained - noted
        if rest:
            with only(optimizer, rest):
                super().step()  # type: ignore[misc]

    def _step_late(self, rate: float, ids: Collection[int]) -> None:
        """The step for some parameters, as it would have been when it was called."""
        optimizer: Any = self
        schedule = optimizer._learning_rate
        if isinstance(schedule, LRScheduler):
            optimizer._learning_rate = _Fixed(rate)
        try:
            # It may be called from within the forward of a layer.
            with paddle.amp.auto_cast(enable=False), only(optimizer, ids):
                super().step()  # type: ignore[misc]
        finally:
            optimizer._learning_rate = schedule

    def state_dict(self) -> Any:
        """Paddle's, after all steps were made."""
        self._finish()
        return super().state_dict()  # type: ignore[misc]

    def set_state_dict(self, state_dict: Any) -> None:
        """Paddle's, after all steps were made."""
        self._finish()
        super().set_state_dict(state_dict)  # type: ignore[misc]

    load_state_dict = set_state_dict

    def set_lr(self, value: float) -> None:
        """Paddle's, after all steps were made with the rate that was."""
        self._finish()
        super().set_lr(value)  # type: ignore[misc]

    def _set_auxiliary_var(self, key: str, value: Any) -> None:
        if key == "found_inf":
            raise ArgumentError(
                f"{_NAME}: a GradScaler looks at all gradients before the first parameter is "
                "updated: train in bfloat16 without one, or leave overlap_next_forward out"
            )
        super()._set_auxiliary_var(key, value)  # type: ignore[misc]

    def _finish(self) -> None:
        for overlap in list(self._paddlempi_overlaps):
            overlap.finish()
