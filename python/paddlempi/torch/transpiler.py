"""``ps.transpile`` for torch: a module and its optimizers, spread over trainers and servers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from functools import partial
from typing import Any, ClassVar

import torch

from ..errors import UnsupportedError
from ..ps import Optimizer, Plan
from ..ps.layers import RemoteLayer
from ..ps.transpiler import SpreadOptimizer, Transpiler
from .distributed_optimizer import DistributedOptimizer, for_servers, read, write
from .embedding import Embedding, EmbeddingBag

__all__ = ["TorchTranspiler"]


class _Optimizer(SpreadOptimizer, DistributedOptimizer):
    _read = staticmethod(read)
    _write = staticmethod(write)

    def _with_servers(self) -> Iterator[tuple[torch.Tensor, Callable[[], Optimizer]]]:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and parameter.numel():
                    yield parameter, partial(for_servers, self.optim, group)

    def _step_of_all(self) -> None:
        super()._step_of_all()
        self.optim._opt_called = True  # else a schedule of it warns that there was no step


class _Plan(Plan):
    def _tensor_of_rows(self, layer: RemoteLayer) -> torch.Tensor:
        weight = torch.empty(layer.num_embeddings or 0, layer.embedding_dim)
        for begin, rows in self._rows(layer):
            weight[begin : begin + len(rows)] = torch.as_tensor(rows)
        return weight


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
    def _frozen(model: Any) -> list[Any]:
        frozen = [p.detach() for p in model.parameters() if not p.requires_grad]
        return [*frozen, *(b for b in model.buffers() if b.numel())]

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
        return for_servers(optimizer, group, rows=rows)

    @staticmethod
    def _rate(optimizer: Any, group: Any) -> float:
        return float(group["lr"])

    @staticmethod
    def _without(optimizer: Any, rows: set[int]) -> None:
        for group in optimizer.param_groups:  # the same dicts: schedules have them
            group["params"] = [p for p in group["params"] if id(p) not in rows]

    @staticmethod
    def _layer(module: Any) -> tuple[type[RemoteLayer], dict[str, Any]]:
        if module.weight.dtype != torch.float32:
            raise UnsupportedError(f"its rows are of {module.weight.dtype}, not of float32")
        if module.max_norm is not None:
            raise UnsupportedError("tables have no max_norm")
        if module.scale_grad_by_freq:
            raise UnsupportedError("tables have no scale_grad_by_freq")
        padding = module.padding_idx
        if padding is not None and bool(module.weight.detach()[padding].any()):
            raise UnsupportedError(f"the row of its padding {padding} is not of zeros")
        if isinstance(module, torch.nn.Embedding):
            return Embedding, {"padding_idx": padding}
        more = {"mode": module.mode, "include_last_offset": module.include_last_offset}
        return EmbeddingBag, {"padding_idx": padding, **more}

    @staticmethod
    def _set_mode(layer: Any, module: Any) -> None:
        layer.train(module.training)
