"""``paddlempi.torch.apply``: a model and its optimizer under a plan."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...errors import ArgumentError
from ...planner.machine import Machine
from ...planner.plans import Plan, Plans
from . import agreed, scripts
from .applied import Applied, apply_to
from .asked import agree
from .batch_parts import Loss

__all__ = ["apply"]


def apply(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: Plan | Plans | str,
    *,
    loss: Loss | None = None,
    example: Any = None,
    machine: str | Machine | None = None,
    microbatches: int | None = None,
) -> Applied:
    """Cut a model and its optimizer over all ranks, as a plan says. Collective over all ranks.

    It calls torch's own ``DistributedDataParallel``, ``fully_shard``, ``parallelize_module`` and
    ``torch.distributed.pipelining``. The model is changed in place, and ``optimizer`` is of no use
    any more: ``step.optimizer`` takes its place, with the same groups and options, but for
    ``foreach`` and ``fused``, which tensor parallelism cannot have. All ranks begin with the
    parameters and buffers of rank 0.

    A batch is a pair ``(inputs, target)``, for ``loss(model(inputs), target)``; or a mapping, for
    ``model(**batch)``, whose output has a ``loss`` unless ``loss(output, batch)`` is given; or
    a tensor, for ``loss(model(batch))``, or ``model(batch)`` if there is no loss.

    Args:
        model: whole, the same on all ranks but for the values, on the device of the training.
        optimizer: of parameters of the model, before its first step.
        plan: a plan for this job; or ``Plans``, of which it takes the best; or ``"ddp"``,
            ``"fsdp2"``, ``"hsdp"``, ``"tp"``, ``"fsdp2+tp"`` or ``"pipeline"`` over the nodes and
            ranks of this job; or ``"auto"``, which predicts the best three, makes some steps of
            each, and takes the fastest.
        loss: a mean over the rows of a batch, so that the mean of the parts is that of the whole.
        example: a whole batch, that of all ranks together: for ``"auto"``, and to check that
            tensor parallelism does not change the loss.
        machine: for ``"auto"``: what ``python -m paddlempi bench --calibrate`` has measured.
        microbatches: of a pipeline, in each step; None: the most that divide a replica's rows, up
            to four times the number of stages.

    Returns:
        ``model, step, shard_batch``, and what was applied as attributes.

    Raises:
        ArgumentError: there is no default process group; the plan does not fit this job or
            model; the optimizer has made a step, or has other parameters than the model's; the
            ranks' models or arguments differ.
        DtypeError: an argument is of a wrong type.

    Dropout: the ranks that share a batch under tensor parallelism must draw the same random
    numbers, so give them the same seed.
    """
    if scripts.reading:
        return scripts.said_by_apply(model, optimizer, loss, example)  # type: ignore[no-any-return]
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(
            "apply: there is no default process group: call "
            "torch.distributed.init_process_group('mpi') first"
        )
    chosen, made, job = agree(model, optimizer, plan, microbatches)
    agreed.take_rank_0(model)
    if chosen == "auto":
        from .auto import fastest

        found = fastest(model, made, job, loss, example, machine, microbatches)
        applied = apply_to(model, made, found.plan, loss, microbatches, example)
        applied.tried = found.tried
        return applied
    assert isinstance(chosen, Plan)
    return apply_to(model, made, chosen, loss, microbatches, example)
