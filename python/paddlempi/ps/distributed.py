"""One step of all trainers: what ``DistributedOptimizer`` of torch and of Paddle have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NoReturn

from .._ops import Op
from ..arguments import refuse
from ..collectives import all_reduce_coalesced, broadcast
from ..errors import ArgumentError, DtypeError, Error, UnsupportedError
from ..group import ProcessGroup
from ..reduce_op import ReduceOp
from . import session, stepping
from .dense import PLACEMENTS, Blocks, pull, spread
from .optimizers import Optimizer

__all__ = ["CommonOptimizer", "Vector", "equal"]


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
    _on_servers: list[Vector]
    _places: list[int]  # id() of the parameters that are on the servers

    def _attach(self, optimizer: Any, dense: str, average: bool, name: str, placement: str) -> None:
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
        self._on_servers = []
        if dense != "local":
            on_servers = {id(p) for p in self._parameters()} if dense == "server" else set()
            rest = [p for p in self._all_parameters() if id(p) not in on_servers]  # frozen ones too
            equal(map(self._detached, rest))
        if dense == "server":
            if name in found.names:
                raise ArgumentError(
                    f"ps.DistributedOptimizer: name={name!r} is that of an earlier optimizer with "
                    "dense='server', whose parameters and states are on the servers: give this one "
                    "another name, the same on all trainers"
                )
            self._on_servers = self._vectors(name, placement)
            self._places = [id(parameter) for parameter in self._parameters()]
            found.names.add(name)
            spread([vector.blocks for vector in self._on_servers])
            self.refresh()
        elif dense == "all_reduce" and len(found.trainers) > 1:
            self._group = found.trainer_group

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

    @staticmethod
    def _detached(parameter: Any) -> Any:
        """Return a parameter as a tensor that may be written to."""
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
        RefusedError.
        """
        try:
            self._check()
            for vector in self._on_servers:
                vector.note()
            stepping.step(average=self._average)
        except (ArgumentError, DtypeError, UnsupportedError) as error:
            self._refuse(error)
        if self._group is not None:
            self._average_gradients(self._group)
        if self._on_servers:
            self.refresh()
        else:
            self.optim.step()

    def _check(self) -> None:
        """Refuse what this optimizer cannot do, before anything has changed."""
        if self._group is None and not self._on_servers:
            return
        if any(p.grad is not None and self._is_sparse(p.grad) for p in self._parameters()):
            raise UnsupportedError(
                "ps.DistributedOptimizer: a dense parameter has a sparse gradient: make its layer "
                "one of paddlempi.ps (ps.Embedding, ps.SparseEmbedding), or its gradient dense"
            )
        if self._on_servers and self._places != [id(p) for p in self._parameters()]:
            raise UnsupportedError(
                "ps.DistributedOptimizer: with dense='server' the parameters that are trained are "
                "those of the beginning, and some were frozen or unfrozen since: freeze them "
                "before it is made, or take dense='all_reduce'"
            )

    def _refuse(self, error: Error) -> NoReturn:
        """Have the other trainers raise RefusedError instead of waiting for this one, and raise."""
        stepping.refuse()
        if session.as_trainer("ps.DistributedOptimizer").mode != "sync" and self._group is not None:
            refuse(Op.ALL_REDUCE_COALESCED, self._group, error)
        raise error

    def _average_gradients(self, group: ProcessGroup) -> None:
        """Average over the trainers. A parameter that no trainer has used keeps no gradient."""
        parameters = self._parameters()
        flags = self._flags([float(p.grad is not None) for p in parameters], parameters)
        by_dtype: dict[Any, list[Any]] = {flags.dtype: [flags]}
        gradients = []
        for parameter in parameters:
            here = self._zeros_like(parameter) if parameter.grad is None else parameter.grad
            gradients.append(here)
            by_dtype.setdefault(here.dtype, []).append(here)
        for tensors in by_dtype.values():
            all_reduce_coalesced(tensors, ReduceOp.AVG, group)
        for parameter, gradient, share in zip(parameters, gradients, flags.tolist(), strict=True):
            if share and parameter.grad is None:
                parameter.grad = gradient

    def refresh(self) -> None:
        """With ``dense="server"``, set the parameters to those on the servers.

        ``step`` does so. A program does it after ``ps.restore``.
        """
        pull([vector.blocks for vector in self._on_servers])
        for vector in self._on_servers:
            vector.written()

    def __getattr__(self, name: str) -> Any:
        if name == "optim":  # not made yet
            raise AttributeError(name)
        return getattr(self.optim, name)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.optim!r})"


class Vector:
    """Parameters on the servers, one behind the other in one vector.

    Args:
        name: the name of the vector.
        parameters: at least one, of at least one element.
        optimizer: returns what the servers do. Later only its learning rate may be another one.
        placement: how its blocks are dealt to servers; see :class:`Blocks`.
        read: returns a parameter or a gradient as a NumPy array of float32, [elements].
        write: sets a parameter to a NumPy array of float32, [elements].
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[Any],
        optimizer: Callable[[], Optimizer],
        placement: str,
        read: Callable[[Any], Any],
        write: Callable[[Any, Any], None],
    ) -> None:
        self._optimizer, self._read, self._write = optimizer, read, write
        sizes = [math.prod(parameter.shape) for parameter in parameters]
        ends = list(accumulate(sizes))
        places = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        self._places = list(zip(parameters, places, strict=True))
        self.blocks = Blocks(name, ends[-1], optimizer(), placement)
        for parameter, place in self._places:
            self.blocks.values[place] = read(parameter)

    def note(self) -> None:
        """Note the gradients for the next step; those of parameters that were not used are 0.

        Raises:
            UnsupportedError: a number of the optimizer has changed.
        """
        was, now = self.blocks.table.optimizer, self._optimizer()
        rate = now.learning_rate
        if replace(was, learning_rate=rate) != now:
            raise UnsupportedError(
                f"ps.DistributedOptimizer: the servers have {was}, and the optimizer is {now} now: "
                "with dense='server' only the learning rate may change (OneCycleLR and CyclicLR: "
                "cycle_momentum=False)"
            )
        for parameter, place in self._places:
            gradient = parameter.grad
            self.blocks.gradients[place] = 0 if gradient is None else self._read(gradient)
        table, ids, gradients = self.blocks.request()
        table.learning_rate = rate
        stepping.note(table, ids, gradients)

    def written(self) -> None:
        """Set the parameters to those that were pulled."""
        for parameter, place in self._places:
            self._write(parameter, self.blocks.values[place])
