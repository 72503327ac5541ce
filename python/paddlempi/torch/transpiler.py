"""``ps.transpile`` for torch: a module and its optimizers, spread over trainers and servers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch

from ..errors import ArgumentError, DtypeError
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
from .embedding import Embedding, EmbeddingBag

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
        tables: the layers of the whole plan, each with its group: the step of any optimizer pushes
            what all layers have noted.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        average: bool,
        own_name: str,
        prefix: str,
        placement: str,
        names: dict[int, str],
        tables: list[tuple[RemoteLayer, dict[str, Any]]],
    ) -> None:
        self._names, self._prefix, self._tables = names, prefix, tables
        super().__init__(
            optimizer, dense="server", average=average, name=own_name, placement=placement
        )

    def _vectors(self, name: str, placement: str) -> list[Vector]:
        return [
            Vector(
                f"{self._prefix}.{self._names[id(parameter)]}",
                [parameter],
                partial(for_servers, self.optim, group),
                placement,
                read,
                write,
            )
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and parameter.numel()
        ]

    def vectors(self) -> Iterator[tuple[torch.Tensor, Vector]]:
        """The parameters that are blocks, in the order of the groups."""
        trained = [p for p in self._parameters() if p.numel()]
        yield from zip(trained, self._on_servers, strict=True)

    def _step_of_all(self) -> None:
        for layer, group in self._tables:
            layer.table.learning_rate = float(group["lr"])
        super()._step_of_all()
        self.optim._opt_called = True  # else a schedule of it warns that there was no step

    def refresh(self) -> None:
        """Set the parameters to those on the servers, as ``step`` does; after ``ps.restore``."""
        pull_vectors(self._on_servers)


class TorchPlan(Plan):
    """A plan for a module of torch."""

    FRAMEWORK: ClassVar[str] = "torch"

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the single-machine model. See :class:`Plan`."""
        state = dict(self.model.state_dict())
        for name, layer in self._layers.items():
            weight = torch.empty(layer.num_embeddings or 0, layer.embedding_dim)
            for begin, rows in rows_of_layer(layer):
                weight[begin : begin + len(rows)] = torch.as_tensor(rows)
            state[name] = weight
        return {name: state[name] for name in self._order if name in state}

    _order: list[str]


def _optimizers(given: Any) -> list[torch.optim.Optimizer]:
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    for one in found:
        if not isinstance(one, torch.optim.Optimizer):
            raise DtypeError(f"ps.transpile: a {type(one).__qualname__} is no optimizer of torch")
        if isinstance(one, DistributedOptimizer):
            raise ArgumentError("ps.transpile: an optimizer is a DistributedOptimizer already")
    if not found:
        raise ArgumentError("ps.transpile: there is no optimizer")
    return found


def _sparse(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The embeddings that become tables, by the names of their weights; each once."""
    return {
        f"{name}.weight" if name else "weight": module
        for name, module in model.named_modules()
        if type(module) in (torch.nn.Embedding, torch.nn.EmbeddingBag)
        and module.sparse
        and module.weight.requires_grad
    }


def check(model: torch.nn.Module, optimizer: Any) -> None:
    """Raise the errors of :func:`paddlempi.ps.transpile` that this rank can see alone."""
    optimizers = _optimizers(optimizer)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    owned = [
        [p for group in one.param_groups for p in group["params"] if p.requires_grad]
        for one in optimizers
    ]
    Owners(trained, owned)
    tables = _sparse(model)
    rows = {id(module.weight) for module in tables.values()}
    for name, module in tables.items():
        _layer_arguments(name, module)
        users = [
            path
            for path, one in model.named_modules()
            if one is not module and any(p is module.weight for p in one._parameters.values())
        ]
        if users:
            raise unsupported(name, f"its rows are a parameter of {users[0]!r} too: they are tied")
    for one in optimizers:
        for group in one.param_groups:
            if any(p.requires_grad and id(p) not in rows for p in group["params"]):
                for_servers(one, group)
            if any(id(p) in rows for p in group["params"]):
                for_servers(one, group, rows=True)


def _layer_arguments(name: str, module: Any) -> dict[str, Any]:
    """What the layer of a table takes of an embedding.

    Raises:
        UnsupportedError: it wants what a table does not have.
    """
    if module.weight.dtype != torch.float32:
        raise unsupported(name, f"its rows are of {module.weight.dtype}, not of float32")
    if module.max_norm is not None:
        raise unsupported(name, "tables have no max_norm")
    if module.scale_grad_by_freq:
        raise unsupported(name, "tables have no scale_grad_by_freq")
    more: dict[str, Any] = {}
    if isinstance(module, torch.nn.EmbeddingBag):
        more = {"mode": module.mode, "include_last_offset": module.include_last_offset}
    padding = module.padding_idx
    if padding is not None and bool(module.weight.detach()[padding].any()):
        raise unsupported(name, f"the row of its padding {padding} is not of zeros")
    return {"padding_idx": padding, **more}


def make(
    model: torch.nn.Module, optimizer: Any, average: bool, placement: str, name: str
) -> TorchPlan:
    """Make the plan, with all other trainers."""
    plan = TorchPlan()
    plan._order = list(model.state_dict())
    optimizers = _optimizers(optimizer)
    names = {id(p): path for path, p in model.named_parameters()}
    shapes = {path: tuple(p.shape) for path, p in model.named_parameters()}
    groups = {
        id(p): (one, group)
        for one in optimizers
        for group in one.param_groups
        for p in group["params"]
    }
    layers: dict[str, RemoteLayer] = {}
    tables: list[tuple[RemoteLayer, dict[str, Any]]] = []
    by_module: dict[int, Any] = {}
    for path, module in _sparse(model).items():
        by, group = groups[id(module.weight)]
        kind = Embedding if isinstance(module, torch.nn.Embedding) else EmbeddingBag
        layer = kind.from_pretrained(
            module.weight,
            freeze=False,
            name=f"{name}.{path}",
            optimizer=for_servers(by, group, rows=True),
            **_layer_arguments(path, module),
        )
        layer.train(module.training)
        by_module[id(module)] = layer
        layers[path] = layer
        tables.append((layer, group))
    rows = {id(module.weight) for module in _sparse(model).values()}
    for one in optimizers:
        for group in one.param_groups:  # the same dicts: schedules have them
            group["params"] = [p for p in group["params"] if id(p) not in rows]
    for parent in list(model.modules()):
        for child, module in parent._modules.items():
            if id(module) in by_module:
                parent._modules[child] = by_module[id(module)]
    plan.model = by_module.get(id(model), model)
    plan._layers = layers
    frozen = [p.detach() for p in plan.model.parameters() if not p.requires_grad]
    equal([*frozen, *(b for b in plan.model.buffers() if b.numel())])
    made = [
        _Optimizer(one, average, f"{name}.{number}", name, placement, names, tables)
        for number, one in enumerate(optimizers)
    ]
    plan.optimizer = made if isinstance(optimizer, (list, tuple)) else made[0]
    where = {path: Placed(path, shape) for path, shape in shapes.items()}
    for path, layer in layers.items():
        table = layer.table
        where[path] = Placed(path, shapes[path], table.name, table.optimizer)
    for one_made in made:
        for parameter, vector in one_made.vectors():
            path = names[id(parameter)]
            where[path] = placed(path, parameter, vector.blocks)
    plan.parameters = list(where.values())
    return plan
