"""``paddlempi.torch.elastic``: a job whose world torch knows, and which knows the objects of torch.

torch's default group is the same object in every world, with other ranks.
"""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from ... import group, objects
from ...elasticity.job import Job, Plain, make
from ...errors import ArgumentError
from .. import world
from ..store import new_store
from .generators import Random
from .modules import DataParallel, Module
from .optimizers import Optimizer, Scaler, Scheduler

__all__ = ["elastic"]


class _Front(Plain):
    """What torch does when the world changes."""

    def begin(self, alone: bool, timeout: float) -> None:
        """Make the default group, in which the program makes its objects."""
        if dist.is_initialized():
            raise ArgumentError(
                "elastic: torch.distributed has a default group already: leave "
                "init_process_group out, paddlempi.torch.elastic calls it"
            )
        super().begin(alone, timeout)
        world.trust()
        dist.init_process_group("mpi", timeout=timedelta(seconds=timeout))

    def reformed(self, job: Job) -> None:
        """Give the default group the ranks of the new world, and a new store."""
        global _mesh_world
        made = c10d._get_default_group()
        _mesh_world = job.generation
        _tell_meshes_apart()
        made.renew(group.new_group(timeout=made._timeout))
        c10d._world.pg_map[made] = (c10d._world.pg_map[made][0], new_store(made._timeout))
        # New groups get the same names on all ranks: torch counts the groups before them.
        counts = [0] * made.size()
        objects.all_gather_object(counts, c10d._world.group_count)
        c10d._world.group_count = max(counts)

    def part_of(self, thing: Any) -> Any:
        """Return the part of an object of torch; None if it is none that is known."""
        for kind, part in _PARTS.items():
            if isinstance(thing, kind):
                return part(thing)
        return None

    def end(self) -> None:
        """End the default group, and the world."""
        if dist.is_initialized():
            dist.destroy_process_group()
        super().end()


_mesh_world = 0
"""The generation of the world in which meshes are made now."""


@functools.cache
def _tell_meshes_apart() -> None:
    """Let a mesh of one world equal none of another one.

    DTensor keeps much by mesh, and for it meshes are equal if their ranks are. So it would take
    those of an earlier world, in which this process had another rank, and whose groups are gone.
    """
    begin = DeviceMesh.__init__

    @functools.wraps(begin)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        self._thread_id, self._hash = (self._thread_id, _mesh_world), None

    DeviceMesh.__init__ = init


_PARTS: dict[type, Any] = {
    DistributedDataParallel: DataParallel,
    torch.nn.Module: Module,
    torch.optim.Optimizer: Optimizer,
    torch.optim.lr_scheduler.LRScheduler: Scheduler,
    torch.amp.GradScaler: Scaler,
}
"""The first counts that fits."""


def elastic(min_ranks: int = 1, *, timeout: timedelta | float = group.DEFAULT_TIMEOUT) -> Job:
    """Return a job that goes on when ranks die: :func:`paddlempi.elastic`, for objects of torch.

    ``attach`` takes models, also in DistributedDataParallel, optimizers, schedulers of the learning
    rate, a GradScaler, :class:`~paddlempi.torch.Batches` and :class:`~paddlempi.torch.Sharded`.
    The generators of random numbers of torch, NumPy and Python are attached always.

    Args:
        min_ranks, timeout: as for :func:`paddlempi.elastic`.

    Raises:
        ArgumentError: as :func:`paddlempi.elastic`.
    """
    job = make(min_ranks, timeout, _Front())
    job.attach(Random())
    return job
