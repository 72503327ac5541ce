"""A step of one rank of a model that nobody has made: its parameters are on the device "meta".

It is traced with tensors that have shapes and no memory, so its time is not measured but computed
from its operations: the range is wide.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._pytree import tree_map

from ...planner.machine import Machine, Range
from ...planner.plans import Plan
from . import meshes, traced
from .recorded import Call
from .remade import Recipe

__all__ = ["imagine", "is_meta", "shapeless"]

_WIDE = 0.5
"""How far from what is computed the time of a step may lie, on both sides."""

_BUCKETS = (1 << 20, 25 << 20)
"""The bytes of DDP's first bucket and of the others, by default."""


def is_meta(model: torch.nn.Module) -> bool:
    """Whether some parameter has no memory."""
    return any(parameter.is_meta for parameter in model.parameters())


def imagine(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[..., Any] | None,
    example: Any,
    plan: Plan,
    machine: Machine,
) -> traced.Traced:
    """Trace a step as rank 0 of a plan, and compute how long it takes.

    Args:
        model, optimizer, loss, example: as for :func:`paddlempi.torch.apply`.

    """
    with _real_meshes(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        whole = shapeless(model)
        batch = tree_map(lambda x: _unreal(x, mode), example)
        # An optimizer that has no states: they would be read, and have no values.
        stateless = torch.optim.SGD(whole.parameters(), lr=0.0)
        seen = traced.walk(whole, stateless, loss, batch, plan)
    if plan.kind == "ddp":
        size = plan.nodes * plan.ranks
        seen = dataclasses.replace(seen, calls=_buckets(model, plan) if size > 1 else ())
    seen = dataclasses.replace(seen, optimizer=round(seen.parameters * _states(optimizer)))
    rates = machine.together
    seconds = seen.flops / rates.flops.middle + seen.traffic / rates.bytes.middle
    spread = Range(seconds, seconds * (1 - _WIDE), seconds * (1 + _WIDE))
    return dataclasses.replace(seen, seconds=spread)


@contextlib.contextmanager
def _real_meshes() -> Iterator[None]:
    """Make meshes with values: torch reads the ranks in them."""

    def real(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **named: Any) -> Any:
            with unset_fake_temporarily():
                return make(*arguments, **named)

        return made

    with (
        mock.patch.object(meshes, "init_device_mesh", real(init_device_mesh)),
        mock.patch.object(DeviceMesh, "__init__", real(DeviceMesh.__init__)),
    ):
        yield


def shapeless(model: torch.nn.Module) -> torch.nn.Module:
    """Copy a model without its values. To be called in a ``FakeTensorMode``."""
    memo: dict[int, Any] = {}
    for given in [*model.parameters(), *model.buffers()]:
        made = torch.empty(given.shape, dtype=given.dtype)
        if isinstance(given, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=given.requires_grad)
        memo[id(given)] = made
    return copy.deepcopy(model, memo)


def _unreal(value: Any, mode: FakeTensorMode) -> Any:
    if isinstance(value, torch.Tensor) and value.is_meta:
        return torch.empty(value.shape, dtype=value.dtype)
    return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value


def _buckets(model: torch.nn.Module, plan: Plan) -> tuple[Call, ...]:
    """Return the collectives of DDP: its buckets, in the reverse order of the parameters."""
    parameters = [p for p in model.parameters() if p.requires_grad][::-1]
    # It reads shapes and types only.
    found, _ = torch.distributed._compute_bucket_assignment_by_size(parameters, list(_BUCKETS))
    return tuple(
        Call("all_reduce", sum(parameters[i].nbytes for i in bucket), plan.nodes, plan.ranks, False)
        for bucket in found
    )


def _states(optimizer: torch.optim.Optimizer) -> float:
    """Return the bytes of an optimizer's states for each byte of parameters."""
    options = {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}
    sample = torch.nn.Parameter(torch.zeros(1024))
    sample.grad = torch.zeros(1024)
    groups = ((options, ("sample",)),)
    alike = Recipe(type(optimizer), dict(optimizer.defaults), groups).build({"sample": sample})
    alike.step()
    held = sum(int(state.nbytes) for state in traced.states(alike))
    return held / int(sample.nbytes)
