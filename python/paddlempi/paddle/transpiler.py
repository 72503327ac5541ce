"""``ps.transpile`` for Paddle: a layer and its optimizers, spread over trainers and servers.

For ``paddle.nn.Layer`` in dynamic mode. Paddle 3.3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import paddle

from .. import ps
from ..errors import ArgumentError, DtypeError, UnsupportedError
from ..ps.distributed import Vector
from ..ps.layers import RemoteLayer
from ..ps.plan import (
    Owners,
    Placed,
    Plan,
    equal,
    placed,
    pull_vectors,
    rows_of_layer,
    unsupported,
)
from .distributed_optimizer import DistributedOptimizer, for_servers, read, write
from .embedding import SparseEmbedding
from .parameters import parameters_of

__all__ = ["check", "make"]


class _Optimizer(DistributedOptimizer):
    """An optimizer all of whose parameters are on servers: a vector for each, and tables.

    Args:
        optimizer: the wrapped one, without the parameters that are tables.
        average: see :func:`paddlempi.ps.transpile`.
        own_name: that of this optimizer.
        prefix: what the names of tables begin with.
        placement: how blocks are dealt.
        names: the parameters' names, by id().
        tables: the layers of the whole plan, each with its optimizer: the step of any optimizer
            pushes what all layers have noted.
    """

    def __init__(
        self,
        optimizer: Any,
        average: bool,
        own_name: str,
        prefix: str,
        placement: str,
        names: dict[int, str],
        tables: list[tuple[RemoteLayer, Any]],
    ) -> None:
        self._names, self._prefix, self._tables = names, prefix, tables
        super().__init__(
            optimizer, dense="server", average=average, name=own_name, placement=placement
        )

    def _vectors(self, name: str, placement: str) -> list[Vector]:
        parameters = self._parameters()
        return [
            Vector(
                f"{self._prefix}.{self._names[id(parameter)]}",
                [parameter],
                partial(for_servers, self.optim),
                placement,
                read,
                write,
            )
            for parameter in parameters
        ]

    def vectors(self) -> Iterator[tuple[Any, Vector]]:
        """The parameters that are blocks, in their order."""
        yield from zip(self._parameters(), self._on_servers, strict=True)

    def _step_of_all(self) -> None:
        for layer, by in self._tables:
            layer.table.learning_rate = float(by.get_lr())
        if self._on_servers:
            super()._step_of_all()
        else:  # Paddle's optimizers do not step without parameters
            ps.step(average=self._average)

    def clear_grad(self, set_to_zero: bool = True) -> None:
        """Drop the gradients: of the dense parameters, and those that layers have noted."""
        if self._on_servers:
            super().clear_grad(set_to_zero)
        else:
            ps.discard()

    clear_gradients = clear_grad

    def refresh(self) -> None:
        """Set the parameters to those on the servers, as ``step`` does; after ``ps.restore``."""
        pull_vectors(self._on_servers)


class PaddlePlan(Plan):
    """A plan for a layer of Paddle."""

    FRAMEWORK: ClassVar[str] = "paddle"
    _order: list[str]

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the single-machine model. See :class:`Plan`."""
        state = dict(self.model.state_dict())
        for name, layer in self._layers.items():
            weight = np.empty((layer.num_embeddings or 0, layer.embedding_dim), np.float32)
            for begin, rows in rows_of_layer(layer):
                weight[begin : begin + len(rows)] = rows
            state[name] = paddle.to_tensor(weight)
        return {name: state[name] for name in self._order if name in state}


def _optimizers(given: Any) -> list[Any]:
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    for one in found:
        if not hasattr(one, "_param_groups"):
            raise DtypeError(f"ps.transpile: a {type(one).__qualname__} is no optimizer of Paddle")
        if isinstance(one, DistributedOptimizer):
            raise ArgumentError("ps.transpile: an optimizer is a DistributedOptimizer already")
    if not found:
        raise ArgumentError("ps.transpile: there is no optimizer")
    return found


def _sparse(model: Any) -> dict[str, Any]:
    """The embeddings that become tables, by the names of their weights; each once."""
    return {
        f"{name}.weight" if name else "weight": layer
        for name, layer in model.named_sublayers(include_self=True)
        if type(layer) is paddle.nn.Embedding and layer._sparse and not layer.weight.stop_gradient
    }


