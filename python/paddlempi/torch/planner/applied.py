"""A model and its optimizer under a plan: torch's own wrappers, and a step of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import finfo, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from ...errors import ArgumentError
from ...planner.plans import Plan
from . import agreed, batch_parts, meshes, tensor_parallel
from .asked import agree
from .batch_parts import Loss
from .pipeline import Pipeline, cut
from .remade import Recipe
from .shard_units import units

__all__ = ["Applied", "Step", "apply_plan", "apply_to"]


class Step:
    """A step of training: ``step(batch)`` with what ``shard_batch`` has returned.

    Attributes:
        optimizer: of this rank's parameters; schedulers are made of it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        gradients: Callable[[Any], torch.Tensor],
        model: nn.Module,
        groups: list[Any],
        tensor: Any,
    ) -> None:
        self.optimizer = optimizer
        self._gradients = gradients
        self._summed = tensor_parallel.summed(model) if tensor is not None else []
        self._groups = groups
        self._tensor = tensor

    def __call__(self, batch: Any) -> torch.Tensor:
        """Clear the gradients, run forward and backward, and make a step of the optimizer.

        Collective over all ranks.

        Args:
            batch: this rank's part.

        Returns:
            The loss before the step, a mean over the whole batch: a scalar, the same on all ranks.

        Raises:
            ArgumentError: the batch has a wrong form, or there is no loss, or it is no scalar.
        """
        self.optimizer.zero_grad()
        loss = self._gradients(batch)
        for parameter in self._summed:
            gradient = parameter.grad
            if gradient is not None:
                local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                dist.all_reduce(local, group=self._tensor)
        self.optimizer.step()
        value = loss.detach().clone()
        for group in self._groups:
            dist.all_reduce(value, group=group)
            value /= dist.get_world_size(group)
        return value


class _Three(NamedTuple):
    model: nn.Module
    step: Step
    shard_batch: Callable[[Any], Any]


class Applied(_Three):
    """``model, step, shard_batch``: what :func:`paddlempi.torch.apply` returns.

    Attributes:
        model: this rank's module: the wrapper, or its stage of a pipeline.
        step: see :class:`Step`.
        shard_batch: ``shard_batch(batch)`` returns this rank's part of a whole batch: a part of
            the rows under data parallelism, all of them under tensor parallelism.
        plan: the plan that was applied.
        mesh: torch's mesh of it.
        tried: seconds of a step of each plan that ``plan="auto"`` has tried, by its name.
    """

    plan: Plan
    mesh: DeviceMesh
    tried: dict[str, float]


def apply_plan(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    plan: Plan,
    *,
    loss: Loss | None = None,
) -> Applied:
    """Apply a plan as :func:`paddlempi.torch.apply` does. Collective."""
    _, made, _ = agree(model, optimizer, plan, None)
    agreed.take_rank_0(model)
    return apply_to(model, made, plan, loss, None)


def apply_to(
    model: nn.Module,
    made: Recipe,
    plan: Plan,
    loss: Loss | None,
    microbatches: int | None,
    example: Any = None,
    mesh: DeviceMesh | None = None,
) -> Applied:
    """Apply a plan that fits the job. Collective.

    Args:
        mesh: of the plan; None: torch's for the device of the model.

    Raises:
        ArgumentError: the model's loss on the example is another one when its layers are cut.
    """
    if mesh is None:
        device = next(model.parameters()).device
        mesh = meshes.mesh_of(plan, device)
    dimensions = meshes.data_dimensions(plan)
    parts = _Parts(plan, mesh, dimensions)
    examines = "tensor" in plan.mesh and example is not None and not agreed.pretended()
    part = parts(example) if examines else None
    before = _examined(model, part, loss) if examines else None
    wrapped = _WRAPPERS[plan.kind](model, mesh)
    bare = wrapped.module if isinstance(wrapped, DistributedDataParallel) else wrapped
    optimizer = made.build(dict(bare.named_parameters()), one_by_one="tensor" in plan.mesh)
    if before is not None:
        _check_equal(before, _examined(wrapped, part, loss), mesh)
    if plan.kind == "pipeline":
        gradients: Callable[[Any], torch.Tensor] = Pipeline(wrapped, mesh, loss, microbatches)
    else:
        gradients = _Gradients(wrapped, loss)
    places = list(plan.mesh)
    groups = [mesh.get_group(places.index(d)) for d in dimensions if plan.mesh[d] > 1]
    tensor = mesh.get_group(places.index("tensor")) if "tensor" in places else None
    step = Step(optimizer, gradients, wrapped, groups, tensor)
    applied = Applied(wrapped, step, parts)
    applied.plan, applied.mesh, applied.tried = plan, mesh, {}
    return applied


