"""``ps.transpile`` for Paddle's static programs, which are lists of operators: they are rewritten.

For programs of the legacy IR (``FLAGS_enable_pir_api=0``). Paddle 3.3.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle.base.framework import Program

from .. import ps
from ..errors import ArgumentError, DtypeError, NotInitializedError, UnsupportedError
from ..ps import Placed, Plan, RemoteTable
from ..ps.dense import Blocks, pull, spread
from ..ps.distributed_optimizer import equal
from ..ps.role_map import RolesArgument
from ..ps.session import as_trainer, barrier, flush, is_begun
from ..ps.stepping import refuse
from .static_operators import (
    FORWARD,
    OPTIMIZE,
    TOKEN,
    append,
    array_of,
    check_ir,
    mpi_listenandserve,
    pulled,
    send,
    set_array,
    token_of,
)
from .static_program import Lookup, TrainingProgram, groups_of, lookups_of
from .static_states import OptimizerStates

__all__ = ["DistributeTranspiler", "StaticPlan", "StaticTranspiler"]

_PIECE = 1 << 16  # rows of one request


class StaticPlan(Plan):
    """A static program of one machine, spread over trainers and servers.

    Attributes:
        model: the main program, which has been rewritten: the trainer's program.
        optimizer: the dense parameters on the servers; ``refresh()`` reads them, after a restore.
        startup: the startup program, which has been rewritten, too.
        tables: the tables that stand for embeddings, by the embeddings' names.
        parameters, order: see :class:`paddlempi.ps.Plan`.
    """

    startup: Any
    tables: Mapping[str, RemoteTable]
    optimizer: _OnServers
    _frozen: list[str]
    _shapes: Mapping[str, tuple[int, ...]]
    _states: OptimizerStates

    def adopt(self, program: Any) -> Any:
        """Have another program of the same parameters read the tables; return it.

        Such as one that was cloned for tests before ``minimize``. A clone of the rewritten program
        does so already.

        Raises:
            DtypeError: it is no static program of the legacy IR.
        """
        if not isinstance(program, Program):
            raise DtypeError(f"plan.adopt: a {type(program).__qualname__} is no static program")
        lookups = lookups_of(program, set(self.tables))
        block = program.global_block()
        _rewrite(
            block,
            {one.place for one in lookups},
            {
                group[0].place: partial(_receive_rows, block, group, self.tables, "initial")
                for group in groups_of(block.ops, lookups)
            },
            set(self.tables),
        )
        return program

    def state_dict(self, optimizer: bool = False) -> dict[str, Any]:
        """Return the parameters of the single-machine program, and what it keeps between steps.

        ``set_state_dict`` of that program takes it, for example to save it. Parameters are those on
        the servers, after all that this trainer has pushed; the scope gets the dense ones. The rows
        of tables are pulled, all of them: they must fit in the memory of this trainer, who may
        call it alone.

        Args:
            optimizer: whether the states of the optimizers are wanted, too, by the names of their
                variables in the single-machine program.

        Returns:
            NumPy arrays by name.

        Raises:
            NotInitializedError: the startup program has not run in this scope.
            UnsupportedError: a dense parameter was changed by something else than the servers.
            Error: as :func:`paddlempi.ps.flush` and :meth:`paddlempi.ps.RemoteTable.pull`.
        """
        self.optimizer.check()
        flush()
        self.optimizer.refresh()
        state = {}
        for name in self.order:
            if name in self.tables:
                table, shape = self.tables[name], self._shapes[name]
                rows = np.empty(shape, np.float32)
                for begin, piece in self._rows(table, shape[0]):
                    rows[begin : begin + len(piece)] = piece
                state[name] = rows
            else:
                state[name] = np.array(_tensor(name))
        if optimizer:
            state |= self._states.read()
        return state

    def set_state_dict(self, state: Mapping[str, Any], optimizer: bool = False) -> None:
        """Set parameters on the servers and on all trainers. The startup program has run.

        All trainers call it. The values are those of the first one, and the names are the same on
        all.

        Args:
            state: what ``np.asarray`` takes, by names of the single-machine program.
            optimizer: whether it has the states of the optimizers, too, all of them. Else these
                stay.

        Raises:
            ArgumentError: a name or a shape is not that of a parameter, or a state of an optimizer
                is missing.
            UnsupportedError: a state of an optimizer is of another shape.
            NotInitializedError: the startup program has not run in this scope.
        """
        values = {name: np.asarray(given) for name, given in state.items()}
        states = self._states.take(values) if optimizer else {}
        for name, array in values.items():
            if name not in self.order or array.shape != self._shapes[name]:
                raise ArgumentError(
                    f"plan.set_state_dict: {name!r} of shape {array.shape} is none of the program, "
                    "or of another shape"
                )
        barrier("plan.set_state_dict")  # what was pushed before is applied before
        for name in [name for name in self._frozen if name in values]:
            set_array(_tensor(name), values[name].reshape(-1))
        self._states.write(states)  # all wait for the first trainer in what follows
        self.optimizer.begin(values)
        self.optimizer.share([_tensor(name) for name in self._frozen])
        self.optimizer.refresh()


class _OnServers:
    """The parameters on the servers: what stands for the optimizer of a program.

    Args:
        dense: the vectors of dense parameters, by the names of these.
        tables: the tables, by the names of the embeddings.
    """

    def __init__(self, dense: Mapping[str, Blocks], tables: Mapping[str, RemoteTable]) -> None:
        self._dense, self._tables = dense, tables
        self._shown = False  # whether the executor's tensors were set to what was pulled last

    def begin(self, values: Mapping[str, Any]) -> None:
        """Set parameters to values of the first trainer. All call it, with the same names.

        Args:
            values: arrays of float32 by name, of any shape.
        """
        vectors = {name: one for name, one in self._dense.items() if name in values}
        found = as_trainer("mpi_send")
        if found.rank == found.trainers[0]:
            for name, vector in vectors.items():
                vector.values[: values[name].size] = values[name].reshape(-1)
            for name, table in self._tables.items():
                rows = values[name].reshape(-1, table.dim) if name in values else ()
                for begin in range(0, len(rows), _PIECE):
                    ids = np.arange(begin, min(begin + _PIECE, len(rows)))
                    table.write(ids, np.ascontiguousarray(rows[begin : begin + len(ids)], "f4"))
        spread(list(vectors.values()))  # all wait for the first trainer here

    @staticmethod
    def share(tensors: Sequence[Any]) -> None:
        """Set tensors of the executor to those of the first trainer. All trainers call it."""
        arrays = [np.array(tensor) for tensor in tensors]
        equal(arrays)
        for tensor, array in zip(tensors, arrays, strict=True):
            set_array(tensor, array.reshape(-1))

    def receive(self, tensors: Sequence[Any]) -> None:
        """Set the dense parameters, as tensors of the executor, to those on the servers."""
        self._shown = False
        pull(list(self._dense.values()))
        for tensor, vector in zip(tensors, self._dense.values(), strict=True):
            set_array(tensor, vector.values[: math.prod(tensor.shape())])
        self._shown = True

    def check(self, tensors: Sequence[Any] | None = None) -> None:
        """Refuse dense parameters that something else than the servers has changed.

        Args:
            tensors: they, as tensors of the executor. None: those of the current scope.

        Raises:
            UnsupportedError: one has another value than the servers.
        """
        if tensors is None:
            tensors = [_tensor(name) for name in self._dense]
        for tensor, (name, vector) in zip(tensors, self._dense.items(), strict=True):
            here = array_of(tensor)
            if self._shown and not np.array_equal(here, vector.values[: here.size], equal_nan=True):
                raise UnsupportedError(
                    f"parameter {name!r} was changed since it came from the servers, which have "
                    "its value: call plan.set_state_dict() on all trainers to set that of the "
                    "servers, or plan.optimizer.refresh() to take theirs"
                )

    def refresh(self) -> None:
        """Set the dense parameters to those on the servers, such as after ``ps.restore``.

        Raises:
            NotInitializedError: the startup program has not run in this scope.
        """
        self.receive([_tensor(name) for name in self._dense])


class StaticTranspiler:
    """A main program and its startup program, on the way to a plan.

    Args:
        program, startup: as :func:`paddlempi.ps.transpile` is given them.

    Raises:
        ArgumentError, DtypeError, UnsupportedError: what this rank can see alone. Nothing has
            changed.
    """

    def __init__(self, program: Any, startup: Any) -> None:
        check_ir("ps.transpile", program)
        if startup is None or isinstance(startup, paddle.optimizer.Optimizer):
            startup = paddle.static.default_startup_program()
        if not isinstance(startup, Program):
            raise DtypeError(
                f"ps.transpile: a {type(startup).__qualname__} is no startup program, which is the "
                "second argument for a static program: its optimizer is in the program"
            )
        self._read = TrainingProgram(program, startup)

    def described(self, prefix: str) -> list[str]:
        """Return what servers do, as a text for each parameter."""
        return [
            f"{type(one.optimizer).__name__.lower()}({prefix}.{one.parameter})"
            for one in self._read.updates
        ]

    def plan(self, average: bool, placement: str, prefix: str) -> StaticPlan:
        """Make the plan. The arguments are those of :func:`paddlempi.ps.transpile`."""
        read = self._read
        found = as_trainer("ps.transpile")
        if prefix in found.names:
            raise ArgumentError(
                f"ps.transpile: name={prefix!r} is that of an earlier plan: give this one another "
                "name, the same on all trainers"
            )
        found.names.add(prefix)
        tables: dict[str, RemoteTable] = {}
        dense: dict[str, Blocks] = {}
        placed = {name: Placed(name, shape) for name, shape in read.shapes.items()}
        for update in read.updates:
            name, shape, does = update.parameter, read.shapes[update.parameter], update.optimizer
            own_name = f"{prefix}.{name}"
            if name in read.tables:
                tables[name] = RemoteTable(own_name, shape[1], does, num_ids=shape[0])
                placed[name] = Placed(name, shape, own_name, does)
            else:
                vector = dense[name] = Blocks(own_name, math.prod(shape), does, placement, [shape])
                placed[name] = Placed(name, shape, own_name, does, vector.count, vector.first)
        plan = StaticPlan()
        plan.model, plan.startup, plan.layers, plan.places = read.program, read.startup, {}, {}
        plan.tables, plan.parameters, plan.order = tables, list(placed.values()), list(placed)
        plan.optimizer = _OnServers(dense, tables)
        plan._frozen, plan._shapes = read.frozen, read.shapes
        plan._states = OptimizerStates(read.updates, read.shapes, dense, tables)
        plan.frozen = lambda: [(name, _tensor(name)) for name in read.frozen]
        _rewrite_startup(read, plan.optimizer, dense, tables)
        _rewrite_main(read, plan.optimizer, dense, tables, average)
        return plan


def _rewrite_startup(
    read: TrainingProgram,
    servers: _OnServers,
    dense: Mapping[str, Blocks],
    tables: Mapping[str, RemoteTable],
) -> None:
    """Have the startup program end with the values of the first trainer, on all of them."""
    block = read.startup.global_block()
    names = [*dense, *tables]

    def give(*tensors: Any) -> list[Any]:
        servers.begin({name: array_of(one) for name, one in zip(names, tensors, strict=True)})
        # A trainer does not keep the rows.
        return [TOKEN, *(np.zeros((0, table.dim), np.float32) for table in tables.values())]

    def take(_: Any, *tensors: Any) -> Sequence[Any]:
        servers.receive(tensors[: len(dense)])
        servers.share(tensors[len(dense) :])
        return tensors

    def insert(at: int) -> None:
        token = token_of(block, "mpi_send")
        reads, rows = [block.var(name) for name in names], [block.var(name) for name in tables]
        append(block, "mpi_send", give, reads, [token, *rows], FORWARD, names, at)
        taken = [block.var(name) for name in (*dense, *read.frozen)]
        if taken:
            append(block, "mpi_recv", take, [token, *taken], taken, FORWARD, list(dense), at + 1)

    removed = {
        place
        for place, op in enumerate(block.ops)
        if op.output_arg_names and read.states.issuperset(op.output_arg_names)
    }
    _rewrite(block, removed, {len(block.ops): insert}, read.states)


def _rewrite_main(
    read: TrainingProgram,
    servers: _OnServers,
    dense: Mapping[str, Blocks],
    tables: Mapping[str, RemoteTable],
    average: bool,
) -> None:
    """Take lookups of tables and updates out of the main program, and put operators in."""
    block = read.program.global_block()
    lookups = lookups_of(read.program, set(tables))
    groups = groups_of(read.operators, lookups)
    rates = sorted({one.rate for one in read.updates})
    gradients = [one.gradient for one in read.dense]
    sparse = [one for name in tables for one in read.tables[name].gradients]
    rated = [
        (tables[name] if name in tables else dense[name].table, rates.index(one.rate))
        for one in read.updates
        for name in [one.parameter]
    ]

    def push(*tensors: Any) -> Sequence[Any]:
        end = len(tensors) - len(dense)
        try:
            servers.check(tensors[end:])
        except UnsupportedError:
            refuse()
            raise
        given = iter([array_of(tensor) for tensor in tensors[len(groups) : end]])
        now = [float(next(given)[0]) for _ in rates]
        for table, number in rated:
            table.learning_rate = now[number]
        requests: list[tuple[RemoteTable, Any, Any, int | None]] = []
        for vector in dense.values():
            gradient = next(given)
            vector.gradients[: gradient.size] = gradient
            requests.append((*vector.request(), None))
        requests += [(tables[one.weight], next(given), next(given), one.padding) for one in sparse]
        send(requests, average)
        return ()

    def receive(_: Any, *tensors: Any) -> Sequence[Any]:
        servers.receive(tensors)
        return tensors

    def insert(at: int) -> None:
        # Rows without a gradient are pulled before the step, too.
        reads = [group[0].rows for group in groups] + rates + gradients
        reads += [name for one in sparse for name in (one.ids, one.rows)] + list(dense)
        variables = [block.var(name) for name in reads]
        shown = [*dense, *tables]
        token = append(block, "mpi_send", push, variables, [], OPTIMIZE, shown, at)
        if dense:
            taken = [block.var(name) for name in dense]
            append(
                block, "mpi_recv", receive, [token, *taken], taken, OPTIMIZE, list(dense), at + 1
            )

    inserted: dict[int, Callable[[int], None]] = {
        group[0].place: partial(_receive_rows, block, group, tables, None) for group in groups
    }
    inserted[read.last] = insert
    removed = read.removed() | {one.place for one in lookups}
    _rewrite(block, removed, inserted, {*tables, *read.states})


def _receive_rows(
    block: Any,
    group: Sequence[Lookup],
    tables: Mapping[str, RemoteTable],
    missing: str | None,
    at: int,
) -> None:
    """Put the operator into a block that stands for lookups.

    Args:
        missing: what the program's pulls do with ids without a row, as for
            :func:`paddlempi.ps.pull`. Clones for tests make no rows.
    """

    def call(missing: str | None, *tensors: Any) -> list[Any]:
        found = pulled(
            [
                (tables[one.weight], array_of(ids), one.padding)
                for one, ids in zip(group, tensors, strict=True)
            ],
            missing,
        )
        shapes = [
            ids.shape()[:-1] if one.column else ids.shape()
            for one, ids in zip(group, tensors, strict=True)
        ]
        return [
            rows.reshape([*shape, rows.shape[1]]) for rows, shape in zip(found, shapes, strict=True)
        ]

    reads, writes = [block.var(one.ids) for one in group], [block.var(one.rows) for one in group]
    names = list(dict.fromkeys(one.weight for one in group))
    does, tests = partial(call, missing), partial(call, missing or "initial")
    append(block, "mpi_recv", does, reads, writes, FORWARD, names, at, tests=tests)


def _rewrite(
    block: Any,
    removed: set[int],
    inserted: Mapping[int, Callable[[int], None]],
    dropped: set[str],
) -> None:
    """Take operators out of a block, and put others in.

    Args:
        removed: the places of operators.
        inserted: functions that put operators at a place, which they are given.
        dropped: variables that go with the operators. Those that nothing uses any more do so, too.
    """
    gone: set[str] = set()
    for place in reversed(range(len(block.ops) + 1)):  # so that the places before stay as they are
        if place in removed:
            op = block.ops[place]
            gone.update(op.input_arg_names, op.output_arg_names)
            block._remove_op(place, sync=False)
        if place in inserted:
            inserted[place](place)
    used = {
        name
        for one in block.program.blocks
        for op in one.ops
        for name in (*op.input_arg_names, *op.output_arg_names)
    }
    for name in (gone | dropped) - used:
        variable = block.vars.get(name)
        if variable is not None and (
            name in dropped or not (variable.persistable or variable.is_data)
        ):
            block._remove_var(name, sync=False)
    block._sync_with_cpp()


def _tensor(name: str) -> Any:
    """Return a variable of the current scope, as a tensor of the executor."""
    variable = paddle.static.global_scope().find_var(name)
    if variable is None or not variable.get_tensor()._is_initialized():
        raise NotInitializedError(
            f"{name!r} has no value in the current scope: run plan.startup before, in this scope"
        )
    return variable.get_tensor()


class DistributeTranspiler:
    """:func:`paddlempi.ps.transpile` with the methods of Fluid's class, for static programs.

    Where Fluid has addresses of servers, this has the roles of the ranks. A rank that does not
    train is not ended: it runs the program of a server::

        t = DistributeTranspiler()
        t.transpile(main, "trainer:2,pserver:2", startup)
        if ps.is_trainer():
            executor.run(t.get_startup_program())
            ...  # t.get_trainer_program() in each step
        else:
            executor.run(t.get_pserver_program())
        ps.shutdown()
    """

    def __init__(self) -> None:
        self._plan: StaticPlan | None = None
        self._does: list[str] | None = None

    def transpile(
        self,
        program: Any = None,
        roles: RolesArgument = None,
        startup_program: Any = None,
        *,
        average: bool = True,
        placement: str = "round_robin",
        name: str = "plan",
        **settings: Any,
    ) -> None:
        """Rewrite a training program of one machine. All ranks call it.

        Args:
            program, startup_program: see :func:`paddlempi.ps.transpile`. None: Paddle's defaults.
            roles, settings: the arguments of :func:`paddlempi.ps.init`, if it was not called.
            average, placement, name: as for :func:`paddlempi.ps.transpile`.

        Raises:
            Error: as :func:`paddlempi.ps.transpile`.
        """
        if program is None:
            program = paddle.static.default_main_program()
        does = StaticTranspiler(program, startup_program).described(name)
        if not is_begun():
            ps.init(roles, **settings)
        elif roles is not None or settings:
            raise ArgumentError(
                "DistributeTranspiler.transpile: roles and settings were given to ps.init, which "
                "was called before"
            )
        if ps.is_trainer():
            plan: Any = ps.transpile(
                program, startup_program, average=average, placement=placement, name=name
            )
            self._plan = plan
        self._does = does

    def get_trainer_program(self) -> Any:
        """Return the program of a step: the one that was given, rewritten.

        Raises:
            ArgumentError: this rank does not train, or before :meth:`transpile`.
        """
        return self._of_trainer("get_trainer_program").model

    def get_startup_program(self) -> Any:
        """Return the startup program of a trainer: the one that was given, rewritten.

        Raises:
            ArgumentError: this rank does not train, or before :meth:`transpile`.
        """
        return self._of_trainer("get_startup_program").startup

    def get_pserver_program(self) -> Any:
        """Return the program of a rank that does not train: it serves until the trainers complete.

        Raises:
            ArgumentError: this rank trains, or before :meth:`transpile`.
        """
        if self._does is None or self._plan is not None:
            raise ArgumentError(
                "DistributeTranspiler.get_pserver_program: call transpile before, on a rank that "
                "does not train: one with both roles serves meanwhile"
            )
        program = paddle.static.Program()
        with paddle.static.program_guard(program):
            mpi_listenandserve(self._does)
        return program

    def _of_trainer(self, what: str) -> StaticPlan:
        if self._plan is None:
            raise ArgumentError(
                f"DistributeTranspiler.{what}: call transpile before, on a rank that trains"
            )
        return self._plan
