"""``paddlempi.paddle.elastic``: a job whose world Paddle knows, and which knows Paddle's objects.

Paddle's default group is another object in every world.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import paddle

from ... import group
from ...elasticity.job import Job, make
from ...errors import ArgumentError
from .. import functions, world
from ..activation import install
from ..data_parallel import DataParallel
from .generators import Random
from .models import Layer, Parallel
from .optimizers import Optimizer

__all__ = ["elastic"]


class _Front:
    """What Paddle does when the world changes."""

    def __init__(self, timeout: timedelta | float) -> None:
        self._timeout = timeout

    def begin(self, alone: bool, timeout: float) -> None:
        """Make the default group, in which the program makes its objects."""
        if group.is_initialized():
            raise ArgumentError(
                "elastic: there is a world already: leave init_parallel_env out, "
                "paddlempi.paddle.elastic calls it"
            )
        install()
        if alone:
            world.start_alone(timeout)
        functions.make_default(timeout)

    def reformed(self, job: Job) -> None:
        """Make the default group of the new world."""
        world.reformed()
        functions.make_default(self._timeout)

    def part_of(self, thing: Any) -> Any:
        """Return the part of an object of Paddle; None if it is none that is known."""
        if isinstance(thing, DataParallel):
            return Parallel(thing)
        if isinstance(thing, paddle.nn.Layer):
            return Layer(thing)
        if isinstance(thing, paddle.optimizer.Optimizer):
            return Optimizer(thing)
        return None

    def end(self) -> None:
        """End the world."""
        if group.is_initialized():
            group.destroy_process_group()


def elastic(min_ranks: int = 1, *, timeout: timedelta | float = group.DEFAULT_TIMEOUT) -> Job:
    """Return a job that goes on when ranks die: :func:`paddlempi.elastic`, for objects of Paddle.

    ``attach`` takes models, also in DataParallel, optimizers with their learning rate, and
    :class:`~paddlempi.paddle.Sharded`. The generators of random numbers of Paddle, NumPy and Python
    are attached always.

    Args:
        min_ranks, timeout: as for :func:`paddlempi.elastic`.

    Raises:
        ArgumentError: as :func:`paddlempi.elastic`.
    """
    job = make(min_ranks, timeout, _Front(timeout))
    job.attach(Random())
    return job
