"""``plan="auto"``: the plans that are predicted to be the fastest are tried, one after another."""

from __future__ import annotations

import copy
import gc
import statistics
import time
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from ... import _log
from ...errors import ArgumentError, GroupError, PeerLeftError
from ...planner.machine import Machine
from ...planner.plans import Plan
from . import agreed, meshes
from . import applied as applying
from .batch_parts import Loss
from .measured_machine import of_rank_0
from .meshes import Job
from .remade import Recipe

__all__ = ["Found", "fastest"]

CANDIDATES = 3
WARM_UPS = 2
STEPS = 8
DEADLINE = timedelta(minutes=2)
"""Of a call in a trial: a rank that waits for a message of one that failed is told by nobody."""
_LEFT = "left alone: "


class Found(NamedTuple):
    """The fastest plan, and the seconds of a step of each that was tried, by its name."""

    plan: Plan
    tried: dict[str, float]


def fastest(
    model: nn.Module,
    made: Recipe,
    job: Job,
    loss: Loss | None,
    example: Any,
    machine: str | Machine | None,
    microbatches: int | None,
) -> Found:
    """Try the best plans on copies of the model, and return the fastest. Collective over all ranks.

    A plan that fails on a rank is left out on all of them.

    Raises:
        ArgumentError: ``example`` or ``machine`` is missing, or no plan can be taken.
    """
    fault = None
    for name, value in (("example", example), ("machine", machine)):
        if value is None:
            fault = fault or ArgumentError(
                f"apply: plan='auto' needs {name}=: example is a whole batch, and machine the file "
                "that `python -m paddlempi bench --calibrate FILE` has written under this job's "
                "launcher"
            )
    if not job.nodes:
        fault = fault or ArgumentError(
            "apply: plan='auto': the nodes of this job have different numbers of ranks, which "
            "cannot be predicted: name a plan"
        )
    agreed.raise_alike(fault)
    plans = _predicted(model, made, job, loss, example, machine)
    if len(plans) == 1:
        return Found(plans[0], {})
    tried: dict[str, float] = {}
    failed: list[str] = []
    for plan in plans:
        seconds, reason = _tried(model, made, plan, loss, example, microbatches)
        if reason:
            failed.append(f"{plan.name}: {reason}")
            _log.info("plan %s cannot be taken: %s", plan.name, reason)
        else:
            tried[plan.name] = seconds
    if not tried:
        raise ArgumentError(f"apply: plan='auto': every plan failed: {'; '.join(failed)}")
    return Found(min(plans, key=lambda plan: tried.get(plan.name, float("inf"))), tried)


def _predicted(
    model: nn.Module, made: Recipe, job: Job, loss: Loss | None, example: Any, machine: Any
) -> list[Plan]:
    """Return the plans to try, those of rank 0: others may measure other times. Collective.

    All ranks predict at once, so what they measure has their share of the memory in it.
    """
    from . import predict

    measured = of_rank_0(machine, "apply")
    assert measured is not None
    found: list[Any] = [None]
    fault: Exception | None = None
    optimizer = made.build(dict(model.named_parameters()))
    try:
        plans = predict.of_job(
            model, example, job.nodes, job.ranks, measured, optimizer, loss, together=True
        )
        if dist.get_rank() == 0:
            found = [[plans.best, *plans.possible[1:CANDIDATES]]]
    except Exception as error:
        fault = error
    agreed.raise_alike(fault)
    dist.broadcast_object_list(found, 0)
    return list(found[0])


def _tried(
    model: nn.Module,
    made: Recipe,
    plan: Plan,
    loss: Loss | None,
    example: Any,
    microbatches: int | None,
) -> tuple[float, str]:
    """Return the seconds of a step of the slowest rank, and why it failed. Collective."""
    device = next(model.parameters()).device
    devices = [device] if device.type == "cuda" else []
    seconds, fault, other = float("inf"), "", None
    try:
        other = copy.deepcopy(model)
    except Exception as error:
        fault = _text(error)
    reason = _first_of(agreed.exchange(fault))
    if reason:
        return seconds, reason
    mesh = meshes.tried_mesh(plan, device, DEADLINE)
    try:
        with torch.random.fork_rng(devices):
            seconds = _measured(
                applying.apply_to(other, made, plan, loss, microbatches, example, mesh),
                example,
                device,
            )
    except Exception as error:
        fault = _text(error)
    other = None
    # On a rank that failed it comes at once, and ends the collectives in which others wait for it.
    for group in mesh.get_all_groups():
        dist.destroy_process_group(group)
    everyone = agreed.exchange((seconds, fault))
    gc.collect()
    if devices:
        torch.cuda.empty_cache()
    return max(time for time, _ in everyone), _first_of([text for _, text in everyone])


def _text(error: Exception) -> str:
    # Of the ranks that were only left alone another rank says why.
    left = isinstance(error, (GroupError, PeerLeftError, TimeoutError))
    return f"{_LEFT if left else ''}{type(error).__name__}: {error}"


def _first_of(reasons: list[str]) -> str:
    """Return the reason of the first rank that has one of its own; "" if none has one."""
    found = [(text.startswith(_LEFT), rank) for rank, text in enumerate(reasons) if text]
    if not found:
        return ""
    rank = min(found)[1]
    return f"rank {rank}: {reasons[rank].removeprefix(_LEFT)}"


def _measured(applied: applying.Applied, example: Any, device: torch.device) -> float:
    part = applied.shard_batch(example)
    times = []
    for _ in range(WARM_UPS + STEPS):
        begin = time.perf_counter()
        applied.step(part)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARM_UPS:])
