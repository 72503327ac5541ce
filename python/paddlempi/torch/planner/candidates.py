"""The ways to cut a model over a job, and why some of them cannot be taken."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from ...errors import ArgumentError
from ...planner.plans import Plan
from . import pipeline, tensor_parallel

__all__ = ["candidates", "pipelines", "replicas"]

_SPANNING = 16
"""The most ranks over which tensor parallelism is tried where they do not share a node."""


def candidates(model: torch.nn.Module, nodes: int, ranks: int, rows: int) -> list[Plan]:
    """Return the plans without pipelines, at most one of each mesh.

    Args:
        nodes, ranks: the job.
        rows: of the whole batch.
    """
    members = nodes * ranks
    plans = [
        Plan("ddp", {"replicate": members}, nodes, ranks),
        Plan("fsdp2", {"shard": members}, nodes, ranks),
    ]
    if nodes > 1 and ranks > 1:
        plans.append(Plan("hsdp", {"replicate": nodes, "shard": ranks}, nodes, ranks))
    for degree in _degrees(nodes, ranks):
        try:
            tensor_parallel.styles(model, degree)
            reason = ""
        except ArgumentError as error:
            reason = str(error)
        mesh = {"tensor": degree}
        if degree < members:
            mesh = {"shard": members // degree, **mesh}
        kind = "tp" if degree == members else "fsdp2+tp"
        plans.append(Plan(kind, mesh, nodes, ranks, refused=reason))
    return [plan if plan.refused else _divided(plan, rows) for plan in plans]


def pipelines(model: torch.nn.Module, nodes: int, ranks: int, rows: int) -> list[Plan]:
    """Return the plans with stages."""
    members = nodes * ranks
    plans = []
    for stages in (s for s in range(2, members + 1) if members % s == 0):
        try:
            pipeline.cut(model, stages)
            reason = ""
        except ArgumentError as error:
            reason = str(error)
        mesh = {"replicate": members // stages, "stage": stages}
        plan = Plan("pipeline", mesh, nodes, ranks, refused=reason)
        plans.append(plan if reason else _divided(plan, rows))
    return plans


def _degrees(nodes: int, ranks: int) -> Iterator[int]:
    """Yield degrees of tensor parallelism: groups that lie within nodes, and the whole job."""
    yield from (degree for degree in range(2, ranks + 1) if ranks % degree == 0)
    if nodes > 1 and nodes * ranks <= _SPANNING:
        yield nodes * ranks


def replicas(plan: Plan) -> int:
    """Return into how many parts a plan cuts the batch."""
    return plan.mesh.get("replicate", 1) * plan.mesh.get("shard", 1)


def _divided(plan: Plan, rows: int) -> Plan:
    if rows % replicas(plan):
        reason = f"a batch of {rows} does not divide into {replicas(plan)} parts"
        return dataclasses.replace(plan, refused=reason)
    return plan
