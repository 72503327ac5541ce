"""What a static training program of one machine has: tables, dense parameters, frozen ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from paddle.base import core

from ..errors import ArgumentError, UnsupportedError
from .static_operators import name_of
from .static_updates import BACKWARD, Update, is_role, updates_of

__all__ = ["Lookup", "Table", "TrainingProgram", "groups_of", "lookups_of"]

_LOOKUPS = ("lookup_table", "lookup_table_v2")
_SINGLE = core.VarDesc.VarType.FP32
_DENSE = core.VarDesc.VarType.DENSE_TENSOR


@dataclass(frozen=True)
class Lookup:
    """An operator that takes rows of a table, or the one that makes their gradient.

    Attributes:
        place: of the operator in the block.
        weight: the name of the rows.
        ids: the variable with the ids.
        rows: the variable with their rows, or with the gradients of these.
        padding: the id whose row is zeros and is not trained; None: none is.
        column: the ids have a last dimension of 1, which the rows do not have.
    """

    place: int
    weight: str
    ids: str
    rows: str
    padding: int | None
    column: bool


@dataclass
class Table:
    """An embedding with sparse gradients, which becomes a table.

    Attributes:
        update: what the optimizer does with it.
        gradients: the operators that make its gradients, which are added up.
        operators: the places of operators that trainers do not need: these, and sums of them.
    """

    update: Update
    gradients: list[Lookup] = field(default_factory=list)
    operators: set[int] = field(default_factory=set)


class TrainingProgram:
    """A training program of one machine. It is read, and not changed.

    Args:
        program: its main program, with an optimizer: after ``minimize``.
        startup: its startup program.

    Raises:
        ArgumentError, UnsupportedError: what :func:`paddlempi.ps.transpile` raises, of what the
            programs say.

    Attributes:
        tables: the embeddings with sparse gradients, by their names.
        dense: the updates of the other parameters that are trained.
        frozen: the names of the variables that keep their values between steps, and are none of
            these and of the optimizer: each trainer has them.
        states: those of the optimizer, which the servers have.
        shapes: those of all parameters and of ``frozen``, by their names.
        last: the place of the last update.
    """

    def __init__(self, program: Any, startup: Any) -> None:
        self.program, self.startup = program, startup
        block = program.global_block()
        self.operators = list(block.ops)
        self.updates = updates_of(block, _constants(startup))
        self.last = max(max(one.operators) for one in self.updates)
        begun = {name for op in startup.global_block().ops for name in op.output_arg_names}
        for one in self.updates:
            variable = block.var(one.parameter)
            if one.parameter not in begun:
                raise ArgumentError(
                    f"ps.transpile: the startup program does not set parameter {one.parameter!r}: "
                    "give the startup program of this program"
                )
            if one.parameter in _given(startup):
                raise ArgumentError(
                    f"ps.transpile: parameter {one.parameter!r} belongs to an earlier plan, too: "
                    "have one program train it"
                )
            if variable.type != _DENSE:
                raise UnsupportedError(
                    f"ps.transpile: embedding {one.parameter!r} is of sparse_embedding, which no "
                    "program of one machine can train: make it by embedding(is_sparse=True)"
                )
            if variable.dtype != _SINGLE:
                raise UnsupportedError(
                    f"ps.transpile: parameter {one.parameter!r} is of {variable.dtype}: servers "
                    "have float32"
                )
        self._check_owners()
        self._check_order()
        sparse = {one.weight for one in lookups_of(program, None)}
        self.tables = {
            one.parameter: self._table(one) for one in self.updates if one.parameter in sparse
        }
        self.dense = [one for one in self.updates if one.parameter not in sparse]
        removed = self.removed()
        kept = {
            name
            for number, other in enumerate(program.blocks)
            for place, op in enumerate(other.ops)
            if number or place not in removed
            for name in (*op.input_arg_names, *op.output_arg_names)
        }
        trained = {one.parameter for one in self.updates}
        rates = {one.rate for one in self.updates}
        lasting = [v.name for v in block.vars.values() if v.persistable and v.name in begun]
        touched = {
            name
            for one in self.updates
            for place in one.operators
            for name in self.operators[place].input_arg_names
        }
        self.states = touched.intersection(lasting) - kept - trained - rates
        # A scheduler of Python and operators of a schedule set rates: on each trainer the same.
        self.frozen = [
            name
            for name in lasting
            if name not in self.states | trained | rates and block.var(name).type == _DENSE
        ]
        self.shapes = {
            name: tuple(block.var(name).shape)
            for name in lasting
            if name in trained or name in self.frozen
        }

    def removed(self) -> set[int]:
        """The places of the operators that trainers do not need, without the lookups."""
        found: set[int] = set()
        return found.union(
            *(one.operators for one in self.updates),
            *(table.operators for table in self.tables.values()),
        )

    def _check_owners(self) -> None:
        """Refuse a parameter with a gradient that no optimizer takes."""
        owned = {one.parameter for one in self.updates}
        for op in self.operators:
            pairs = op.attr("op_role_var") if is_role(op, BACKWARD) else []
            for name in pairs[::2]:
                variable = self.program.global_block().var(name)
                if name not in owned and getattr(variable, "trainable", False):
                    raise ArgumentError(
                        f"ps.transpile: parameter {name!r} belongs to nobody: backward makes its "
                        "gradient, and no optimizer takes it. Give it to one, or freeze it"
                    )

    def _check_order(self) -> None:
        """Refuse a program with two steps, the second of which reads what the first has updated."""
        first = {one.parameter: min(one.operators) for one in self.updates}
        own = set().union(*(one.operators for one in self.updates))
        for place in range(min(first.values()), self.last):
            op = self.operators[place]
            for name in op.input_arg_names if place not in own else ():
                if first.get(name, place) < place:
                    raise UnsupportedError(
                        f"ps.transpile: operator {op.type!r} reads parameter {name!r} after its "
                        "update and before that of another one: a program has one step. Make two "
                        "programs"
                    )

    def _table(self, update: Update) -> Table:
        weight = update.parameter
        table = Table(update)
        made: set[str] = set()
        for place, op in enumerate(self.operators):
            if op.type in [f"{kind}_grad" for kind in _LOOKUPS] and op.input("W") == [weight]:
                table.gradients.append(_lookup(place, op, weight, op.input("Out@GRAD")[0]))
            elif not (op.type == "sum" and made and made.issuperset(op.input("X"))):
                continue
            table.operators.add(place)
            made.update(op.output_arg_names)
        forward = {one.place for one in lookups_of(self.program, {weight})}
        allowed = forward | table.operators | update.operators
        for number, block in enumerate(self.program.blocks):
            for place, op in enumerate(block.ops):
                read = {weight, *made} & {*op.input_arg_names, *op.output_arg_names}
                if read and (number or place not in allowed):
                    raise UnsupportedError(
                        f"ps.transpile: embedding {weight!r}: operator {op.type!r} uses "
                        f"{sorted(read)[0]!r}, too: only lookups with is_sparse=True in the main "
                        "block may use rows of a table"
                    )
        if forward and max(forward) > min(update.operators):
            raise UnsupportedError(
                f"ps.transpile: embedding {weight!r}: a lookup comes after its update"
            )
        _check_rows(update)
        return table


def _check_rows(update: Update) -> None:
    """Refuse what would move rows that are not in a batch, and shapes that are no tables."""
    kind = type(update.optimizer).__name__
    what = (
        f"ps.transpile: embedding {update.parameter!r}: rows with sparse gradients have no {kind}"
    )
    if not update.lazy:
        raise UnsupportedError(
            f"{what} without lazy_mode=True: it also changes rows that are not in the batch"
        )
    if kind == "Momentum":
        raise UnsupportedError(
            f"{what}: they have SGD, Adagrad and lazy Adam. Give the embeddings an optimizer of "
            "their own, by append_backward and two apply_gradients"
        )
    if update.optimizer.weight_decay and kind != "AdamW":
        raise UnsupportedError(
            f"{what} with a decay, which also changes rows that are not in the batch"
        )


def lookups_of(program: Any, weights: set[str] | None) -> list[Lookup]:
    """Return the lookups of the main block.

    Args:
        weights: those of these rows. None: those with sparse gradients, of any.
    """
    found = []
    for place, op in enumerate(program.global_block().ops):
        if op.type in _LOOKUPS:
            weight = op.input("W")[0]
            if weight in weights if weights is not None else _is_sparse(op):
                found.append(_lookup(place, op, weight, op.output("Out")[0]))
    return found


def _is_sparse(op: Any) -> bool:
    return any(op.has_attr(name) and op.attr(name) for name in ("is_sparse", "is_distributed"))


def _lookup(place: int, op: Any, weight: str, rows: str) -> Lookup:
    padding = op.attr("padding_idx")
    return Lookup(
        place,
        weight,
        op.input("Ids")[0],
        rows,
        None if padding == -1 else padding,
        op.type.startswith("lookup_table") and "_v2" not in op.type,
    )


def _given(startup: Any) -> set[str]:
    """The parameters that a startup program gives to servers: those of earlier plans."""
    return {
        name
        for op in startup.global_block().ops
        if name_of(op) == "mpi_send"
        for name in op.attr("mpi_of")
    }


def _constants(startup: Any) -> dict[str, float]:
    """The constants that a startup program sets variables to, by their names."""
    return {
        name: float(op.attr("str_value") or op.attr("value"))
        for op in startup.global_block().ops
        if op.type == "fill_constant"
        for name in op.output_arg_names
    }


def groups_of(operators: Iterable[Any], lookups: list[Lookup]) -> list[list[Lookup]]:
    """Return lookups in groups, each of which can be one request at the place of its first one."""
    operators = list(operators)
    groups: list[list[Lookup]] = []
    for one in lookups:
        if groups:
            between = operators[groups[-1][0].place : one.place]
            if not any(one.ids in op.output_arg_names for op in between):
                groups[-1].append(one)
                continue
        groups.append([one])
    return groups
