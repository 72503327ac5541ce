"""What a step of a model will cost under each way to cut it (docs/plan.md)."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ...errors import ArgumentError
from ...planner.costs import Costs
from ...planner.machine import Machine, Range
from ...planner.plans import Memory, Plan, Plans
from . import batch_parts, candidates, imagined, pipelined, scripts, traced
from .measured_machine import of_rank_0
from .pipelined import at_least, dominating
from .recorded import Call

__all__ = ["of_job", "plan"]

_NOTHING = Range(0.0, 0.0, 0.0)


def plan(
    model: torch.nn.Module,
    example: Any,
    *,
    nodes: int,
    ranks: int,
    machine: Machine | str | os.PathLike[str],
    optimizer: torch.optim.Optimizer | None = None,
    loss: Callable[..., Any] | None = None,
) -> Plans:
    """Say what a training step would cost on a job, for each way to cut the model.

    It makes some steps of the model in this process, one rank's part of each plan, and starts no
    job: the default process group is not there yet. In a job, use ``apply(..., plan="auto")``.

    Args:
        model: on the CPU. It stays as it is.
        example: a whole batch, that of all ranks together, as :func:`paddlempi.torch.apply` takes
            it.
        nodes, ranks: the job: so many nodes with so many ranks on each.
        machine: what ``python -m paddlempi bench --calibrate FILE`` has measured; or its file.
        optimizer: of the model; None: AdamW.
        loss: as for ``apply``.

    Raises:
        ArgumentError: an argument is wrong, or the machine is not that of this process.
    """
    if scripts.reading:  # the script's own plan is not asked for
        scripts.said(model, optimizer, loss, example)
    for name, value in (("nodes", nodes), ("ranks", ranks)):
        if not isinstance(value, int) or value < 1:
            raise ArgumentError(f"plan: {name} is {value!r}: it must be a number above 0")
    if dist.is_initialized():
        raise ArgumentError(
            "plan: this process is a rank of a job: plan before init_process_group, or let "
            "apply(..., plan='auto') do it"
        )
    measured = of_rank_0(machine, "plan")
    if measured is None:
        raise ArgumentError("plan: machine is None: it must be a Machine, or its file")
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters())
    return of_job(model, example, nodes, ranks, measured, optimizer, loss)


def of_job(
    model: torch.nn.Module,
    example: Any,
    nodes: int,
    ranks: int,
    machine: Machine,
    optimizer: torch.optim.Optimizer,
    loss: Callable[..., Any] | None,
    together: bool = False,
) -> Plans:
    """Do what :func:`plan` does, with checked arguments.

    Args:
        together: all ranks of the node do the same now, so what is measured has their share of
            the memory and of the CPUs already.
    """
    for name, parameter in model.named_parameters():
        if parameter.device.type not in ("cpu", "meta"):
            raise ArgumentError(
                f"plan: parameter {name} is on {parameter.device}: only steps on CPUs are known"
            )
    rows = batch_parts.rows(example, "plan")
    predictor = _Predictor(model, example, machine, optimizer, loss, together)
    with torch.random.fork_rng(devices=[]):  # the user's random numbers go on as without it
        found = [
            one if one.refused else predictor.of(one)
            for one in candidates.candidates(model, nodes, ranks, rows)
        ]
        if all(one.refused for one in found):  # else a pipeline has nothing to offer
            for one in candidates.pipelines(model, nodes, ranks, rows):
                found.append(one if one.refused else predictor.stages(one))
    return Plans(tuple(found))


class _Predictor:
    """Prices plans of one model."""

    def __init__(
        self,
        model: torch.nn.Module,
        example: Any,
        machine: Machine,
        optimizer: torch.optim.Optimizer,
        loss: Callable[..., Any] | None,
        together: bool,
    ) -> None:
        self._given = model, optimizer, loss, example
        self._machine, self._together = machine, together
        self._costs = Costs(machine)
        self._meta = imagined.is_meta(model)
        self._plain: dict[int, traced.Traced] = {}

    def of(self, one: Plan) -> Plan:
        """Complete a plan: its costs, or why it cannot be taken."""
        try:
            seen, busy, compute = self._traced(one)
        except Exception as error:  # of the user's modules, or of torch's wrapper
            return _untraced(one, error)
        try:
            waiting = self._waiting(one.kind, seen.calls)
        except ArgumentError as error:
            return dataclasses.replace(one, refused=str(error))
        memory = Memory(
            process=max(self._machine.rss, traced.process(self._given[0])),
            parameters=seen.parameters,
            gradients=seen.gradients,
            optimizer=seen.optimizer,
            activations=seen.activations,
            communication=seen.communication,
        )
        done = dataclasses.replace(
            one,
            seconds=at_least(busy.plus(waiting)),
            compute=compute,
            overhead=busy.middle - compute,
            communication=waiting.middle,
            memory=memory,
            wire=round(sum(_sent(call) for call in seen.calls)),
            collectives=len(seen.calls),
            dominates=dominating(compute, busy.middle - compute, waiting.middle),
            notes=tuple(self._notes(one, seen.calls)),
        )
        return self.fits(done)

    def _traced(self, one: Plan) -> tuple[traced.Traced, Range, float]:
        """Trace a plan.

        Returns:
            What a rank does; its seconds while all ranks compute; those of the model without the
            wrapper.
        """
        model, optimizer, loss, example = self._given
        if self._meta:
            seen = imagined.imagine(model, optimizer, loss, example, one, self._machine)
            return seen, seen.seconds, seen.seconds.middle
        seen = traced.trace(model, optimizer, loss, example, one, self._machine.threads)
        members = one.nodes * one.ranks
        busy = self._busy(seen, members)
        if one.mesh.get("tensor", 1) > 1:  # it computes with a part of the model
            return seen, busy, busy.middle
        alone = self._busy(self.plain(candidates.replicas(one)), members)
        return seen, busy, min(busy.middle, alone.middle)

    def fits(self, one: Plan) -> Plan:
        """Refuse a plan that takes more memory than a rank has."""
        limit = self._machine.memory // one.ranks
        if one.memory is not None and one.memory.total > limit:
            reason = f"a rank takes {one.memory.total >> 20} MiB, and has {limit >> 20} MiB"
            return dataclasses.replace(one, refused=reason)
        return one

    def plain(self, parts: int) -> traced.Traced:
        """Return the step of the whole model on one of so many parts of the batch.

        It is measured once.
        """
        if parts not in self._plain:
            model, optimizer, loss, example = self._given
            part = batch_parts.cut(example, 0, parts, "a plan")
            threads = self._machine.threads
            self._plain[parts] = traced.plain(model, optimizer, loss, part, threads)
        return self._plain[parts]

    def stages(self, one: Plan) -> Plan:
        """Complete a pipeline."""
        try:
            return self.fits(self._pipelined(one))
        except Exception as error:
            return _untraced(one, error)

    def _pipelined(self, one: Plan) -> Plan:
        model, optimizer, loss, example = self._given
        parts = one.mesh["replicate"]
        part = batch_parts.cut(example, 0, parts, "a plan")
        if self._meta:
            alone = Plan("ddp", {"replicate": parts}, 1, parts)
            seen = imagined.imagine(model, optimizer, loss, example, alone, self._machine)
        else:
            seen = self.plain(parts)
            seen = dataclasses.replace(seen, seconds=self._busy(seen, one.nodes * one.ranks))
        return pipelined.priced(one, model, part, seen, self._costs)

    def _busy(self, seen: traced.Traced, ranks: int) -> Range:
        """Return the seconds of a step while all ranks compute."""
        if self._together or ranks == 1:
            return seen.seconds
        return self._costs.busy(seen.seconds, seen.traffic)

    def _waiting(self, kind: str, seen: tuple[Call, ...]) -> Range:
        """Return what communication adds to a step."""
        wrapper = "fsdp2" if kind == "fsdp2+tp" else kind
        hidden = self._costs.exposed(wrapper)
        # Nothing hides what the computation waits for; what is measured below that is chance.
        waited = Range(*(max(1.0, part) for part in self._costs.exposed("tp")))
        total = _NOTHING
        for call in seen:
            cost = self._costs.collective(call.operation, call.bytes, call.nodes, call.ranks)
            factor = waited if call.waits else hidden
            total = total.plus(Range(*(a * b for a, b in zip(cost, factor, strict=True))))
        return total

    def _notes(self, one: Plan, seen: tuple[Call, ...]) -> list[str]:
        notes = []
        if self._meta:
            notes.append("the model has no values, so its step is computed and not measured")
        shapes = {
            f"{call.nodes} x {call.ranks}"
            for call in seen
            if not self._costs.measured(call.operation, call.nodes, call.ranks)
        }
        if shapes:
            notes.append(f"groups of {', '.join(sorted(shapes))} were not measured")
        kinds = one.kind.split("+")
        if missing := [kind for kind in kinds if self._costs.step(kind) is None]:
            notes.append(f"steps of {', '.join(missing)} were not measured")
        return notes


def _untraced(one: Plan, error: Exception) -> Plan:
    """Refuse a plan whose step raised an error."""
    reason = (str(error).strip().splitlines() or [""])[0]
    if not isinstance(error, ArgumentError):
        reason = f"{type(error).__name__}: {reason}"
    return dataclasses.replace(one, refused=f"it cannot be traced: {reason}")


def _sent(call: Call) -> float:
    """Return the bytes that a rank sends in a call, at best."""
    members = call.nodes * call.ranks
    others = (members - 1) / members
    if call.operation == "all_reduce":
        return 2 * others * call.bytes
    if call.operation in ("broadcast", "send"):
        return math.ceil(call.bytes * others)
    return others * call.bytes
