"""``ps.transpile`` for Paddle: a layer and its optimizers, spread over trainers and servers.

For ``paddle.nn.Layer`` in dynamic mode; ``static_transpiler`` has static programs. Paddle 3.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import paddle

from ..errors import UnsupportedError
from ..ps import Optimizer, Plan
from ..ps.layers import RemoteLayer, layers_in
from ..ps.states import State
from ..ps.stepping import discard_tables
from ..ps.transpiler import SpreadOptimizer, Transpiler
from .distributed_optimizer import ACCESS, DistributedOptimizer, check_parameters, for_servers
from .embedding import SparseEmbedding
from .parameters import parameters_of
from .states import forget, state_for_servers

__all__ = ["PaddleTranspiler", "transpiler"]


class _Optimizer(SpreadOptimizer, DistributedOptimizer):
    ACCESS = ACCESS

    def _with_servers(self) -> Iterator[tuple[Any, Callable[[], Optimizer]]]:
        for parameter in self._parameters():
            yield parameter, partial(for_servers, self.optim)


class _Plan(Plan):
    def _tensor_of_rows(self, layer: RemoteLayer) -> Any:
        weight = np.empty((layer.num_embeddings or 0, layer.embedding_dim), np.float32)
        for begin, rows in self._rows(layer.table, layer.num_embeddings or 0):
            weight[begin : begin + len(rows)] = rows
        return paddle.to_tensor(weight)

    def _load(self, state: dict[str, Any]) -> None:
        self.model.set_state_dict(state)

    @staticmethod
    def _load_optimizer(optimizer: Any, state: Any) -> None:
        optimizer.set_state_dict(state)

    @staticmethod
    def _rows_of(value: Any) -> Any:
        if isinstance(value, paddle.Tensor):
            value = value.astype("float32").numpy()
        return np.ascontiguousarray(value, np.float32)


class PaddleTranspiler(Transpiler):
    """The transpiler of layers of Paddle."""

    FRAMEWORK: ClassVar[str] = "Paddle"
    PLAN: ClassVar[type[Plan]] = _Plan
    OPTIMIZER: ClassVar[type[SpreadOptimizer]] = _Optimizer

    @staticmethod
    def _is_optimizer(given: Any) -> bool:
        return hasattr(given, "_param_groups")

    @staticmethod
    def _modules(model: Any) -> Iterable[tuple[str, Any]]:
        return list(model.named_sublayers(include_self=True))

    @staticmethod
    def _children(module: Any) -> MutableMapping[str, Any]:
        children: MutableMapping[str, Any] = module._sub_layers
        return children

    @staticmethod
    def _frozen(model: Any) -> list[tuple[str, Any]]:
        frozen = [(name, p) for name, p in model.named_parameters() if p.stop_gradient]
        return [*frozen, *model.named_buffers()]

    @staticmethod
    def _is_trained(parameter: Any) -> bool:
        return not parameter.stop_gradient

    @staticmethod
    def _is_sparse(module: Any) -> bool:
        return type(module) is paddle.nn.Embedding and bool(module._sparse)

    @staticmethod
    def _groups_of(optimizer: Any) -> Iterable[tuple[Any, list[Any]]]:
        return [(optimizer, parameters_of(optimizer))]

    @staticmethod
    def _for_servers(optimizer: Any, group: Any, *, rows: bool) -> Optimizer:
        if rows:
            _check_rows(optimizer)
        return for_servers(optimizer)

    @classmethod
    def _members(cls, optimizer: Any, rows: Mapping[int, RemoteLayer]) -> list[list[Any]]:
        return [[(rows.get(id(p), p), p.name) for p in parameters_of(optimizer)]]

    @staticmethod
    def _check_parameter(optimizer: Any, parameter: Any) -> None:
        check_parameters(optimizer, [parameter])

    @staticmethod
    def _state_for_servers(
        optimizer: Any, group: Any, parameter: Any, does: Optimizer
    ) -> State | None:
        return state_for_servers(optimizer, parameter, does)

    @staticmethod
    def _without(optimizer: Any, rows: set[int]) -> None:
        forget(optimizer, [p for p in parameters_of(optimizer) if id(p) in rows])
        kept = [p for p in parameters_of(optimizer) if id(p) not in rows]
        optimizer._parameter_list, optimizer._param_groups = kept, list(kept)

    @staticmethod
    def _layer(module: Any) -> tuple[type[RemoteLayer], dict[str, Any]]:
        padding, scaled = module._padding_idx, getattr(module, "_scale_grad_by_freq", False)
        if padding is not None:
            padding %= module.weight.shape[0]
        max_norm = getattr(module, "_max_norm", None)
        Transpiler._check_rows(module.weight, paddle.float32, max_norm, scaled, padding)
        return SparseEmbedding, {"padding_idx": padding}

    @staticmethod
    def _has_max_norm(module: Any) -> bool:
        is_embedding = isinstance(module, paddle.nn.Embedding)
        return is_embedding and getattr(module, "_max_norm", None) is not None

    @staticmethod
    def _take_over(layer: Any, module: Any) -> None:
        layer.training = module.training
        for name, hooks in vars(module).items():
            if name.startswith(("_forward_pre_", "_forward_post_")):
                layer.__dict__[name] = hooks  # the same dict: a handle removes its hook from it

    @classmethod
    def _drop_with(cls, model: Any) -> None:
        for layer in model.sublayers(include_self=True):
            if not isinstance(layer, RemoteLayer) and layers_in(layer.sublayers()):
                vars(layer)["clear_gradients"] = _ClearGradients(layer)


class _ClearGradients:
    """``clear_gradients`` of a layer that has layers of ps in it: what these have noted goes, too.

    It is an object, whose copy in a copy of the layer has that copy.
    """

    def __init__(self, layer: paddle.nn.Layer) -> None:
        self._layer = layer

    def __call__(self, set_to_zero: bool = True) -> None:
        type(self._layer).clear_gradients(self._layer, set_to_zero)
        discard_tables(layer.table.name for layer in layers_in(self._layer.sublayers()))


def transpiler(model: Any, optimizer: Any) -> Any:
    """Return what transpiles a layer and its optimizers, or a static program."""
    if isinstance(model, paddle.nn.Layer):
        return PaddleTranspiler(model, optimizer)
    static = import_module(".static_transpiler", __package__)  # it uses names of the legacy IR
    return static.StaticTranspiler(model, optimizer)


def _check_rows(optimizer: Any) -> None:
    """Refuse what would move rows that are not in a batch.

    Raises:
        UnsupportedError: tables update the rows of a push alone.
    """
    kind = type(optimizer).__name__
    if kind in ("Adam", "AdamW") and not vars(optimizer).get("_lazy_mode"):
        raise UnsupportedError(
            f"rows with sparse gradients have no {kind} without lazy_mode=True: it "
            "also changes rows that are not in the batch"
        )
    if kind not in ("SGD", "Adagrad", "Adam", "AdamW"):
        raise UnsupportedError(
            "rows with sparse gradients have SGD, Adagrad, or Adam and AdamW with "
            f"lazy_mode=True, and not {kind}: give the embeddings an optimizer of their own"
        )
    if kind != "AdamW" and for_servers(optimizer).weight_decay:
        raise UnsupportedError(
            f"rows with sparse gradients have no {kind} with weight_decay, which also changes rows "
            "that are not in the batch: give the embeddings an optimizer of their own"
        )