def check(model: Any, optimizer: Any) -> None:
    """Raise the errors of :func:`paddlempi.ps.transpile` that this rank can see alone."""
    optimizers = _optimizers(optimizer)
    trained = {name: p for name, p in model.named_parameters() if not p.stop_gradient}
    owned = [[p for p in parameters_of(one) if not p.stop_gradient] for one in optimizers]
    Owners(trained, owned)
    tables = _sparse(model)
    rows = {id(layer.weight) for layer in tables.values()}
    for name, layer in tables.items():
        _padding(name, layer)
        for path, one in model.named_sublayers(include_self=True):
            if one is not layer and any(p is layer.weight for p in one._parameters.values()):
                raise unsupported(name, f"its rows are a parameter of {path!r} too: they are tied")
    for one, parameters in zip(optimizers, owned, strict=True):
        if any(id(p) in rows for p in parameters):
            _check_rows(one)
        for_servers(one)


def _check_rows(optimizer: Any) -> None:
    """Refuse what would move rows that are not in a batch.

    Raises:
        UnsupportedError: tables update the rows of a push alone.
    """
    kind = type(optimizer).__name__
    lazy = vars(optimizer).get("_lazy_mode")
    if kind in ("Adam", "AdamW") and not lazy:
        raise UnsupportedError(
            f"ps.transpile: rows with sparse gradients have no {kind} without lazy_mode=True: it "
            "also changes rows that are not in the batch"
        )
    if kind not in ("SGD", "Adagrad", "Adam", "AdamW"):
        raise UnsupportedError(
            "ps.transpile: rows with sparse gradients have SGD, Adagrad, or Adam and AdamW with "
            f"lazy_mode=True, and not {kind}: give the embeddings an optimizer of their own"
        )


def _padding(name: str, layer: Any) -> int | None:
    """Return the id of an embedding's padding; None: there is none.

    Raises:
        UnsupportedError: the layer wants what a table does not have.
    """
    if layer.weight.dtype != paddle.float32:
        raise unsupported(name, f"its rows are of {layer.weight.dtype}, not of float32")
    if getattr(layer, "_max_norm", None) is not None:
        raise unsupported(name, "tables have no max_norm")
    if getattr(layer, "_scale_grad_by_freq", False):
        raise unsupported(name, "tables have no scale_grad_by_freq")
    padding = layer._padding_idx
    if padding is None:
        return None
    padding %= layer.weight.shape[0]
    if bool(layer.weight[padding].abs().max() > 0):
        raise unsupported(name, f"the row of its padding {padding} is not of zeros")
    return int(padding)


def make(model: Any, optimizer: Any, average: bool, placement: str, name: str) -> PaddlePlan:
    """Make the plan, with all other trainers."""
    plan = PaddlePlan()
    plan._order = list(model.state_dict())
    optimizers = _optimizers(optimizer)
    names = {id(p): path for path, p in model.named_parameters()}
    shapes = {path: tuple(p.shape) for path, p in model.named_parameters()}
    by = {id(p): one for one in optimizers for p in parameters_of(one)}
    layers: dict[str, RemoteLayer] = {}
    tables: list[tuple[RemoteLayer, Any]] = []
    made_of: dict[int, Any] = {}
    found = _sparse(model)
    for path, layer in found.items():
        own = by[id(layer.weight)]
        made = SparseEmbedding.from_pretrained(
            layer.weight,
            freeze=False,
            name=f"{name}.{path}",
            optimizer=for_servers(own),
            padding_idx=_padding(path, layer),
        )
        made.training = layer.training
        made_of[id(layer)], layers[path] = made, made
        tables.append((made, own))
    rows = {id(layer.weight) for layer in found.values()}
    for one in optimizers:
        kept = [p for p in parameters_of(one) if id(p) not in rows]
        one._parameter_list, one._param_groups = kept, list(kept)
    for parent in model.sublayers(include_self=True):
        for child, layer in parent._sub_layers.items():
            if id(layer) in made_of:
                parent._sub_layers[child] = made_of[id(layer)]
    plan.model, plan._layers = made_of.get(id(model), model), layers
    frozen = [p for p in plan.model.parameters() if p.stop_gradient]
    equal([*frozen, *plan.model.buffers()])
    wrapped = [
        _Optimizer(one, average, f"{name}.{number}", name, placement, names, tables)
        for number, one in enumerate(optimizers)
    ]
    plan.optimizer = wrapped if isinstance(optimizer, (list, tuple)) else wrapped[0]
    where = {path: Placed(path, shape) for path, shape in shapes.items()}
    for path, remote in layers.items():
        where[path] = Placed(path, shapes[path], remote.table.name, remote.table.optimizer)
    for one in wrapped:
        for parameter, vector in one.vectors():
            path = names[id(parameter)]
            where[path] = placed(path, parameter, vector.blocks)
    plan.parameters = list(where.values())
    return plan