def _examined(model: nn.Module, part: Any, loss: Loss | None) -> torch.Tensor:
    """Return the loss of a model that computes without gradients and dropout."""
    training = {module: module.training for module in model.modules()}
    try:
        with torch.no_grad():
            return batch_parts.loss_of(model.eval(), part, loss)
    finally:
        for module, was in training.items():
            module.training = was
            if isinstance(module, FSDPModule):  # a root keeps its parameters for the backward
                module.reshard()


def _check_equal(before: torch.Tensor, after: torch.Tensor, mesh: DeviceMesh) -> None:
    """Check a cut that a module's names suggest: its forward may do more than is known here.

    Raises:
        ArgumentError: the losses differ; on all ranks.
    """
    # A GPU may multiply with fewer bits than the loss has.
    rounding = max(1e-4 if before.device.type == "cpu" else 1e-2, 4 * finfo(before.dtype).eps)
    differ = ((before - after).abs() > rounding * (before.abs() + 1e-3)).float()
    for group in mesh.get_all_groups():
        dist.all_reduce(differ, group=group)
    if differ:
        raise ArgumentError(
            f"apply: tensor parallelism: the loss of the example is {float(before):.6g}, and "
            f"{float(after):.6g} when the layers are cut: between two layers of a pair the model "
            "does more than torch's parallelize_module allows: use another plan"
        )


class _Gradients:
    """Runs forward and backward of a model that has all layers."""

    def __init__(self, model: nn.Module, loss: Loss | None) -> None:
        self._model = model
        self._loss = loss

    def __call__(self, batch: Any) -> torch.Tensor:
        value = batch_parts.loss_of(self._model, batch, self._loss)
        value.backward()
        return value


class _Parts:
    """Cuts this rank's part out of a whole batch."""

    def __init__(self, plan: Plan, mesh: DeviceMesh, dimensions: tuple[str, ...]) -> None:
        self.index, self.count = 0, 1
        for name in dimensions:
            self.index = self.index * plan.mesh[name] + mesh.get_local_rank(
                list(plan.mesh).index(name)
            )
            self.count *= plan.mesh[name]
        self._name = plan.name

    def __call__(self, batch: Any) -> Any:
        """Return this rank's part of a whole batch: views of its tensors. Local.

        Raises:
            ArgumentError: a tensor's rows do not divide; on all ranks.
        """
        return batch_parts.cut(batch, self.index, self.count, self._name)


def _replicated(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    group = mesh.get_group(0)
    return DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)


def _sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for unit in units(model):
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _cut_layers(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    # By one at a time: torch 2.8 takes "0.0" for "0", too.
    for name, style in tensor_parallel.styles(model, mesh.size()).items():
        parallelize_module(model.get_submodule(name), mesh, style)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            # Its fused kernel for inference reads whole weights.
            module.activation_relu_or_gelu = 0
    return model


def _cut_layers_and_sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    shard, tensor = mesh.mesh_dim_names
    return _sharded(_cut_layers(model, mesh[tensor]), mesh[shard])


def _stage(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    stage = cut(model, mesh.size(1))[mesh.get_local_rank(1)]
    trained = any(parameter.requires_grad for parameter in stage.parameters())
    return _replicated(stage, mesh) if mesh.size(0) > 1 and trained else stage


_WRAPPERS: dict[str, Callable[[nn.Module, DeviceMesh], nn.Module]] = {
    "ddp": _replicated,
    "fsdp2": _sharded,
    "hsdp": _sharded,
    "tp": _cut_layers,
    "fsdp2+tp": _cut_layers_and_sharded,
    "pipeline": _stage,
}
