"""``ps.transpile`` for torch: a module and its optimizers, spread over trainers and servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from typing import Any, ClassVar

import torch

from .. import ps
from ..errors import UnsupportedError
from ..ps import Optimizer, Plan
from ..ps.layers import RemoteLayer, layers_in
from ..ps.states import State
from ..ps.stepping import discard_tables
from ..ps.transpiler import SpreadOptimizer, Transpiler
from .distributed_optimizer import (
    ACCESS,
    DistributedOptimizer,
    check_real,
    distinct,
    for_group,
    for_servers,
)
from .embedding import Embedding, EmbeddingBag
from .states import state_for_servers

__all__ = ["TorchTranspiler", "transpiler"]


class _Optimizer(SpreadOptimizer, DistributedOptimizer):
    ACCESS = ACCESS

    def _with_servers(self) -> Iterator[tuple[torch.Tensor, Callable[[], Optimizer]]]:
        for number, group in enumerate(self.param_groups):
            for parameter in group["params"]:
                if parameter.requires_grad and parameter.numel():
                    yield parameter, partial(for_group, self.optim, number)

    def _for_member(self, group: dict[str, Any], member: Any) -> Optimizer:
        if isinstance(member, RemoteLayer):
            return _rows_for_servers(self.optim, group)
        return super()._for_member(group, member)

    def _step_of_all(self) -> None:
        super()._step_of_all()
        self.optim._opt_called = True  # else a schedule of it warns that there was no step


class _Plan(Plan):
    def _tensor_of_rows(self, layer: RemoteLayer) -> torch.Tensor:
        weight = torch.empty(layer.num_embeddings or 0, layer.embedding_dim)
        for begin, rows in self._rows(layer.table, layer.num_embeddings or 0):
            weight[begin : begin + len(rows)] = torch.as_tensor(rows)
        return weight

    def _load(self, state: dict[str, Any]) -> None:
        tensors = {
            name: torch.as_tensor(value) if hasattr(value, "__array__") else value
            for name, value in state.items()
        }
        for name, there in self.frozen():
            value = tensors.get(name)
            if value is not None and value.shape != there.shape:  # torch loads no expanded ones
                there.copy_(tensors.pop(name)[tuple(map(slice, there.shape))])
        self.model.load_state_dict(tensors, strict=False)

    @staticmethod
    def _load_optimizer(optimizer: Any, state: Any) -> None:
        optimizer.load_state_dict(state)

    @staticmethod
    def _rows_of(value: Any) -> torch.Tensor:
        return torch.as_tensor(value).detach().to("cpu", torch.float32)


class TorchTranspiler(Transpiler):
    """The transpiler of modules of torch."""

    FRAMEWORK: ClassVar[str] = "torch"
    PLAN: ClassVar[type[Plan]] = _Plan
    OPTIMIZER: ClassVar[type[SpreadOptimizer]] = _Optimizer

    @staticmethod
    def _is_optimizer(given: Any) -> bool:
        return isinstance(given, torch.optim.Optimizer)

    @staticmethod
    def _modules(model: Any) -> Iterable[tuple[str, Any]]:
        return list(model.named_modules())

    @staticmethod
    def _children(module: Any) -> MutableMapping[str, Any]:
        children: MutableMapping[str, Any] = module._modules
        return children

    @staticmethod
    def _frozen(model: Any) -> list[tuple[str, Any]]:
        frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
        found = []
        for name, tensor in [*frozen, *model.named_buffers()]:
            try:
                whole = distinct(tensor)
            except UnsupportedError as error:
                raise UnsupportedError(f"ps.transpile: {name!r}: {error}") from None
            if whole.numel():
                found.append((name, whole))
        return found

    @staticmethod
    def _is_trained(parameter: Any) -> bool:
        return bool(parameter.requires_grad)

    @staticmethod
    def _is_sparse(module: Any) -> bool:
        kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        return type(module) in kinds and bool(module.sparse)

    @staticmethod
    def _groups_of(optimizer: Any) -> Iterable[tuple[Any, list[Any]]]:
        return [(group, group["params"]) for group in optimizer.param_groups]

    @staticmethod
    def _for_servers(optimizer: Any, group: Any, *, rows: bool) -> Optimizer:
        return _rows_for_servers(optimizer, group) if rows else for_servers(optimizer, group)

    @staticmethod
    def _check_parameter(optimizer: Any, parameter: Any) -> None:
        check_real([parameter])

    @staticmethod
    def _state_for_servers(
        optimizer: Any, group: Any, parameter: Any, does: Optimizer
    ) -> State | None:
        state = optimizer.state.get(parameter, {})
        return state_for_servers(state, group, parameter.shape, does)

    @staticmethod
    def _without(optimizer: Any, rows: set[int]) -> None:
        for group in optimizer.param_groups:  # the same dicts: schedules have them
            for parameter in group["params"]:
                if id(parameter) in rows:  # else state_dict() finds a state of no parameter
                    optimizer.state.pop(parameter, None)
            group["params"] = [p for p in group["params"] if id(p) not in rows]

    @staticmethod
    def _layer(module: Any) -> tuple[type[RemoteLayer], dict[str, Any]]:
        padding, scaled = module.padding_idx, module.scale_grad_by_freq
        Transpiler._check_rows(module.weight, torch.float32, module.max_norm, scaled, padding)
        if isinstance(module, torch.nn.Embedding):
            return Embedding, {"padding_idx": padding}
        more = {"mode": module.mode, "include_last_offset": module.include_last_offset}
        return EmbeddingBag, {"padding_idx": padding, **more}

    @staticmethod
    def _has_max_norm(module: Any) -> bool:
        kinds = (torch.nn.Embedding, torch.nn.EmbeddingBag)
        return isinstance(module, kinds) and module.max_norm is not None

    @staticmethod
    def _take_over(layer: Any, module: Any) -> None:
        layer.train(module.training)
        for name, hooks in vars(module).items():
            if name.startswith(("_forward_", "_backward_", "_is_full_backward_")):
                layer.__dict__[name] = hooks  # the same dict: a handle removes its hook from it

    @staticmethod
    def _hooks_of_rows(module: Any) -> bool:
        weight = module.weight
        return bool(weight._backward_hooks or weight._post_accumulate_grad_hooks)

    @staticmethod
    def _hooks_of_steps(optimizer: Any) -> bool:
        return bool(optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)

    @classmethod
    def _drop_with(cls, model: Any) -> None:
        for module in model.modules():
            if not isinstance(module, RemoteLayer) and layers_in(module.modules()):
                # Not setattr: that of a compiled module sets it in the module it has compiled.
                vars(module)["zero_grad"] = _ZeroGrad(module)


class _ZeroGrad:
    """``zero_grad`` of a module that has layers: it also drops what they have noted.

    It is an object, whose copy in a copy of the module has that copy.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def __call__(self, set_to_none: bool = True) -> None:
        type(self._module).zero_grad(self._module, set_to_none)
        discard_tables(layer.table.name for layer in layers_in(self._module.modules()))


def transpiler(model: Any, optimizer: Any) -> TorchTranspiler:
    """Return what transpiles a module and its optimizers."""
    return TorchTranspiler(model, optimizer)


def _rows_for_servers(optimizer: Any, group: dict[str, Any]) -> Optimizer:
    """Return what servers have for a group of rows with sparse gradients.

    Raises:
        UnsupportedError: torch has no such gradients with it; or it moves rows that are not in a
            batch, where tables update the rows of a push alone.
    """
    kind = type(optimizer)
    if kind not in (torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam):
        raise UnsupportedError(
            f"rows with sparse gradients have SGD, Adagrad or SparseAdam, and not "
            f"{kind.__name__}: give the embeddings an optimizer of their own"
        )
    odd = [name for name in ("momentum", "weight_decay", "maximize") if group.get(name)]
    if odd:
        raise UnsupportedError(
            f"rows with sparse gradients have no {kind.__name__} with "
            f"{', '.join(odd)}, which also changes rows that are not in the batch"
        )
    if kind is not torch.optim.SparseAdam:
        return for_servers(optimizer, group)
    beta1, beta2 = group["betas"]
    return ps.Adam(float(group["lr"]), beta1=beta1, beta2=beta2, epsilon=group["eps"])
