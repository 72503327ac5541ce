"""What is asked of ``apply``: checked on all ranks, which go on only if all of them can."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from ...errors import ArgumentError
from ...planner.plans import Plan
from . import agreed, meshes, tensor_parallel
from .pipeline import cut
from .remade import Recipe, recipe

__all__ = ["agree"]


def agree(
    model: Any, optimizer: Any, plan: Any, microbatches: int | None
) -> tuple[Plan | str, Recipe, meshes.Job]:
    """Check the arguments of all ranks. Return the plan, how to make the optimizer, and the job.

    Collective over all ranks.

    Raises:
        ArgumentError: a rank's arguments are wrong, or the ranks' differ; on all ranks.
        DtypeError: an argument of this rank is of a wrong type.
    """
    size = dist.get_world_size()
    local = set(agreed.exchange(meshes.local_ranks()))
    job = meshes.Job(size, local.pop() if len(local) == 1 else 0)
    fault: Exception | None = None
    asked: dict[str, Any] = {}
    try:
        chosen = meshes.checked(plan)
        _check_model(model)
        made = recipe(optimizer, model)
        if microbatches is not None and (type(microbatches) is not int or microbatches < 1):
            raise ArgumentError(
                f"apply: microbatches={microbatches!r}: it must be a number above 0"
            )
        if isinstance(chosen, str) and chosen != "auto":
            chosen = meshes.natural(chosen, job, model)
        if isinstance(chosen, Plan):
            meshes.check(chosen, None if agreed.pretended() else job, size)
            _check_possible(model, chosen)
        asked = {
            "plan": chosen if isinstance(chosen, str) else chosen.name,
            "parameter": _described(model),
            "optimizer": made.text(),
            "microbatches": microbatches,
        }
    except Exception as error:
        fault = error
    agreed.raise_alike(fault)
    agreed.same(asked)
    return chosen, made, job


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"apply: model={type(model).__name__}: it must be a torch.nn.Module")
    devices = set()
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ArgumentError(
                f"apply: parameter {name} has no shape yet: run the model once before"
            )
        if parameter.is_meta:
            raise ArgumentError(
                f"apply: parameter {name} is on the device 'meta' and has no values: build the "
                "model on the CPU or on a GPU"
            )
        if isinstance(parameter, DTensor):
            raise ArgumentError(
                f"apply: parameter {name} is a DTensor: the model was cut already: give it whole"
            )
        devices.add(parameter.device)
    if len(devices) != 1:
        found = ", ".join(sorted(map(str, devices))) or "none"
        raise ArgumentError(
            f"apply: the model's parameters are on {found}: they must be on one device"
        )


def _described(model: nn.Module) -> tuple[Any, ...]:
    tensors = (*model.named_parameters(), *model.named_buffers())
    return tuple((name, tuple(t.shape), str(t.dtype), t.requires_grad) for name, t in tensors)


def _check_possible(model: nn.Module, plan: Plan) -> None:
    if "tensor" in plan.mesh:
        tensor_parallel.styles(model, plan.mesh["tensor"])
    if "stage" in plan.mesh:
        cut(model, plan.mesh["stage"])
