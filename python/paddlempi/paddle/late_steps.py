"""Optimizers whose steps are made bucket by bucket, when the gradients are there.

A step is noted at whoever has gradients under way (:class:`Noting`), with its learning rate, and is
made for the parameters of one bucket at a time; what asks for an optimizer's state waits for all.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Collection
from typing import Any, Protocol

import paddle
from paddle.nn import ClipGradByNorm, ClipGradByValue
from paddle.optimizer.lr import LRScheduler

from ..errors import ArgumentError
from . import private
from .parameters import STATE, only, parameters_of, put_before
from .watched import Bringer, busy

__all__ = ["OPTION", "Noting", "attach"]

OPTION = "paddlempi.paddle.DataParallel: overlap_next_forward"
"""What asks for such steps, as messages name it."""

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


class Noting(Bringer, Protocol):
    """Who has gradients of an optimizer's parameters under way; in ``busy`` while it has any."""

    def note_step(self, ids: Collection[int], step: Callable[[Collection[int]], None]) -> set[int]:
        """``step(ids)`` is to be done when the gradients are there.

        Returns:
            The ids of those for which it is noted; the others' gradients are there.
        """


def attach(optimizer: Any, noting: Noting) -> None:
    """Let an optimizer note its steps.

    Raises:
        ArgumentError: it cannot make its step for some parameters by themselves.
    """
    cls = type(optimizer)
    if not issubclass(cls, _Overlapped):
        private.check_object(optimizer, (*STATE, "_learning_rate", "_use_multi_tensor"))
        if hasattr(optimizer, "_paddlempi_zero"):
            raise ArgumentError(
                f"{OPTION}: get_context().zero_opt_level shards the states of this "
                f"{cls.__name__}: use one of the two"
            )
        if cls not in _KNOWN or optimizer._use_multi_tensor:
            what = "use_multi_tensor" if cls in _KNOWN else f"optimizer {cls.__qualname__}"
            raise ArgumentError(
                f"{OPTION}: {what} may update several parameters at once, and cannot wait for "
                "each by itself: take an optimizer of paddle.optimizer without it, or leave "
                "overlap_next_forward out"
            )
        _check_clip(optimizer)
        optimizer._paddlempi_overlaps = weakref.WeakSet()
        put_before(optimizer, _Overlapped)
    optimizer._paddlempi_overlaps.add(noting)


def _check_clip(optimizer: Any) -> None:
    groups = optimizer._param_groups
    clips = [optimizer._grad_clip]
    if groups and isinstance(groups[0], dict):
        clips += [one.get("grad_clip") for one in groups]
    for clip in clips:
        if clip is not None and type(clip) not in (ClipGradByValue, ClipGradByNorm):
            raise ArgumentError(
                f"{OPTION}: grad_clip={type(clip).__name__} needs all gradients before the first "
                "parameter is updated: use ClipGradByNorm or ClipGradByValue, or leave "
                "overlap_next_forward out"
            )


class _Fixed(LRScheduler):  # type: ignore[misc]
    """In the place of a schedule: the learning rate that it gave when ``step`` was called."""

    def __init__(self, rate: float) -> None:
        self.last_lr = rate


class _Overlapped:
    """What stands before the class of an optimizer: its steps are noted where they must wait."""

    _paddlempi_overlaps: weakref.WeakSet[Noting]

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
                f"{OPTION}: a GradScaler looks at all gradients before the first parameter is "
                "updated: train in bfloat16 without one, or leave overlap_next_forward out"
            )
        super()._set_auxiliary_var(key, value)  # type: ignore[misc]

    def _finish(self) -> None:
        for overlap in list(self._paddlempi_overlaps):
            overlap.finish()
