"""One step of all trainers: what ``DistributedOptimizer`` of torch and of Paddle have in common."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from .. import _native
from .._ops import Op
from ..collectives import all_reduce_coalesced, broadcast
from ..errors import ArgumentError, DtypeError, Error, UnsupportedError
from ..group import ProcessGroup
from ..reduce_op import ReduceOp
from . import session, stepping
from .dense import PLACEMENTS, Blocks, pull, spread
from .layers import RemoteLayer
from .optimizers import Optimizer
from .remote import RemoteTable
from .states import State, is_writer, read_blocks, steps_of, write_blocks
from .table_owners import Owner

__all__ = ["Access", "CommonOptimizer", "Vector", "equal", "rate_of_now"]


def equal(tensors: Iterable[Any]) -> None:
    """Give all trainers the first one's values of tensors."""
    found = session.as_trainer("ps.DistributedOptimizer")
    if len(found.trainers) > 1:
        for tensor in tensors:
            broadcast(tensor, src=found.trainers[0], group=found.trainer_group)


class CommonOptimizer:
    """The part of a ``DistributedOptimizer`` that needs no framework. A front's class derives it.

    Attributes:
        optim: the wrapped optimizer.
    """

    optim: Any
    _average: bool
    _group: ProcessGroup | None
    _owner: Owner
    _served: bool  # whether the dense parameters are on the servers
    _on_servers: list[Vector]
    _places: list[int]  # id() of the parameters that are on the servers

    def _attach(
        self,
        optimizer: Any,
        dense: str,
        average: bool,
        name: str,
        placement: str,
        tables: Iterable[RemoteLayer | RemoteTable] | None,
    ) -> None:
        """Take the arguments, and make the dense parameters of all trainers the same."""
        if dense not in ("all_reduce", "server", "local"):
            raise ArgumentError(
                f"ps.DistributedOptimizer: dense={dense!r} is none of 'all_reduce', 'server' and "
                "'local'"
            )
        if placement not in PLACEMENTS:
            raise ArgumentError(
                f"ps.DistributedOptimizer: placement={placement!r} is none of "
                f"{', '.join(map(repr, PLACEMENTS))}"
            )
        if not isinstance(name, str):
            raise DtypeError(f"ps.DistributedOptimizer: name={name!r} is no text")
        if isinstance(optimizer, CommonOptimizer):
            raise ArgumentError("ps.DistributedOptimizer: it is one already: its step would be two")
        found = session.as_trainer("ps.DistributedOptimizer")
        self.optim = optimizer
        self._average = average
        self._group = None
        self._served = dense == "server"
        self._on_servers = []
        if self._served:
            if name in found.names:
                raise ArgumentError(
                    f"ps.DistributedOptimizer: name={name!r} is that of an earlier optimizer with "
                    "dense='server', whose parameters and states are on the servers: give this one "
                    "another name, the same on all trainers"
                )
            states = self._states_for_servers()
        self._owner = Owner(_names_of(tables), tables is None, self._noted_gradients)
        found.owners.check("ps.DistributedOptimizer", self._owner)
        if dense != "local":
            on_servers = {id(p) for p in self._parameters()} if self._served else set()
            rest = [p for p in self._all_parameters() if id(p) not in on_servers]  # frozen ones too
            equal(map(self._detached, rest))
        if self._served:
            self._on_servers = self._vectors(name, placement)
            self._owner.names.update(vector.blocks.table.name for vector in self._on_servers)
            self._places = [id(parameter) for parameter in self._parameters()]
            found.names.add(name)
            if is_writer("ps.DistributedOptimizer"):
                self._write_states({key: one for key, one in states.items() if one is not None})
            spread([vector.blocks for vector in self._on_servers])
            self._forget_states()
            self.refresh()
        elif dense == "all_reduce" and len(found.trainers) > 1:
            self._group = found.trainer_group
        found.owners.add(self._owner)

    # What the framework knows

    def _all_parameters(self) -> list[Any]:
        """Return the dense parameters, also those that are frozen."""
        raise NotImplementedError

    def _parameters(self) -> list[Any]:
        """Return the dense parameters that are trained."""
        raise NotImplementedError

    def _vectors(self, name: str, placement: str) -> list[Vector]:
        """Return the vectors of the parameters; the arguments are those of the constructor."""
        raise NotImplementedError

    def _states(self) -> Iterator[tuple[Any, list[str]]]:
        """The dense parameters of which the wrapped optimizer has states, and what it calls them.

        Those that it begins with do not count.
        """
        raise NotImplementedError

    def _states_for_servers(self) -> dict[int, State | None]:
        """Return what the wrapped optimizer has of each dense parameter that is trained, by id().

        None is what it begins with.

        Raises:
            UnsupportedError: servers have no place for it.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def _taking_state(self, parameter: Any, does: Optimizer) -> Iterator[None]:
        """Have an error of a state that servers do not take say whose it is."""
        try:
            yield
        except UnsupportedError as error:
            raise UnsupportedError(
                f"ps.DistributedOptimizer: the optimizer has {error} of parameter "
                f"{self._called(parameter)} from earlier steps, for which servers have no "
                f"place with {type(does).__name__}: begin with a new optimizer"
            ) from None

    def _check_steps(self, does: Optimizer, states: Sequence[State | None]) -> None:
        """Refuse states of parameters that cannot lie in one vector."""
        steps_of(does, [0 if one is None else one.steps for one in states])

    def _forget_states(self) -> None:
        """Have the wrapped optimizer drop its states of what is on the servers."""
        raise NotImplementedError

    @staticmethod
    def _detached(parameter: Any) -> Any:
        """Return a parameter as a tensor that may be written to."""
        raise NotImplementedError

    def _noted_gradients(self) -> Sequence[tuple[Any, int]] | None:
        """Return the gradients that there are, for :class:`Owner`; without any parameter, None."""
        raise NotImplementedError

    @staticmethod
    def _is_sparse(gradient: Any) -> bool:
        raise NotImplementedError

    @staticmethod
    def _zeros_like(parameter: Any) -> Any:
        raise NotImplementedError

    @staticmethod
    def _flags(values: list[float], parameters: list[Any]) -> Any:
        """Return a tensor of float32 where the gradients of these parameters are."""
        raise NotImplementedError

    # A step

    def _step_of_all(self) -> None:
        """Push what was noted, and update the dense parameters.

        If this trainer finds a mistake of its own, no trainer makes the step: the others get
        RefusedError. After any other error no trainer averages dense gradients in this step.
        """
        try:
            self._take_step()
        finally:
            self._owner.settle()

    def _take_step(self) -> None:
        try:
            self._check()
            self._note()
            stepping.step_of(self._owner, average=self._average)
            averaged = self._gradients() if self._group is not None else None
        except BaseException as error:
            if isinstance(error, (ArgumentError, DtypeError, UnsupportedError)):
                stepping.refuse(self._owner)
            if self._group is not None:  # the others are, or will be, in its all_reduce
                with contextlib.suppress(Error):
                    _native.core().refuse(Op.ALL_REDUCE_COALESCED, self._group._id, str(error))
            raise
        if self._group is not None and averaged is not None:
            self._average_gradients(self._group, *averaged)
        if self._served:
            self.refresh()
        else:
            self.optim.step()

    def _note(self) -> None:
        """Note the gradients of what is on the servers, with the learning rates of this step."""
        for vector in self._on_servers:
            vector.note()

    def _check(self) -> None:
        """Refuse what this optimizer cannot do, before anything has changed."""
        if self._group is None and not self._on_servers:
            return
        for one in self._parameters():
            if one.grad is not None and self._is_sparse(one.grad):
                raise UnsupportedError(
                    f"ps.DistributedOptimizer: dense parameter {self._called(one)} has a sparse "
                    "gradient: make its layer one of paddlempi.ps (ps.Embedding, "
                    "ps.SparseEmbedding), or its gradient dense"
                )
        if not self._on_servers:
            return
        if self._places != [id(p) for p in self._parameters()]:
            raise UnsupportedError(
                "ps.DistributedOptimizer: with dense='server' the parameters that are trained are "
                "those of the beginning, and some were frozen or unfrozen since: freeze them "
                "before it is made, or take dense='all_reduce'"
            )
        self._check_states()
        self._check_values()

    def _check_states(self) -> None:
        """Refuse states that the wrapped optimizer has got: the servers have their own."""
        for parameter, names in self._states():
            raise UnsupportedError(
                f"ps.DistributedOptimizer: the wrapped optimizer has got {', '.join(names)} of "
                f"parameter {self._called(parameter)}, and the states are on the servers: load "
                "them by this object, and not by the optimizer that it wraps"
            )

    def _check_values(self) -> None:
        """Refuse parameters that were changed by something else than the servers."""
        for vector in self._on_servers:
            changed = vector.changed()
            if changed is not None:
                raise UnsupportedError(
                    f"ps.DistributedOptimizer: parameter {self._called(changed)} was changed since "
                    "it came from the servers, which have its value (load_state_dict, an operation "
                    "in place, an average that was swapped in): call publish() of this optimizer "
                    "on all trainers to set that of the servers (of a plan: set_state_dict), or "
                    "refresh() to take theirs"
                )

    def _called(self, parameter: Any) -> str:
        """What a text calls a dense parameter."""
        places = {id(p): place for place, p in enumerate(self._parameters())}
        return f"{places[id(parameter)]}, of shape {tuple(parameter.shape)},"

    def _gradients(self) -> tuple[Any, list[tuple[Any, Any]]]:
        """Return what is averaged.

        Returns:
            A tensor with 1 for each parameter that this trainer has used, else 0; and the
            parameters with their gradients, zeros for those without one.
        """
        parameters = self._parameters()
        flags = self._flags([float(p.grad is not None) for p in parameters], parameters)
        return flags, [(p, self._zeros_like(p) if p.grad is None else p.grad) for p in parameters]

    @staticmethod
    def _average_gradients(group: ProcessGroup, flags: Any, pairs: list[tuple[Any, Any]]) -> None:
        """Average over the trainers. A parameter that no trainer has used keeps no gradient."""
        by_dtype: dict[Any, list[Any]] = {flags.dtype: [flags]}
        for _, gradient in pairs:
            by_dtype.setdefault(gradient.dtype, []).append(gradient)
        for tensors in by_dtype.values():
            all_reduce_coalesced(tensors, ReduceOp.AVG, group)
        for (parameter, gradient), share in zip(pairs, flags.tolist(), strict=True):
            if share and parameter.grad is None:
                parameter.grad = gradient

    def refresh(self) -> None:
        """With ``dense="server"``, set the parameters to those on the servers.

        ``step`` does so. A program does it after ``ps.restore``.
        """
        for vector in self._on_servers:
            vector.shown = False
        pull([vector.blocks for vector in self._on_servers])
        for vector in self._on_servers:
            vector.written()

    def _on_server(self) -> dict[int, Optimizer]:
        """What servers do for each parameter that is there, by id()."""
        vectors = self._on_servers
        return {id(p): one.blocks.table.optimizer for one in vectors for p in one.parameters()}

    def _read_states(self) -> dict[int, State]:
        """Return what the servers have of each parameter, by id()."""
        session.flush()
        return {id(p): one for vector in self._on_servers for p, one in vector.states()}

    def _write_states(self, states: Mapping[int, State]) -> None:
        """Set what the servers have of some parameters, by id(). One trainer calls it."""
        for vector in self._on_servers:
            if any(id(p) in states for p in vector.parameters()):
                vector.set_states(states)

    def _set_states(self, states: Mapping[int, State]) -> None:
        """Set what the servers have of all parameters to that of the first trainer.

        All trainers call it. What they have pushed before is applied before.
        """
        session.barrier("optimizer state")
        if is_writer("ps.DistributedOptimizer"):
            self._write_states(states)
        session.barrier("optimizer state")

    def publish(self) -> None:
        """With ``dense="server"``, set the parameters on the servers to this program's of now.

        All trainers call it, with the same model; the values of the first one count. What trainers
        have pushed before is applied before. States of the servers' optimizer stay.
        """
        if self._served:
            session.barrier("DistributedOptimizer.publish")
            for vector in self._on_servers:
                vector.taken()
            spread([vector.blocks for vector in self._on_servers])
            self.refresh()

    def __getattr__(self, name: str) -> Any:
        if name == "optim":  # not made yet
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optim!r})"


class Access(NamedTuple):
    """How the parameters of a framework are read and written."""

    read: Callable[[Any], Any]
    """Returns a parameter or a gradient as a NumPy array of float32, [elements]."""
    write: Callable[[Any, Any], None]
    """Sets a parameter to a NumPy array of float32, [elements]."""
    same: Callable[[Any, Any], bool]
    """Whether a parameter is what ``write`` makes of such an array."""


class Vector:
    """Parameters on the servers, one behind the other in one vector.

    Args:
        name: the name of the vector.
        parameters: at least one, of at least one element.
        optimizer: returns what the servers do. Later only its learning rate may be another one.
        placement: how its blocks are dealt to servers; see :class:`Blocks`.
        access: how parameters are read and written.

    Attributes:
        shown: whether the parameters were set to what ``blocks`` has. Not after a pull that failed.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[Any],
        optimizer: Callable[[], Optimizer],
        placement: str,
        access: Access,
    ) -> None:
        self._optimizer, self._access = optimizer, access
        shapes = [[int(n) for n in parameter.shape] for parameter in parameters]
        sizes = [math.prod(shape) for shape in shapes]
        ends = list(accumulate(sizes))
        places = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self._places = list(zip(parameters, places, strict=True))
        self.blocks = Blocks(name, ends[-1], optimizer(), placement, shapes)
        self.shown = False
        self.taken()

    def note(self) -> None:
        """Note the gradients for the next step. Without any there is no step of this vector.

        If some parameters of it were not used, their gradients are 0.

        Raises:
            UnsupportedError: a number of the optimizer has changed.
        """
        rate = rate_of_now(self.blocks.table.optimizer, self._optimizer())
        if all(parameter.grad is None for parameter, _ in self._places):
            return
        for parameter, place in self._places:
            gradient = parameter.grad
            self.blocks.gradients[place] = 0 if gradient is None else self._access.read(gradient)
        table, ids, gradients = self.blocks.request()
        table.learning_rate = rate
        stepping.note(table, ids, gradients)

    def parameters(self) -> list[Any]:
        """The parameters, in their order in the vector."""
        return [parameter for parameter, _ in self._places]

    def states(self) -> Iterator[tuple[Any, State]]:
        """What the servers have of each parameter, with slots of float32, [elements]."""
        found = read_blocks(self.blocks, self._places[-1][1].stop)
        for parameter, place in self._places:
            yield parameter, State(found.steps, {n: one[place] for n, one in found.slots.items()})

    def set_states(self, of: Mapping[int, State]) -> None:
        """Set what the servers have. Parameters without a state have what they begin with.

        Args:
            of: states by the id() of parameters.
        """
        here = [(place, of[id(p)]) for p, place in self._places if id(p) in of]
        steps = steps_of(self.blocks.table.optimizer, (one.steps for _, one in here))
        read = self._access.read
        parts = [(place, {n: read(v) for n, v in one.slots.items()}) for place, one in here]
        write_blocks(self.blocks, parts, steps)

    def changed(self) -> Any:
        """Return a parameter that was changed since it was set, or None."""
        if not self.shown:
            return None
        values, same = self.blocks.values, self._access.same
        return next((p for p, place in self._places if not same(p, values[place])), None)

    def taken(self) -> None:
        """Set what is to be written to the servers to the parameters."""
        for parameter, place in self._places:
            self.blocks.values[place] = self._access.read(parameter)

    def written(self) -> None:
        """Set the parameters to those that were pulled."""
        for parameter, place in self._places:
            self._access.write(parameter, self.blocks.values[place])
        self.shown = True


def rate_of_now(was: Optimizer, now: Optimizer) -> float:
    """Return the learning rate of an optimizer whose other numbers are those of the servers.

    Raises:
        UnsupportedError: they are not.
    """
    if replace(was, learning_rate=now.learning_rate) != now:
        raise UnsupportedError(
            f"ps.DistributedOptimizer: the servers have {was}, and the optimizer is {now} now: "
            "on servers only the learning rate may change (OneCycleLR and CyclicLR: "
            "cycle_momentum=False)"
        )
    return now.learning_rate


def _names_of(tables: Iterable[RemoteLayer | RemoteTable] | None) -> set[str]:
    """Return the names of tables.

    Raises:
        DtypeError: they are no layers or tables.
    """
    found = set()
    for one in () if tables is None else tables:
        table = getattr(one, "table", one)
        if not isinstance(table, RemoteTable):
            raise DtypeError(
                f"ps.DistributedOptimizer: tables has {one!r:.100}, which is no layer of ps and no "
                "RemoteTable"
            )
        found.add(table.name)
    return found
