"""How a plan is made: what the transpilers of torch and of Paddle have in common.

:func:`paddlempi.ps.transpile` is the entry. A front derives :class:`Transpiler`, which says what
the framework's models and optimizers have, and :class:`SpreadOptimizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any, ClassVar

from ..errors import ArgumentError, DtypeError, UnsupportedError
from .distributed import CommonOptimizer, Vector, equal
from .layers import RemoteLayer
from .optimizers import Optimizer
from .plan import Placed, Plan

__all__ = ["SpreadOptimizer", "Transpiler"]


class SpreadOptimizer(CommonOptimizer):
    """An optimizer all of whose parameters are on servers: a vector for each, and tables.

    The class of a front derives it before its ``DistributedOptimizer``.

    Args:
        optimizer: the wrapped one, without the parameters that are tables.
        average: see :func:`paddlempi.ps.transpile`.
        own_name: that of this optimizer.
        prefix: what the names of tables begin with.
        placement: how blocks are dealt.
        names: the parameters' names, by id().
        rates: the layers of the whole plan, each with a function that returns its learning rate of
            now: the step of any optimizer pushes what all layers have noted.
    """

    def __init__(
        self,
        optimizer: Any,
        average: bool,
        own_name: str,
        prefix: str,
        placement: str,
        names: Mapping[int, str],
        rates: list[tuple[RemoteLayer, Callable[[], float]]],
    ) -> None:
        self._names, self._prefix, self._rates = names, prefix, rates
        super().__init__(  # type: ignore[call-arg]  # that of the front's DistributedOptimizer
            optimizer, dense="server", average=average, name=own_name, placement=placement
        )

    # What the framework knows

    def _with_servers(self) -> Iterator[tuple[Any, Callable[[], Optimizer]]]:
        """The parameters that are trained and have elements, each with what servers do now."""
        raise NotImplementedError

    @staticmethod
    def _read(tensor: Any) -> Any:
        """Return a parameter or a gradient as an array of float32, [elements]."""
        raise NotImplementedError

    @staticmethod
    def _write(parameter: Any, values: Any) -> None:
        """Set a parameter to an array of float32, [elements]."""
        raise NotImplementedError

    def _vectors(self, name: str, placement: str) -> list[Vector]:
        return [
            Vector(
                f"{self._prefix}.{self._names[id(parameter)]}",
                [parameter],
                does,
                placement,
                self._read,
                self._write,
            )
            for parameter, does in self._with_servers()
        ]

    def placed(self) -> Iterator[Placed]:
        """Where its dense parameters are."""
        for (parameter, _), vector in zip(self._with_servers(), self._on_servers, strict=True):
            blocks = vector.blocks
            yield Placed(
                self._names[id(parameter)],
                tuple(parameter.shape),
                blocks.table.name,
                blocks.table.optimizer,
                blocks.count,
                blocks.first,
            )

    def _step_of_all(self) -> None:
        for layer, rate in self._rates:
            layer.table.learning_rate = rate()
        super()._step_of_all()


class Transpiler:
    """A model and its optimizers, on the way to a plan.

    Args:
        model, optimizer: as :func:`paddlempi.ps.transpile` is given them.

    Raises:
        ArgumentError, DtypeError, UnsupportedError: what this rank can see alone of what
            :func:`paddlempi.ps.transpile` raises. Nothing has changed.
    """

    FRAMEWORK: ClassVar[str]
    PLAN: ClassVar[type[Plan]]
    OPTIMIZER: ClassVar[type[SpreadOptimizer]]

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model = model
        self._listed = isinstance(optimizer, (list, tuple))
        self._optimizers = list(optimizer) if self._listed else [optimizer]
        for one in self._optimizers:
            if not self._is_optimizer(one):
                raise DtypeError(
                    f"ps.transpile: a {type(one).__qualname__} is no optimizer of {self.FRAMEWORK}"
                )
            if isinstance(one, CommonOptimizer):
                raise ArgumentError("ps.transpile: an optimizer is a DistributedOptimizer already")
        if not self._optimizers:
            raise ArgumentError("ps.transpile: there is no optimizer")
        self._names = {id(p): name for name, p in self._named_parameters()}
        self._shapes = {name: tuple(p.shape) for name, p in self._named_parameters()}
        self._groups = self._owners()
        # The embeddings that become tables, by the names of their weights; each once.
        self._tables = {
            f"{path}.weight" if path else "weight": module
            for path, module in self._modules(model)
            if self._is_sparse(module) and self._is_trained(module.weight)
        }
        self._check()

    # What the framework knows

    @staticmethod
    def _is_optimizer(given: Any) -> bool:
        raise NotImplementedError

    @staticmethod
    def _modules(model: Any) -> Iterable[tuple[str, Any]]:
        """The modules of a model with their paths, it with an empty one; each once."""
        raise NotImplementedError

    @staticmethod
    def _children(module: Any) -> MutableMapping[str, Any]:
        """The modules that are attributes of a module."""
        raise NotImplementedError

    @staticmethod
    def _frozen(model: Any) -> list[Any]:
        """The parameters that are not trained, and the buffers, as tensors to write to."""
        raise NotImplementedError

    @staticmethod
    def _is_trained(parameter: Any) -> bool:
        raise NotImplementedError

    @staticmethod
    def _is_sparse(module: Any) -> bool:
        """Whether a module is an embedding with sparse gradients."""
        raise NotImplementedError

    @staticmethod
    def _groups_of(optimizer: Any) -> Iterable[tuple[Any, list[Any]]]:
        """The groups of an optimizer, each with its parameters."""
        raise NotImplementedError

    @staticmethod
    def _for_servers(optimizer: Any, group: Any, *, rows: bool) -> Optimizer:
        """Return what servers have for a group; rows: of a table.

        Raises:
            UnsupportedError: they do not have it.
        """
        raise NotImplementedError

    @staticmethod
    def _rate(optimizer: Any, group: Any) -> float:
        """The learning rate of a group, now."""
        raise NotImplementedError

    @staticmethod
    def _without(optimizer: Any, rows: set[int]) -> None:
        """Take parameters, by id(), out of an optimizer."""
        raise NotImplementedError

    @staticmethod
    def _layer(module: Any) -> tuple[type[RemoteLayer], dict[str, Any]]:
        """Return the layer that stands for an embedding, and its arguments.

        Raises:
            UnsupportedError: the embedding wants what a table does not have.
        """
        raise NotImplementedError

    @staticmethod
    def _set_mode(layer: Any, module: Any) -> None:
        """Have a layer train, or not, as the module does."""
        raise NotImplementedError

    @staticmethod
    def _check_rows(
        weight: Any, single: Any, max_norm: Any, scaled: Any, padding: int | None
    ) -> None:
        """Raise if an embedding wants what a table does not have.

        Args:
            weight: of the embedding.
            single: the framework's float32.
            max_norm, scaled: its arguments ``max_norm`` and ``scale_grad_by_freq``.
            padding: the row of its padding; None: it has none.
        """
        if weight.dtype != single:
            raise UnsupportedError(f"its rows are of {weight.dtype}, not of float32")
        if max_norm is not None:
            raise UnsupportedError("tables have no max_norm")
        if scaled:
            raise UnsupportedError("tables have no scale_grad_by_freq")
        if padding is not None and bool((weight.detach()[padding] != 0).any()):
            raise UnsupportedError(f"the row of its padding {padding} is not of zeros")

    def _named_parameters(self) -> Iterable[tuple[str, Any]]:
        pairs: Iterable[tuple[str, Any]] = self._model.named_parameters()
        return pairs

    # Before ranks talk to each other

    def _owners(self) -> dict[int, tuple[Any, Any]]:
        """Return the optimizer and the group of each trained parameter, by id().

        Raises:
            ArgumentError: a parameter has none, or two; or one is not the model's.
        """
        found: dict[int, tuple[Any, Any]] = {}
        by: dict[int, int] = {}
        for number, one in enumerate(self._optimizers):
            own = [(group, p) for group, parameters in self._groups_of(one) for p in parameters]
            for place, (group, parameter) in enumerate(own):
                if not self._is_trained(parameter):
                    continue
                name = self._names.get(id(parameter))
                if name is None:
                    raise ArgumentError(
                        f"ps.transpile: parameter {place} of optimizer {number}, of shape "
                        f"{tuple(parameter.shape)}, is none of the model: give the model that has "
                        "all of them"
                    )
                if id(parameter) in found:
                    raise ArgumentError(
                        f"ps.transpile: parameter {name!r} belongs to two: optimizer "
                        f"{by[id(parameter)]} and optimizer {number}"
                    )
                found[id(parameter)], by[id(parameter)] = (one, group), number
        for name, parameter in self._named_parameters():
            if self._is_trained(parameter) and id(parameter) not in found:
                raise ArgumentError(
                    f"ps.transpile: parameter {name!r} belongs to nobody: give it to an optimizer, "
                    "or freeze it"
                )
        return found

    def _check(self) -> None:
        """Raise if servers do not have what the model or an optimizer wants."""
        rows = {id(module.weight) for module in self._tables.values()}
        for name, module in self._tables.items():
            try:
                self._layer(module)
            except UnsupportedError as error:
                raise UnsupportedError(f"ps.transpile: embedding {name!r}: {error}") from None
            for path, one in self._modules(self._model):
                if one is not module and any(p is module.weight for p in one._parameters.values()):
                    raise UnsupportedError(
                        f"ps.transpile: embedding {name!r}: its rows are a parameter of {path!r} "
                        "too: they are tied"
                    )
        for parameter, (one, group) in self._groups.items():
            self._for_servers(one, group, rows=parameter in rows)

    # With all other trainers

    def plan(self, average: bool, placement: str, prefix: str) -> Plan:
        """Make the plan. The arguments are those of :func:`paddlempi.ps.transpile`."""
        plan = self.PLAN()
        plan.order = list(self._model.state_dict())
        layers, rates = self._make_layers(prefix)
        rows = {id(module.weight) for module in self._tables.values()}
        for one in self._optimizers:
            self._without(one, rows)
        plan.model = self._put_in({id(self._tables[name]): layer for name, layer in layers.items()})
        plan.layers = layers
        equal(self._frozen(plan.model))
        made = [
            self.OPTIMIZER(
                one, average, f"{prefix}.{number}", prefix, placement, self._names, rates
            )
            for number, one in enumerate(self._optimizers)
        ]
        plan.optimizer = made if self._listed else made[0]
        where = {name: Placed(name, shape) for name, shape in self._shapes.items()}
        for name, layer in layers.items():
            where[name] = Placed(name, self._shapes[name], layer.table.name, layer.table.optimizer)
        for optimizer in made:
            where |= {one.name: one for one in optimizer.placed()}
        plan.parameters = list(where.values())
        return plan

    def _make_layers(
        self, prefix: str
    ) -> tuple[dict[str, RemoteLayer], list[tuple[RemoteLayer, Callable[[], float]]]]:
        layers: dict[str, RemoteLayer] = {}
        rates: list[tuple[RemoteLayer, Callable[[], float]]] = []
        for name, module in self._tables.items():
            one, group = self._groups[id(module.weight)]
            kind, arguments = self._layer(module)
            layer = kind.from_pretrained(
                module.weight,
                freeze=False,
                name=f"{prefix}.{name}",
                optimizer=self._for_servers(one, group, rows=True),
                **arguments,
            )
            self._set_mode(layer, module)
            layers[name] = layer
            rates.append((layer, partial(self._rate, one, group)))
        return layers, rates

    def _put_in(self, layers: Mapping[int, RemoteLayer]) -> Any:
        """Put layers into the places of their embeddings, by id(); return the model."""
        for _, parent in list(self._modules(self._model)):
            children = self._children(parent)
            for name, module in list(children.items()):
                if id(module) in layers:
                    children[name] = layers[id(module)]
        return layers.get(id(self._model), self._model)
