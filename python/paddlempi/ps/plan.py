"""What a transpiled training program does where: :func:`transpile` of both fronts makes a Plan.

The names of the operations in a plan are those of Fluid's design for MPI: a trainer ends its step
with ``mpi_send`` of gradients and ``mpi_recv`` of parameters, and a server runs
``mpi_listenandserve``.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from .. import memory
from .._units import amount
from ..errors import ArgumentError, DtypeError
from ..group import DEFAULT_TIMEOUT
from . import clipping, session
from .dense import BLOCK, PLACEMENTS
from .distributed_optimizer import equal
from .layers import RemoteLayer
from .optimizers import Optimizer
from .remote import RemoteTable
from .role_map import RolesArgument

__all__ = ["Placed", "Plan", "transpile"]

_PIECE = 1 << 16  # rows of one request of state_dict


@dataclass(frozen=True)
class Placed:
    """Where a parameter of the single-machine program is.

    Attributes:
        name: its name in the model.
        shape: its shape.
        table: the name of its table on the servers; None: it is frozen, and each trainer has it.
        optimizer: what the servers do; None without a table.
        blocks: how many blocks a dense parameter has; None: it is a table of rows by id.
        first: which of all blocks is its first, if they are dealt in turn; else None.
    """

    name: str
    shape: tuple[int, ...]
    table: str | None = None
    optimizer: Optimizer | None = None
    blocks: int | None = None
    first: int | None = None

    def servers(self, count: int) -> str:
        """Which of ``count`` servers have it."""
        if self.table is None:
            return "-"
        if self.blocks is None or self.first is None:
            return "by hash" if count > 1 else "0"
        owners = sorted({(self.first + k) % count for k in range(min(self.blocks, count))})
        return "all" if len(owners) == count > 1 else ",".join(map(str, owners))

    def memory(self) -> int:
        """How many bytes rows and states take, when each row of a table is there.

        What ``ps.stats`` and ``memory_limit`` count is an eighth to a third more, with indexes, and
        some 13 KiB at least for each table on each server.
        """
        if self.optimizer is None:
            return 0
        if self.blocks is None:
            rows, dim = self.shape
        else:
            rows, dim = self.blocks, min(math.prod(self.shape), BLOCK)
        return rows * 4 * (dim + self.optimizer.state_width(dim))

    def update(self) -> str:
        """What its optimizer does."""
        return f"{type(self.optimizer).__name__.lower()}({self.table})"

    def traffic(self) -> int:
        """How many bytes of a dense parameter a trainer sends, and receives, in a step."""
        return 4 * math.prod(self.shape) if self.blocks is not None else 0


class Plan:
    """A single-machine training program, spread over trainers and servers. See :func:`transpile`.

    ``print(plan)`` shows what is where.

    Attributes:
        model: the model to train with: embeddings with sparse gradients are layers of
            ``paddlempi.ps``, all else is as it was.
        optimizer: the optimizer to train with, or a list of them if a list was given. Its ``step``
            is one step of all trainers; schedules of the learning rate work on it, and on the one
            that was given.
        parameters: where each parameter is, in the order of the model.
        layers: the layers that stand for embeddings, by the names of the embeddings' weights.
        places: the names of the layers' weights in a state dict, each with the name in ``layers``:
            a module that is at two places has two names.
        order: the names of the single-machine model's state dict.
        frozen: returns the names of what each trainer has by itself, with tensors to write to.
    """

    model: Any
    optimizer: Any
    parameters: list[Placed]
    layers: Mapping[str, RemoteLayer]
    places: Mapping[str, str]
    order: list[str]
    frozen: Callable[[], list[tuple[str, Any]]]

    def trainer_program(self) -> list[str]:
        """The operations of a trainer's step, one in each line, with the design's names."""
        sent = [one.table for one in self.parameters if one.table is not None]
        rows = [one.table for one in self.parameters if one.table and one.blocks is None]
        dense = [one.table for one in self.parameters if one.blocks is not None]
        received = [f"mpi_recv({', '.join(map(str, dense))})"] if dense else []
        every = session.current("ps.Plan").geo_step
        if every is not None:
            return [
                *(f"mpi_recv({name}, ids of the batch that are not in the copy)" for name in rows),
                "forward, backward",
                *(f"{one.update()} of the copy" for one in self.parameters if one.table),
                f"every {every} steps: mpi_send({', '.join(f'{name}@DELTA' for name in sent)})",
                *received,
            ]
        return [
            *(f"mpi_recv({name}, ids of the batch)" for name in rows),
            "forward, backward",
            f"mpi_send({', '.join(f'{name}@GRAD' for name in sent)})",
            *received,
        ]

    def server_program(self) -> list[str]:
        """The operations of a server, one in each line, with the design's names."""
        adds = session.current("ps.Plan").geo_step
        return [
            "mpi_listenandserve(",
            *(
                f"    {one.update() if adds is None else f'add({one.table})'}"
                for one in self.parameters
                if one.table is not None
            ),
            ")",
        ]

    def state_dict(self, optimizer: bool = False) -> dict[str, Any]:
        """Return the state dict of the single-machine model: names, shapes and values of now.

        Parameters are those on the servers, after all that this trainer has pushed; the model gets
        them too. The rows of embeddings are pulled, all of them: they must fit in the memory
        of this trainer, who may call it alone. For models that do not, see
        :func:`paddlempi.ps.export`.

        Args:
            optimizer: whether the state of the optimizer is wanted, too. Then the result has two
                names: ``"model"``, and ``"optimizer"`` with what ``state_dict()`` of the optimizer
                gives (a list of them for a list), which that of the single-machine program loads.

        Raises:
            UnsupportedError: a parameter of the model was changed by something else than the
                servers: :meth:`set_state_dict` has them take it.
            Error: as :func:`paddlempi.ps.flush` and :meth:`paddlempi.ps.RemoteTable.pull`.
        """
        for one in self._optimizers():
            one._check_values()
        session.flush()
        for one in self._optimizers():
            one.refresh()
        state = dict(self.model.state_dict())
        rows = {name: self._tensor_of_rows(layer) for name, layer in self.layers.items()}
        state |= {place: rows[name] for place, name in self.places.items()}
        model = {name: state[name] for name in self.order if name in state}
        if not optimizer:
            return model
        states = [one.state_dict() for one in self._optimizers()]
        return {"model": model, "optimizer": states if self._listed() else states[0]}

    def set_state_dict(self, state: Mapping[str, Any], optimizer: bool = False) -> None:
        """Set parameters and buffers: on the servers, and on all trainers.

        All trainers call it. The values are those of the first one, and the names are the same on
        all. What trainers have pushed before is applied before.

        Args:
            state: tensors of the framework, or arrays of NumPy, by the names of
                :meth:`state_dict`, or of some of them.
            optimizer: whether it is what ``state_dict(optimizer=True)`` returned, and the optimizer
                is set, too. Else the states of the optimizer stay.

        Raises:
            ArgumentError: a name or a shape is not that of the model, the row of a padding is not
                of zeros, or the state is not that of the optimizer.
            UnsupportedError: servers have no place for a state of the optimizer.
            Error: as :meth:`paddlempi.ps.RemoteTable.write`.
        """
        if not optimizer:
            self._set_model(state, self._checked(state))
            return
        missing = [name for name in ("model", "optimizer") if name not in state]
        if missing:
            raise ArgumentError(
                f"plan.set_state_dict: the state has no {missing[0]!r}: optimizer=True takes what "
                "state_dict(optimizer=True) returns"
            )
        given, made = state["optimizer"], self._optimizers()
        states = list(given) if self._listed() else [given]
        if len(states) != len(made):
            raise ArgumentError(
                f"plan.set_state_dict: the state has {len(states)} optimizers, and the plan "
                f"{len(made)}"
            )
        rows = self._checked(state["model"])
        for one, its in zip(made, states, strict=True):
            self._load_optimizer(one, its)
        self._set_model(state["model"], rows)

    def _checked(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Look whether a state is that of the model, and return the rows of embeddings in it."""
        there = self.model.state_dict()
        shapes = {name: tuple(one.shape) for name, one in there.items() if hasattr(one, "shape")}
        for place, name in self.places.items():
            layer = self.layers[name]
            shapes[place] = (layer.num_embeddings or 0, layer.embedding_dim)
        for name, value in state.items():
            if name not in self.order:
                raise ArgumentError(f"plan.set_state_dict: the model has no {name!r}")
            shape = tuple(getattr(value, "shape", ()))
            if name in shapes and shape != shapes[name]:
                raise ArgumentError(
                    f"plan.set_state_dict: {name!r} has the shape {shape}; that of the model has "
                    f"{shapes[name]}"
                )
        rows = {
            self.places[n]: self._rows_of(value) for n, value in state.items() if n in self.places
        }
        for name, given in rows.items():
            padding = self.layers[name].padding_idx
            if padding is not None and bool((given[padding] != 0).any()):
                raise ArgumentError(
                    f"plan.set_state_dict: {name!r}: the row of its padding {padding} is not of "
                    "zeros"
                )
        return rows

    def _set_model(self, state: Mapping[str, Any], rows: Mapping[str, Any]) -> None:
        """Set parameters and buffers, and rows by the names in ``layers``."""
        session.barrier("plan.set_state_dict")
        for name, given in rows.items():
            self.layers[name].set_rows(given)
        self._load({name: value for name, value in state.items() if name not in self.places})
        for one in self._optimizers():
            one.publish()
        equal(tensor for _, tensor in self.frozen())

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, optimizer: Any = None
    ) -> float:
        """Scale all gradients of the next step so that their norm together is at most ``max_norm``.

        As torch's function of this name in one process, between backward and ``step``. In sync mode
        all trainers call it: the norm is that of the sum of their gradients, or of the mean
        (``average``), with those of rows. In the other modes, where each trainer's gradients are a
        step, it is that of this trainer's.

        All trainers get the gradients of all, so it costs about what the push of a step does.

        Args:
            max_norm: at least 0.
            norm_type: the order of the norm, above 0; ``math.inf``: the largest element.
            optimizer: one of the plan's, whose gradients alone are clipped; None: all.

        Returns:
            The norm before.

        Raises:
            ArgumentError: a number is below that, or ``optimizer`` is none of the plan.
            Error: as :func:`paddlempi.all_reduce`.
        """
        what = "plan.clip_grad_norm_"
        return clipping.clip_norm(self._those(optimizer, what), max_norm, norm_type, what)

    def clip_grad_value_(self, clip_value: float, *, optimizer: Any = None) -> None:
        """Clip each element of the gradients of the next step to ``clip_value`` from 0.

        As :meth:`clip_grad_norm_`: in sync mode all trainers call it, and the sum or mean of their
        gradients is clipped. Then one trainer has what is pushed, and the others have zeros.

        Args:
            clip_value: a finite number of at least 0.
            optimizer: as there.
        """
        what = "plan.clip_grad_value_"
        clipping.clip_value(self._those(optimizer, what), clip_value, what)

    def _those(self, optimizer: Any, what: str) -> list[Any]:
        if optimizer is None:
            return self._optimizers()
        if not any(one is optimizer for one in self._optimizers()):
            raise ArgumentError(f"{what}: optimizer={optimizer!r:.100} is none of this plan")
        return [optimizer]

    def _listed(self) -> bool:
        return isinstance(self.optimizer, list)

    def _optimizers(self) -> list[Any]:
        return self.optimizer if self._listed() else [self.optimizer]

    @staticmethod
    def _load_optimizer(optimizer: Any, state: Any) -> None:
        """Set the state of an optimizer. All trainers call it."""
        raise NotImplementedError

    def _load(self, state: dict[str, Any]) -> None:
        """Set what the model has itself to values by their names."""
        raise NotImplementedError

    @staticmethod
    def _rows_of(value: Any) -> Any:
        """Return the weight of an embedding as a tensor of float32 in host memory."""
        raise NotImplementedError

    def _tensor_of_rows(self, layer: RemoteLayer) -> Any:
        """Return the weight of an embedding, as a new tensor of the framework."""
        raise NotImplementedError

    @staticmethod
    def _rows(table: RemoteTable, count: int) -> Iterator[tuple[int, Any]]:
        """The first rows of a table on the servers, in pieces: the first id, and the rows."""
        for begin in range(0, count, _PIECE):
            ids = memory.empty(min(_PIECE, count - begin), "int64")
            ids[:] = range(begin, begin + len(ids))
            yield begin, table.pull(ids, missing="initial")

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        found = session.current("ps.Plan")
        count = len(session.pservers())
        yield (
            f"{len(found.trainers)} trainers, {count} servers, mode {found.mode}: "
            f"{len(self.parameters)} parameters"
        )
        head = ("parameter", "shape", "on the servers", "servers", "optimizer", "memory", "a step")
        rows = [head, *(_row(one, count) for one in self.parameters)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            padded = (word.ljust(width) for word, width in zip(row, widths, strict=True))
            yield "  ".join(padded).rstrip()
        dense = sum(one.traffic() for one in self.parameters)
        most = max(self._memory_of(server, count) for server in range(count))
        yield (
            f"a trainer sends and receives {amount(dense)} each of dense parameters in "
            f"{'a step' if found.geo_step is None else 'an exchange'}; "
            f"a server has {amount(most)} at most, when all rows are there"
        )
        yield "trainer: " + "; ".join(self.trainer_program())
        yield "server: " + " ".join(line.strip() for line in self.server_program())

    def _memory_of(self, server: int, count: int) -> int:
        total = 0
        for one in self.parameters:
            if one.blocks is None or one.first is None:
                total += -(-one.memory() // count)
            else:
                mine = len(range((server - one.first) % count, one.blocks, count))
                total += one.memory() // one.blocks * mine
        return total


def _row(one: Placed, count: int) -> tuple[str, ...]:
    """What a plan shows of a parameter."""
    if one.optimizer is None:
        kind, moved = "no: frozen", "-"
    elif one.blocks is None:
        kind, moved = "rows by id", "rows of a batch"
    else:
        kind = f"{one.blocks} block{'s' if one.blocks > 1 else ''}"
        moved = f"2 x {amount(one.traffic())}"
    shape = "x".join(map(str, one.shape)) or "1"
    does = "-" if one.optimizer is None else type(one.optimizer).__name__
    return one.name, shape, kind, one.servers(count), does, amount(one.memory()), moved


def transpile(
    model: Any,
    optimizer: Any = None,
    roles: RolesArgument = None,
    *,
    mode: str = "sync",
    staleness: int = 3,
    send_queue: int = 20,
    merge: int = 20,
    merge_by: str = "sum",
    geo_step: int = 100,
    compensation: float = 0.04,
    mean_square: float | None = None,
    backup_rows: int = 1 << 20,
    timeout: timedelta | float = DEFAULT_TIMEOUT,
    tls: Any = None,
    average: bool = True,
    placement: str = "round_robin",
    name: str = "plan",
) -> Plan:
    """Spread a single-machine training program over trainers and servers.

    All ranks call it in the same program, and train with what it returns::

        model, optimizer = Model(), torch.optim.Adagrad(...)
        plan = ps.transpile(model, optimizer, "trainer:2,pserver:2")
        model, optimizer = plan.model, plan.optimizer

    On a rank that does not train it does not return: it serves until all trainers have completed,
    and then ends the process with status 0. It calls :func:`init` if the program has not.

    * Embeddings with sparse gradients (torch's ``sparse=True`` of ``Embedding`` and
      ``EmbeddingBag``, Paddle's ``sparse=True`` of ``Embedding``) become tables, whose rows are
      dealt to the servers by a hash of the id. They begin with the rows of the first trainer.
    * Each other parameter that is trained becomes blocks of 8192 elements, which are dealt to the
      servers; a smaller one is one block. All trainers begin with the values of the first; buffers
      and frozen parameters too, but these are each trainer's afterwards.
    * The optimizer runs on the servers, with the numbers of its groups. Learning rates may change
      in each step; other numbers may not.

    In sync mode a step is that of one process which runs the batches of the trainers one after
    another and adds their gradients in the order of ranks, divided by the number of trainers
    (``average=False``: not divided).

    Args:
        model: a ``torch.nn.Module`` or ``paddle.nn.Layer``. Its embeddings are replaced in it.
            Or a static program of Paddle's legacy IR, after ``minimize``: both of its programs are
            rewritten, and the plan is a ``paddlempi.paddle.StaticPlan``.
        optimizer: the optimizer of all its parameters, or a list of optimizers. For a static
            program, whose optimizer is in it, its startup program; None, or the optimizer: that is
            Paddle's default one.
        roles, mode, staleness, send_queue, merge, merge_by, geo_step, compensation, mean_square,
            backup_rows, timeout, tls: of :func:`init`, if it was not called.
        average: whether gradients are divided by the number of trainers in sync mode.
        placement: how blocks are dealt to servers: "round_robin" or "hash_name".
        name: what the names of its tables begin with: another one for a second plan of a program.

    Raises:
        ArgumentError: a trained parameter has no optimizer or two, an optimizer has one that is not
            the model's, or ``placement`` is another word.
        DtypeError: ``model`` or ``optimizer`` is of another type.
        UnsupportedError: servers do not have the optimizer, or a layer wants what tables do not
            have: it is named.
        MismatchError: the trainers' models or optimizers differ.
        Error: what :func:`init` raises.
    """
    for base in type(model).__mro__:
        framework = base.__module__.partition(".")[0]
        if framework in ("torch", "paddle"):
            front = importlib.import_module(f"..{framework}.transpiler", __package__)
            break
    else:
        raise DtypeError(
            f"ps.transpile: a {type(model).__qualname__} is no torch.nn.Module, no paddle.nn.Layer "
            "and no static program of Paddle"
        )
    if placement not in PLACEMENTS:
        raise ArgumentError(
            f"ps.transpile: placement={placement!r} is none of {', '.join(map(repr, PLACEMENTS))}"
        )
    if not isinstance(name, str) or not name:
        raise DtypeError(f"ps.transpile: name={name!r} is no text")
    # Its errors come before ranks talk to each other.
    transpiler = front.transpiler(model, optimizer)
    if not session.is_begun():
        session.init(
            roles,
            mode=mode,
            staleness=staleness,
            send_queue=send_queue,
            merge=merge,
            merge_by=merge_by,
            geo_step=geo_step,
            compensation=compensation,
            mean_square=mean_square,
            backup_rows=backup_rows,
            timeout=timeout,
            tls=tls,
        )
    elif roles is not None:
        raise ArgumentError("ps.transpile: roles were given to ps.init, which was called before")
    if not session.is_trainer():
        session.serve()
        session.shutdown()
        sys.exit(0)
    plan: Plan = transpiler.plan(average, placement, name)
    return plan
