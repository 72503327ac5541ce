"""How a plan is made: what the transpilers of torch and of Paddle have in common.

:func:`paddlempi.ps.transpile` is the entry. A front derives :class:`Transpiler`, which says what
the framework's models and optimizers have, and :class:`SpreadOptimizer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from types import MethodType
from typing import Any, ClassVar

from ..errors import ArgumentError, DtypeError, UnsupportedError
from . import session
from .distributed_optimizer import Access, CommonOptimizer, Vector, equal, rate_of_now
from .layers import RemoteLayer, layers_in
from .optimizers import Optimizer
from .plan import Placed, Plan
from .states import State, is_writer, read_rows, write_rows

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
        rows: the layers of its embeddings, each with a function that returns what servers do now.
        members: what the optimizer had, for each group: parameters, and for the weights of
            embeddings the layers that stand for them.
        rest: whether it also pushes what layers have noted that are none of the plan.
    """

    ACCESS: ClassVar[Access]

    def __init__(
        self,
        optimizer: Any,
        average: bool,
        own_name: str,
        prefix: str,
        placement: str,
        names: Mapping[int, str],
        rows: list[tuple[RemoteLayer, Callable[[], Optimizer]]],
        members: list[list[Any]],
        rest: bool,
    ) -> None:
        self._names, self._prefix, self._rows = names, prefix, rows
        self._all_members = members
        super().__init__(  # type: ignore[call-arg]  # that of the front's DistributedOptimizer
            optimizer,
            dense="server",
            average=average,
            name=own_name,
            placement=placement,
            tables=[layer for layer, _ in rows],
        )
        self._owner.rest = rest
        optimizer.step = MethodType(_not_its_step, optimizer)

    def take(self, layers: Iterable[RemoteLayer]) -> None:
        """Have the gradients of layers, but those that another optimizer was given."""
        names = {layer.table.name for layer in layers}
        self._owner.names |= names - session.current("ps.transpile").owners.owned()

    def _check_steps(self, does: Optimizer, states: Sequence[State | None]) -> None:
        pass  # each parameter has a vector, and steps, of its own

    # What the framework knows

    def _with_servers(self) -> Iterator[tuple[Any, Callable[[], Optimizer]]]:
        """The parameters that are trained and have elements, each with what servers do now."""
        raise NotImplementedError

    def _vectors(self, name: str, placement: str) -> list[Vector]:
        return [
            Vector(
                f"{self._prefix}.{self._names[id(parameter)]}",
                [parameter],
                does,
                placement,
                self.ACCESS,
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

    def _note(self) -> None:
        for layer, does in self._rows:
            layer.table.learning_rate = rate_of_now(layer.table.optimizer, does())
        super()._note()

    def _called(self, parameter: Any) -> str:
        return repr(self._names[id(parameter)])

    def _members(self) -> list[list[Any]]:
        return self._all_members

    def _on_server(self) -> dict[int, Optimizer]:
        return super()._on_server() | {id(one): one.table.optimizer for one, _ in self._rows}

    def _read_states(self) -> dict[int, State]:
        states = super()._read_states()
        for layer, _ in self._rows:
            states[id(layer)] = read_rows(layer.table, layer.num_embeddings or 0)
        return states

    def _write_states(self, states: Mapping[int, State]) -> None:
        super()._write_states(states)
        for layer, _ in self._rows:
            if id(layer) in states:
                write_layer(layer, states[id(layer)], self.ACCESS)


def write_layer(layer: RemoteLayer, state: State, access: Access) -> None:
    """Set what the servers have of the rows of a layer. One trainer calls it."""
    slots = {name: access.read(value) for name, value in state.slots.items()}
    write_rows(layer.table, layer.num_embeddings or 0, State(state.steps, slots))


def _not_its_step(optimizer: Any, *_: Any, **__: Any) -> None:
    raise UnsupportedError(
        f"ps.transpile: this {type(optimizer).__name__} was given to a plan: its own step would "
        "change the parameters of this trainer alone: call step of plan.optimizer"
    )


# What torch's schedules look for: that a step is counted. plan.optimizer counts it.
_not_its_step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


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
            # With weight_norm its weight is computed, and no parameter.
            if self._is_sparse(module) and module._parameters.get("weight") is not None
            if self._is_trained(module.weight)
        }
        # All names of these weights in a state dict: a module may be at several places.
        first = {id(module): name for name, module in self._tables.items()}
        self._places = {
            f"{path}.weight" if path else "weight": first[id(module)]
            for path, module in self._everywhere(model, "")
            if id(module) in first
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
    def _frozen(model: Any) -> list[tuple[str, Any]]:
        """The parameters that are not trained, and the buffers, as tensors to write to.

        Raises:
            UnsupportedError: one cannot be sent to other trainers.
        """
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
    def _check_parameter(optimizer: Any, parameter: Any) -> None:
        """Raise UnsupportedError if servers have no such parameters."""

    @staticmethod
    def _state_for_servers(
        optimizer: Any, group: Any, parameter: Any, does: Optimizer
    ) -> State | None:
        """Return what an optimizer has of a parameter; None: what it begins with.

        Args:
            does: what servers do for the parameter.

        Raises:
            UnsupportedError: servers have no place for it. The text is the names of what it is.
        """
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
    def _has_max_norm(module: Any) -> bool:
        """Whether a module is an embedding whose forward changes its rows."""
        raise NotImplementedError

    @staticmethod
    def _take_over(layer: Any, module: Any) -> None:
        """Have a layer train, or not, and call the hooks of forward, as the module does."""
        raise NotImplementedError

    @staticmethod
    def _hooks_of_rows(module: Any) -> bool:
        """Whether gradients of an embedding's weight have hooks, as far as that is to be seen."""
        return False

    @staticmethod
    def _hooks_of_steps(optimizer: Any) -> bool:
        """Whether a step of an optimizer has hooks."""
        return False

    @classmethod
    def _drop_with(cls, model: Any) -> None:
        """Have a model, and modules in it, drop what their layers have noted with the gradients."""
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

    def _everywhere(self, module: Any, path: str) -> Iterator[tuple[str, Any]]:
        """A module and those in it with their paths, each as often as it is there."""
        yield path, module
        for name, child in self._children(module).items():
            if child is not None:
                yield from self._everywhere(child, f"{path}.{name}" if path else name)

    # Before ranks talk to each other

    def _owners(self) -> dict[int, tuple[Any, int]]:
        """Return the optimizer and the number of the group of each trained parameter, by id().

        Raises:
            ArgumentError: a parameter has none, or two; or one is not the model's.
        """
        found: dict[int, tuple[Any, int]] = {}
        by: dict[int, int] = {}
        for number, one in enumerate(self._optimizers):
            groups = enumerate(self._groups_of(one))
            own = [(group, p) for group, (_, parameters) in groups for p in parameters]
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
        for number, one in enumerate(self._optimizers):
            if self._hooks_of_steps(one):
                raise UnsupportedError(
                    f"ps.transpile: optimizer {number} has hooks of its step, which servers make: "
                    "remove them, and do before and after step what they do"
                )
        rows = {id(module.weight) for module in self._tables.values()}
        for name, module in self._tables.items():
            try:
                self._layer(module)
            except UnsupportedError as error:
                raise UnsupportedError(f"ps.transpile: embedding {name!r}: {error}") from None
            if self._hooks_of_rows(module):
                raise UnsupportedError(
                    f"ps.transpile: embedding {name!r}: its weight has hooks, which tables do not "
                    "call: take hooks of what the embedding returns"
                )
            for path, one in self._modules(self._model):
                if one is not module and any(p is module.weight for p in one._parameters.values()):
                    raise UnsupportedError(
                        f"ps.transpile: embedding {name!r}: its rows are a parameter of {path!r} "
                        "too: they are tied"
                    )
        for path, module in self._modules(self._model):
            if self._has_max_norm(module) and self._is_trained(module.weight):
                raise UnsupportedError(
                    f"ps.transpile: embedding {path or 'weight'!r}: its max_norm changes rows in "
                    "forward, and not on the servers: take a norm of the rows it returns"
                )
        for name, parameter in self._named_parameters():
            if not self._is_trained(parameter):
                continue
            one, number = self._groups[id(parameter)]
            try:
                self._check_parameter(one, parameter)
                does = self._now(one, number, rows=id(parameter) in rows)
            except UnsupportedError as error:
                text = str(error).removeprefix("ps.DistributedOptimizer: ")
                raise UnsupportedError(f"ps.transpile: parameter {name!r}: {text}") from None
            try:
                self._state_for_servers(one, self._group(one, number), parameter, does)
            except UnsupportedError as error:
                raise UnsupportedError(
                    f"ps.transpile: the optimizer has {error} of parameter {name!r} from earlier "
                    f"steps, for which servers have no place with {type(does).__name__}: make a "
                    "new optimizer, which begins anew"
                ) from None
        self._frozen(self._model)

    @classmethod
    def _now(cls, optimizer: Any, number: int, *, rows: bool) -> Optimizer:
        """Return what servers do for a group now. Loading a state puts others in their places."""
        return cls._for_servers(optimizer, cls._group(optimizer, number), rows=rows)

    @classmethod
    def _group(cls, optimizer: Any, number: int) -> Any:
        return list(cls._groups_of(optimizer))[number][0]

    # With all other trainers

    def plan(self, average: bool, placement: str, prefix: str) -> Plan:
        """Make the plan. The arguments are those of :func:`paddlempi.ps.transpile`."""
        plan = self.PLAN()
        plan.order = list(self._model.state_dict())
        before = layers_in(module for _, module in self._modules(self._model))
        layers = self._make_layers(prefix)
        rows = {id(module.weight): layers[name] for name, module in self._tables.items()}
        members = [self._members(one, rows) for one in self._optimizers]
        for one in self._optimizers:
            self._without(one, set(rows))
        plan.model = self._put_in({id(self._tables[name]): layer for name, layer in layers.items()})
        self._drop_with(plan.model)
        plan.layers, plan.places = layers, self._places
        plan.frozen = partial(self._frozen, plan.model)
        equal(tensor for _, tensor in plan.frozen())
        made = []
        for number, one in enumerate(self._optimizers):
            mine: list[tuple[RemoteLayer, Callable[[], Optimizer]]] = []
            for name, layer in layers.items():
                owner, group = self._groups[id(self._tables[name].weight)]
                if owner is one:
                    mine.append((layer, partial(self._now, one, group, rows=True)))
            made.append(
                self.OPTIMIZER(
                    one,
                    average,
                    f"{prefix}.{number}",
                    prefix,
                    placement,
                    self._names,
                    mine,
                    members[number],
                    number == 0,
                )
            )
        made[0].take(before)
        plan.optimizer = made if self._listed else made[0]
        where = {name: Placed(name, shape) for name, shape in self._shapes.items()}
        for name, layer in layers.items():
            where[name] = Placed(name, self._shapes[name], layer.table.name, layer.table.optimizer)
        for optimizer in made:
            where |= {one.name: one for one in optimizer.placed()}
        plan.parameters = list(where.values())
        for name, layer in layers.items():
            self._retire(self._tables[name], layer)
        return plan

    @classmethod
    def _members(cls, optimizer: Any, rows: Mapping[int, RemoteLayer]) -> list[list[Any]]:
        """What an optimizer has, for each group, with layers in the places of their weights."""
        return [[rows.get(id(p), p) for p in of] for _, of in cls._groups_of(optimizer)]

    def _make_layers(self, prefix: str) -> dict[str, RemoteLayer]:
        """Make the layers of embeddings. The first trainer writes rows and states.

        The others wait for the states in the barrier of their optimizer's dense parameters.
        """
        layers: dict[str, RemoteLayer] = {}
        for name, module in self._tables.items():
            kind, arguments = self._layer(module)
            one, number = self._groups[id(module.weight)]
            does = self._now(one, number, rows=True)
            layer = kind.from_pretrained(
                module.weight,
                freeze=False,
                name=f"{prefix}.{name}",
                optimizer=does,
                **arguments,
            )
            state = self._state_for_servers(one, self._group(one, number), module.weight, does)
            if state is not None and is_writer("ps.transpile"):
                write_layer(layer, state, self.OPTIMIZER.ACCESS)
            self._take_over(layer, module)
            layers[name] = layer
        return layers

    @staticmethod
    def _retire(module: Any, layer: RemoteLayer) -> None:
        """Have an embedding be its layer where a program has it elsewhere than in a module.

        It has no weight any more: that of before would be taken for the rows of now.
        """
        module._parameters.pop("weight")
        vars(module)["forward"] = layer.forward  # type: ignore[attr-defined]  # of the front's

    def _put_in(self, layers: Mapping[int, RemoteLayer]) -> Any:
        """Put layers into the places of their embeddings, by id(); return the model."""
        for _, parent in list(self._modules(self._model)):
            children = self._children(parent)
            for name, module in list(children.items()):
                if id(module) in layers:
                    children[name] = layers[id(module)]
        return layers.get(id(self._model), self._model)
