"""What a step of a pipeline costs: computed from the step of the whole model, and not traced."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ...planner.costs import Costs
from ...planner.machine import Range
from ...planner.plans import Memory, Plan
from . import batch_parts, pipeline, traced
from .imagined import shapeless

__all__ = ["at_least", "dominating", "priced"]

_MODEL = 0.1
"""What a range has on both sides at least: what the model of a step leaves out."""

_PIPELINE = 0.3
"""The same of a pipeline, of which nothing is measured."""


def at_least(seconds: Range, error: float = _MODEL) -> Range:
    """Widen a range to what any prediction may be wrong."""
    middle = seconds.middle
    low, high = middle * (1 - error), middle * (1 + error)
    return Range(middle, min(seconds.low, low), max(seconds.high, high))


def dominating(compute: float, overhead: float, communication: float) -> str:
    """Name the greatest of three parts of a step."""
    parts = {
        "computation": compute,
        "the wrapper's Python": overhead,
        "communication": communication,
    }
    return max(parts, key=lambda name: parts[name])


def priced(
    one: Plan, model: torch.nn.Module, part: Any, whole: traced.Traced, costs: Costs
) -> Plan:
    """Complete a plan with stages (Narayanan et al., Megatron-LM, 2021, section 2.2).

    With m microbatches and s stages it takes m + s - 1 of a stage's turns.

    Args:
        part: the batch of one replica.
        whole: the step of the whole model on it, while all ranks compute.
        costs: what messages take.

    Raises:
        ArgumentError: nothing is known of messages there.
    """
    stages, replicas = one.mesh["stage"], one.mesh["replicate"]
    micro = pipeline.microbatches_of(batch_parts.rows(part, "plan"), stages)
    parts = pipeline.cut(model, stages)
    sizes = [sum(p.nbytes for p in stage.parameters()) for stage in parts]
    share = max(sizes) / max(1, whole.parameters)  # of the slowest stage, about
    passed = _passed(model, stages, part) / micro
    # Adjacent ranks are adjacent stages, and the slowest link counts.
    link = (1, 2) if one.ranks >= stages and one.ranks % stages == 0 else (2, 1)
    message = costs.collective("send", passed, *link)
    turns = micro + stages - 1
    compute = whole.seconds.times(share / micro * turns)
    waiting = message.times(2 * turns)
    calls, wire = 2 * micro, 2 * micro * passed
    if replicas > 1:
        inside = max(1, one.ranks // stages)
        shape = (max(1, replicas // inside), inside)
        waiting = waiting.plus(costs.collective("all_reduce", max(sizes), *shape))
        calls, wire = calls + 1, wire + 2 * max(sizes) * (replicas - 1) / replicas
    held = whole.activations / stages * min(1.0, stages / micro)
    memory = Memory(
        process=max(costs.machine.rss, traced.process(model)),
        parameters=max(sizes),
        gradients=max(sizes),
        optimizer=round(whole.optimizer * share),
        activations=round(held),
        communication=round(2 * passed),
    )
    return dataclasses.replace(
        one,
        seconds=at_least(compute.plus(waiting), _PIPELINE),
        compute=compute.middle,
        communication=waiting.middle,
        memory=memory,
        wire=round(wire),
        collectives=calls,
        dominates=dominating(compute.middle, 0.0, waiting.middle),
        notes=("a pipeline is computed, and not traced",),
    )


def _passed(model: torch.nn.Module, stages: int, part: Any) -> int:
    """Return the most bytes that a stage gives to the next one for a whole part of the batch."""
    inputs = part if isinstance(part, torch.Tensor) else part[0]
    most = 0
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        passed = torch.empty(inputs.shape, dtype=inputs.dtype)
        for stage in pipeline.cut(shapeless(model), stages)[:-1]:
            passed = stage(passed)
            most = max(most, passed.nbytes)
    return most
