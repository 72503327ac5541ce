"""Optimizers whose step is made bucket by bucket, when the gradients of a bucket are complete.

``step()`` adds itself to a :class:`StepQueue`, with the learning rate of now, and returns. The
queue makes the step later, for the parameters of one bucket at a time. The methods that read or
set the state of an optimizer wait for all its steps first.
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
from .watched import PendingUpdates, busy

__all__ = ["OPTION", "StepQueue", "attach"]

OPTION = "paddlempi.paddle.DataParallel: overlap_next_forward"
"""The name of the option in error messages and warnings."""

# These update a parameter from its gradient and its states alone, without other parameters.
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


class StepQueue(PendingUpdates, Protocol):
    """Pending updates to which an optimizer adds its steps; in ``busy`` while there are any."""

    def add_step(self, ids: Collection[int], step: Callable[[Collection[int]], None]) -> set[int]:
        """Call ``step(ids)`` for every bucket, when it is complete.

        Args:
            ids: the ids of the parameters to update.
            step: is called with those of them that a bucket holds.

        Returns:
            The ids that pending buckets hold. The gradients of the other parameters are complete.
        """


def attach(optimizer: Any, queue: StepQueue) -> None:
    """Let an optimizer add its steps to a queue.

    Raises:
        ArgumentError: it cannot update some parameters before the gradients of others are there.
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
                f"{OPTION}: {what} may update several parameters at once, and cannot make its "
                "step bucket by bucket: use an optimizer of paddle.optimizer without "
                "use_multi_tensor, or leave overlap_next_forward out"
            )
        _check_clip(optimizer)
        optimizer._paddlempi_queues = weakref.WeakSet()
        put_before(optimizer, _Overlapped)
    optimizer._paddlempi_queues.add(queue)


def _check_clip(optimizer: Any) -> None:
    groups = optimizer._param_groups
    clips = [optimizer._grad_clip]
    if groups and isinstance(groups[0], dict):
        clips += [group.get("grad_clip") for group in groups]
    for clip in clips:
        if clip is not None and type(clip) not in (ClipGradByValue, ClipGradByNorm):
            raise ArgumentError(
                f"{OPTION}: grad_clip={type(clip).__name__} needs all gradients before the first "
                "parameter is updated: use ClipGradByNorm or ClipGradByValue, or leave "
                "overlap_next_forward out"
            )


class _FixedRate(LRScheduler):  # type: ignore[misc]
    """Stands for a schedule while a late step is made: the rate at the time of ``step()``."""

    def __init__(self, rate: float) -> None:
        self.last_lr = rate


class _Overlapped:
    """What :func:`attach` puts before an optimizer's class: its steps are made late."""

    _paddlempi_queues: weakref.WeakSet[StepQueue]

    def step(self) -> None:
        """Update every parameter: now if its gradient is complete, else as soon as it is."""
        optimizer: Any = self
        _check_clip(optimizer)
        queues = [queue for queue in self._paddlempi_queues if queue in busy]
        # The first step makes the states, for all parameters at once.
        if optimizer._global_learning_rate() is None:
            for queue in queues:
                queue.finish()
            queues = []
        if not queues:
            super().step()  # type: ignore[misc]
            return
        trained = {id(p) for p in parameters_of(optimizer) if not p.stop_gradient}
        step = functools.partial(self._step_late, optimizer.get_lr())
        added: set[int] = set()
        for queue in queues:
            added |= queue.add_step(trained, step)
        rest = trained - added
        if rest:
            with only(optimizer, rest):
                super().step()  # type: ignore[misc]

    def _step_late(self, rate: float, ids: Collection[int]) -> None:
        """Make the step for some parameters, with the learning rate at the time of ``step()``."""
        optimizer: Any = self
        schedule = optimizer._learning_rate
        if isinstance(schedule, LRScheduler):
            optimizer._learning_rate = _FixedRate(rate)
        try:
            # A layer may call this in its forward, under auto_cast.
            with paddle.amp.auto_cast(enable=False), only(optimizer, ids):
                super().step()  # type: ignore[misc]
        finally:
            optimizer._learning_rate = schedule

    def state_dict(self) -> Any:
        """Call Paddle's when all steps are made."""
        self._finish()
        return super().state_dict()  # type: ignore[misc]

    def set_state_dict(self, state_dict: Any) -> None:
        """Call Paddle's when all steps are made."""
        self._finish()
        super().set_state_dict(state_dict)  # type: ignore[misc]

    load_state_dict = set_state_dict

    def set_lr(self, value: float) -> None:
        """Make all steps with the old rate, then set the new one by Paddle's method."""
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
        for queue in list(self._paddlempi_queues):
            queue.finish()
