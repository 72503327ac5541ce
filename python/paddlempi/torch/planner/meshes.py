"""The mesh of a plan: which one a kind has in this job, and whether one fits it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from datetime import timedelta
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ... import group as core_group
from ...errors import ArgumentError
from ...planner.plans import KINDS, Plan, Plans
from . import agreed, pipeline, tensor_parallel

__all__ = [
    "DIMENSIONS",
    "Job",
    "check",
    "checked",
    "data_dimensions",
    "local_ranks",
    "mesh_of",
    "natural",
    "tried_mesh",
]

DIMENSIONS = {
    "ddp": ("replicate",),
    "fsdp2": ("shard",),
    "hsdp": ("replicate", "shard"),
    "tp": ("tensor",),
    "fsdp2+tp": ("shard", "tensor"),
    "pipeline": ("replicate", "stage"),
}
"""Of the mesh of each kind, the outermost first."""


class Job(NamedTuple):
    """The ranks there are; ``ranks`` on each node, 0 if the nodes have different numbers."""

    size: int
    ranks: int

    @property
    def nodes(self) -> int:
        """How many nodes there are; 0 if they have different numbers of ranks."""
        return self.size // self.ranks if self.ranks else 0


def local_ranks() -> int:
    """Return how many ranks of the job are on this node."""
    if core_group.is_initialized():
        return core_group.get_local_size()
    return int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))


_numbers = itertools.count(1)


def mesh_of(plan: Plan, device: torch.device) -> DeviceMesh:
    """Return torch's mesh of a plan. Collective over all ranks."""
    names = _passing(plan) if agreed.pretended() else tuple(plan.mesh)
    return init_device_mesh(device.type, tuple(plan.mesh.values()), mesh_dim_names=names)


def tried_mesh(plan: Plan, device: torch.device, deadline: timedelta) -> DeviceMesh:
    """Return a mesh whose groups are its own: torch's may have the default group. Collective.

    Args:
        deadline: of the groups.
    """
    lengths = tuple(plan.mesh.values())
    ranks = torch.arange(dist.get_world_size()).reshape(lengths)
    groups = []
    for dimension, length in enumerate(lengths):
        rows = ranks.movedim(dimension, -1).reshape(-1, length).tolist()
        groups.append(dist.new_subgroups_by_enumeration(rows, timeout=deadline)[0])
    return DeviceMesh.from_group(groups, device.type, mesh=ranks, mesh_dim_names=_passing(plan))


def _passing(plan: Plan) -> tuple[str, ...]:
    """Return names of dimensions for a mesh whose groups will be destroyed.

    DTensor keeps meshes, and takes one for another if their ranks and names are equal. So no
    other mesh has these names.
    """
    number = next(_numbers)
    return tuple(f"{name} {number}" for name in plan.mesh)


def data_dimensions(plan: Plan) -> tuple[str, ...]:
    """Return the dimensions of a plan's mesh whose ranks get different parts of a batch."""
    return tuple(name for name in plan.mesh if name in ("replicate", "shard"))


def checked(plan: Any) -> Plan | str:
    """Return the plan that is asked for, or the name of a kind, or "auto".

    Raises:
        ArgumentError: it is none of those.
    """
    if isinstance(plan, Plans):
        return plan.best
    if isinstance(plan, Plan) or plan == "auto" or plan in KINDS:
        return plan  # type: ignore[no-any-return]
    raise ArgumentError(
        f"apply: plan={plan!r}: it must be a Plan, the Plans of paddlempi.torch.plan, "
        f"one of {', '.join(KINDS)}, or 'auto'"
    )


def natural(kind: str, job: Job, model: nn.Module) -> Plan:
    """Return the plan of a kind whose mesh is that of the job's nodes and ranks.

    Raises:
        ArgumentError: the kind has none in this job, or for this model.
    """
    size, nodes, ranks = job.size, job.nodes or 1, job.ranks or job.size
    if kind == "hsdp":
        if nodes < 2 or ranks < 2:
            raise ArgumentError(
                f"apply: plan='hsdp': it replicates over nodes and shards within them, and this "
                f"job has {job.nodes or 'unequal'} nodes with {ranks} ranks: use 'fsdp2', or give "
                "a Plan with a mesh of its own"
            )
        mesh = {"replicate": nodes, "shard": ranks}
    elif kind == "fsdp2+tp":
        degree = _first(_degrees(size, ranks), lambda n: tensor_parallel.styles(model, n), kind)
        mesh = {"shard": size // degree, "tensor": degree}
    elif kind == "pipeline":
        stages = _first(_stages(size), lambda n: pipeline.cut(model, n), kind)
        mesh = {"replicate": size // stages, "stage": stages}
    else:
        mesh = {DIMENSIONS[kind][0]: size}
    return Plan(kind, mesh, nodes, size // nodes)


def _degrees(size: int, ranks: int) -> Iterator[int]:
    """Yield degrees of tensor parallelism within nodes that leave two shards, falling."""
    yield from (n for n in range(ranks, 1, -1) if ranks % n == 0 and size // n > 1)


def _stages(size: int) -> Iterator[int]:
    """Yield numbers of stages, the largest first: one only for one rank."""
    yield from (n for n in range(size, min(size - 1, 1), -1) if size % n == 0)


def _first(numbers: Iterator[int], possible: Any, kind: str) -> int:
    """Return the first number for which a function does not refuse."""
    refused: ArgumentError | None = None
    for number in numbers:
        try:
            possible(number)
        except ArgumentError as error:
            refused = refused or error
        else:
            return number
    if refused is not None:
        raise refused
    raise ArgumentError(f"apply: plan={kind!r} needs more ranks than this job has: use another one")


def check(plan: Plan, job: Job | None, size: int) -> None:
    """Check that a plan's mesh is one of its kind and fits the job.

    Args:
        job: None where the ranks are pretended.
        size: of the world.

    Raises:
        ArgumentError: it does not.
    """
    if plan.kind not in KINDS:
        raise ArgumentError(f"apply: plan.kind={plan.kind!r}: it must be one of {', '.join(KINDS)}")
    if tuple(plan.mesh) != DIMENSIONS[plan.kind]:
        raise ArgumentError(
            f"apply: plan {plan.kind!r} has the mesh {plan.mesh}: it must have the dimensions "
            f"{DIMENSIONS[plan.kind]} in this order"
        )
    if prod(plan.mesh.values()) != size or min(plan.mesh.values()) < 1:
        raise ArgumentError(
            f"apply: plan {plan.name} has a mesh of {prod(plan.mesh.values())} ranks, and this job "
            f"has {size}: make the plan for this job, or start {prod(plan.mesh.values())} ranks"
        )
    if job is None or (plan.nodes, plan.ranks) == (job.nodes, job.ranks):
        return
    if job.ranks == 0 and plan.nodes * plan.ranks == size:
        return  # the nodes have different numbers of ranks, which no plan describes
    raise ArgumentError(
        f"apply: plan {plan.name} is for {plan.nodes} nodes with {plan.ranks} ranks each, and this "
        f"job has {job.nodes} nodes with {job.ranks}: make the plan for this job"
    )
