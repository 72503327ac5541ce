"""A pipeline: a ``Sequential`` cut into stages, and the step that torch's schedules run."""

from __future__ import annotations

import bisect
from collections import OrderedDict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from ...errors import ArgumentError
from . import batch_parts
from .batch_parts import Loss
from .shard_units import shared

__all__ = ["Pipeline", "cut", "microbatches_of"]


def cut(model: nn.Module, stages: int) -> list[nn.Module]:
    """Return the stages of a ``Sequential``: consecutive members of it, with their own names.

    The largest stage has as few parameters as can be. Members without parameters belong to the
    stage before them. The parameters are the model's own.

    Raises:
        ArgumentError: it is no ``Sequential``, has too few members with parameters, or stages
            would share a parameter.
    """
    if isinstance(stages, bool) or not isinstance(stages, int) or stages < 1:
        raise ArgumentError(f"pipeline: stages={stages!r}: it must be a number above 0")
    if not isinstance(model, nn.Sequential):
        raise ArgumentError(
            f"pipeline: {type(model).__name__} is not a torch.nn.Sequential, and only there is it "
            "known what a stage gives to the next one: use another plan, or write the model as a "
            "Sequential"
        )
    blocks: list[list[tuple[str, nn.Module]]] = []
    sizes: list[int] = []
    for name, module in model.named_children():
        size = sum(parameter.numel() for parameter in module.parameters())
        if blocks and (size == 0 or sizes[-1] == 0):
            blocks[-1].append((name, module))
            sizes[-1] += size
        else:
            blocks.append([(name, module)])
            sizes.append(size)
    if len(blocks) < stages:
        raise ArgumentError(
            f"pipeline: the Sequential has {len(blocks)} members with parameters, too few for "
            f"{stages} stages: use fewer stages or another plan"
        )
    ends = _ends(sizes, stages)
    parts: list[nn.Module] = []
    for begin, end in zip([0, *ends[:-1]], ends, strict=True):
        members = [member for block in blocks[begin:end] for member in block]
        parts.append(nn.Sequential(OrderedDict(members)))
    _check_apart(model, parts)
    return parts


def _ends(sizes: list[int], stages: int) -> list[int]:
    """Return where the stages end so that the largest sum is the least."""

    def filled(limit: int) -> list[int]:
        """Fill stages up to a limit, but leave a block for each later stage."""
        ends: list[int] = []
        total = 0
        for at, size in enumerate(sizes):
            later = stages - len(ends) - 1
            if at and (total + size > limit or len(sizes) - at <= later) and later:
                ends.append(at)
                total = 0
            total += size
        return [*ends, len(sizes)]

    def largest(limit: int) -> int:
        ends = filled(limit)
        return max(sum(sizes[a:b]) for a, b in zip([0, *ends[:-1]], ends, strict=True))

    limits = range(max(sizes, default=0), sum(sizes) + 1)
    return filled(limits[bisect.bisect_left(limits, True, key=lambda n: largest(n) <= n)])


def _check_apart(model: nn.Module, parts: list[nn.Module]) -> None:
    if not shared(model):
        return
    owner: dict[int, int] = {}
    for number, part in enumerate(parts):
        for name, parameter in part.named_parameters():
            if owner.setdefault(id(parameter), number) != number:
                raise ArgumentError(
                    f"pipeline: stages {owner[id(parameter)]} and {number} would share the "
                    f"parameter {name}: use another plan, or a parameter for each"
                )


def microbatches_of(rows: int, stages: int, wanted: int | None = None) -> int:
    """Return into how many microbatches a part of a batch of some rows is cut.

    Without a wish it is the largest number that divides the rows, up to four times the stages: the
    ranks wait for each other for about a fifth of a step then.

    Raises:
        ArgumentError: ``wanted`` does not divide the rows.
    """
    if wanted is None:
        return max(n for n in range(1, min(4 * stages, rows) + 1) if rows % n == 0)
    if rows % wanted:
        raise ArgumentError(
            f"step: a pipeline of {stages} stages gets {rows} rows of a batch, which cannot be cut "
            f"into microbatches={wanted} equal parts: give a batch or microbatches that divide"
        )
    return wanted


class Pipeline:
    """Runs the forwards and backwards of a step on one stage.

    Args:
        module: this rank's stage, in DistributedDataParallel if it has replicas.
        mesh: of replicas and stages.
        loss: as that of ``apply``.
        wanted: the number of microbatches; None: one that divides the rows.
    """

    def __init__(
        self, module: nn.Module, mesh: DeviceMesh, loss: Loss | None, wanted: int | None
    ) -> None:
        self._module = module
        self._index = mesh.get_local_rank(1)
        self._group = mesh.get_group(1)
        self._stages = dist.get_world_size(self._group)
        self._loss = loss
        self._wanted = wanted
        first = next(module.parameters())
        self._device, self._dtype = first.device, first.dtype
        self._made: tuple[Any, Any] = (None, None)

    def __call__(self, batch: Any) -> torch.Tensor:
        """Compute the gradients of a batch, and return its loss on all stages. Collective.

        Raises:
            ArgumentError: the batch is a mapping, or its rows do not divide, or there is no loss.
        """
        inputs, target = self._read(batch)
        schedule = self._schedule(batch)
        losses: list[torch.Tensor] = []
        last = self._index == self._stages - 1
        given = (inputs,) if self._index == 0 else ()
        if last:
            schedule.step(*given, target=target, losses=losses)
        else:
            schedule.step(*given)
        mean = torch.zeros((), dtype=torch.float64, device=self._device)
        if last:
            mean += torch.stack([loss.detach().double() for loss in losses]).mean()
        dist.broadcast(mean, group_src=self._stages - 1, group=self._group)
        return mean.to(self._dtype)

    def _read(self, batch: Any) -> tuple[Any, Any]:
        if self._loss is None:
            raise ArgumentError(
                "step: a pipeline needs to know the loss, which the last stage computes: give "
                "apply a loss=function(output, target)"
            )
        if isinstance(batch, torch.Tensor):
            return batch, batch
        if isinstance(batch, (tuple, list)):
            inputs, target = batch_parts.pair(batch)
            if isinstance(inputs, torch.Tensor) and isinstance(target, torch.Tensor):
                return inputs, target
        raise ArgumentError(
            f"step: batch is a {type(batch).__name__}, and the stages of a pipeline take tensors: "
            "give a tensor or a pair (inputs, target) of tensors"
        )

    def _schedule(self, batch: Any) -> Any:
        """Return the schedule for batches of this shape. It has buffers that fit only those."""
        shape = batch_parts.shapes(batch)
        if self._made[0] != shape:
            rows = batch_parts.rows(batch, "step")
            count = microbatches_of(rows, self._stages, self._wanted)
            stage = PipelineStage(
                self._module, self._index, self._stages, self._device, group=self._group
            )
            kind = Schedule1F1B if count >= self._stages else ScheduleGPipe
            loss = self._loss_of_output if isinstance(batch, torch.Tensor) else self._loss_of_pair
            self._made = shape, kind(stage, count, loss_fn=loss)
        return self._made[1]

    def _loss_of_output(self, output: Any, _: Any) -> torch.Tensor:
        assert self._loss is not None
        return batch_parts.scalar(self._loss(output))

    def _loss_of_pair(self, output: Any, target: Any) -> torch.Tensor:
        assert self._loss is not None
        return batch_parts.scalar(self._loss(output, target))
