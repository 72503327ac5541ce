"""``paddlempi.torch.apply``: a model and its optimizer under a plan, by torch's own wrappers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from ...errors import ArgumentError
from ...planner.machine import Machine
from ...planner.plans import Plan, Plans
from . import agreed, batch_parts, meshes, scripts, tensor_parallel
from .batch_parts import Loss
from .pipeline import Pipeline, cut
from .remade import Recipe, recipe
from .shard_units import units

__all__ = ["Applied", "Step", "apply", "apply_to"]


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
    """``model, step, shard_batch``: what :func:`apply` returns.

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
    any more: ``step.optimizer`` takes its place, with the same groups and options. All ranks begin
    with the parameters and buffers of rank 0.

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
        example: for ``"auto"``: a whole batch, that of all ranks together.
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
        return scripts.said_by_apply(model, optimizer, loss, example)
    if not dist.is_available() or not dist.is_initialized():
        raise ArgumentError(
            "apply: there is no default process group: call "
            "torch.distributed.init_process_group('mpi') first"
        )
    chosen, made, job = _agree(model, optimizer, plan, microbatches)
    agreed.take_rank_0(model)
    if chosen == "auto":
        from .auto import fastest

        found = fastest(model, made, job, loss, example, machine, microbatches)
        applied = apply_to(model, made, found.plan, loss, microbatches)
        applied.tried = found.tried
        return applied
    assert isinstance(chosen, Plan)
    return apply_to(model, made, chosen, loss, microbatches)


def _agree(
    model: Any, optimizer: Any, plan: Any, microbatches: int | None
) -> tuple[Plan | str, Recipe, meshes.Job]:
    """Check the arguments of all ranks. Return the plan, how to make the optimizer, and the job."""
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


def apply_to(
    model: nn.Module,
    made: Recipe,
    plan: Plan,
    loss: Loss | None,
    microbatches: int | None,
    mesh: DeviceMesh | None = None,
) -> Applied:
    """Apply a plan that fits the job. Collective.

    Args:
        mesh: of the plan; None: torch's for the device of the model.
    """
    first = next(model.parameters())
    device, dtype = first.device, first.dtype
    if mesh is None:
        lengths = tuple(plan.mesh.values())
        mesh = init_device_mesh(device.type, lengths, mesh_dim_names=tuple(plan.mesh))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    wrapped = _WRAPPERS[plan.kind](model, mesh)
    bare = wrapped.module if isinstance(wrapped, DistributedDataParallel) else wrapped
    # A stage names its parameters as the whole model does, because they are the same objects.
    here = {names.get(id(p), name): p for name, p in bare.named_parameters()}
    optimizer = made.build(here)
    if plan.kind == "pipeline":
        gradients: Callable[[Any], torch.Tensor] = Pipeline(
            wrapped,
            mesh.get_local_rank("stage"),
            plan.mesh["stage"],
            mesh.get_group("stage"),
            loss,
            microbatches,
            device,
            dtype,
        )
    else:
        gradients = _Gradients(wrapped, loss)
    dimensions = meshes.data_dimensions(plan)
    groups = [mesh.get_group(name) for name in dimensions if plan.mesh[name] > 1]
    tensor = mesh.get_group("tensor") if "tensor" in plan.mesh else None
    step = Step(optimizer, gradients, wrapped, groups, tensor)
    applied = Applied(wrapped, step, _Parts(plan, mesh, dimensions))
    applied.plan, applied.mesh, applied.tried = plan, mesh, {}
    return applied


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
            self.index = self.index * plan.mesh[name] + mesh.get_local_rank(name)
            self.count *= plan.mesh[name]
        self._name = plan.name

    def __call__(self, batch: Any) -> Any:
        """Return this rank's part of a whole batch: views of its tensors. Local.

        Raises:
            ArgumentError: a tensor's rows do not divide; on all ranks.
        """
        return batch_parts.cut(batch, self.index, self.count, self._name)


def _replicated(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    group = mesh.get_group("replicate")
    return DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)


def _sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for unit in units(model):
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _cut_layers(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    styles = tensor_parallel.styles(model, mesh.size())
    parallelize_module(model, mesh, styles)
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            # Its fused kernel for inference reads whole weights.
            module.activation_relu_or_gelu = 0
    return model


def _cut_layers_and_sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return _sharded(_cut_layers(model, mesh["tensor"]), mesh["shard"])


def _stage(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    stage = cut(model, mesh.size(1))[mesh.get_local_rank("stage")]
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
