"""Operators of static programs that talk to servers, with the names of Fluid's design for MPI.

``mpi_recv`` is :func:`paddlempi.ps.pull`, ``mpi_send`` is a :func:`paddlempi.ps.step`, and
``mpi_listenandserve`` is :func:`paddlempi.ps.serve`. For programs of Paddle's legacy IR::

    (rows,) = mpi_recv([(table, ids)])
    ...
    gradient = paddle.static.gradients(loss, rows)[0]
    mpi_send([(table, ids, gradient)])

Paddle's wheel takes no operators from outside, so each is a ``py_func``, which calls a function of
this process. A printed program shows its name as ``op_namescope``, and as ``mpi_of`` its tables.

Paddle's executor has several threads, and runs operators in any order that their variables allow.
So an operator that must run after another one reads a variable of it. One that has no result has a
token for this.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle.base import core, unique_name
from paddle.base.executor import Executor
from paddle.base.framework import Program, Variable, get_flags
from paddle.static import io as static_io
from paddle.static.nn.common import PyFuncRegistry

from ..errors import ArgumentError, DtypeError, UnsupportedError
from ..ps import RemoteTable, pull, serve
from ..ps.missing_rows import call_of
from ..ps.stepping import note, refuse, step
from . import patches, private

__all__ = [
    "FORWARD",
    "NAMES",
    "OPTIMIZE",
    "TOKEN",
    "append",
    "array_of",
    "check_ir",
    "mpi_listenandserve",
    "mpi_recv",
    "mpi_send",
    "name_of",
    "pulled",
    "send",
    "set_array",
    "token_of",
]

_Array = np.ndarray[Any, Any]

FORWARD, OPTIMIZE = 0, 2
"""What Paddle's ``op_role`` says of an operator. ``clone(for_test=True)`` leaves OPTIMIZE out."""

NAMES = ("mpi_send", "mpi_recv", "mpi_listenandserve")

TOKEN = np.zeros(1, np.float32)

_failed: list[BaseException] = []
"""The errors of operators. The executor's threads make ``RuntimeError: std::exception`` of them."""

_in_tests: dict[int, int] = {}
"""The functions of operators that have others in programs for tests, by their numbers."""


# The operators


def mpi_recv(
    requests: Sequence[tuple[RemoteTable, Variable]],
    after: Iterable[Variable] = (),
    *,
    missing: str | None = None,
) -> list[Variable]:
    """Append an operator that pulls rows of tables, in one request to each server.

    Args:
        requests: tables with variables of their ids, of int64 or int32 and of any shape. Several
            may name the same table.
        after: variables of operators that have to run before.
        missing: as for :func:`paddlempi.ps.pull`. None: rows are made for ids that have none, but
            not in a ``clone(for_test=True)`` of the program, where it is "initial".

    Returns:
        A variable of float32 for each request, [*ids.shape, dim]. Gradients flow to it.

    Raises:
        UnsupportedError: the current program is not of the legacy IR.
        DtypeError: a request is something else.
        ArgumentError: ``missing`` is another word.

    The executor's ``run`` raises what :func:`paddlempi.ps.pull` does.
    """
    call_of("mpi_recv", missing)
    block = _block("mpi_recv")
    kept = _checked("mpi_recv", requests, "ids")
    after = list(after)
    tables = [table for table, _ in kept]
    rows = [
        block.create_var(
            name=unique_name.generate("mpi_recv") + ".rows",
            shape=[*ids.shape, table.dim],
            dtype="float32",
        )
        for table, ids in kept
    ]

    def call(missing: str | None, *tensors: Any) -> list[_Array]:
        given = tensors[len(after) :]
        asked = [(t, array_of(ids), None) for t, ids in zip(tables, given, strict=True)]
        found = pulled(asked, missing)
        return [
            one.reshape([*ids.shape(), one.shape[-1]])
            for one, ids in zip(found, given, strict=True)
        ]

    reads = [*after, *(ids for _, ids in kept)]
    tests = partial(call, missing or "initial")
    does = partial(call, missing)
    append(block, "mpi_recv", does, reads, rows, FORWARD, _names(tables), tests=tests)
    for one in rows:
        one.stop_gradient = False  # to append it has made it one that stops: ids have no gradient
    return rows


def mpi_send(
    requests: Sequence[tuple[RemoteTable, Variable, Variable]],
    *,
    average: bool = True,
    learning_rate: Variable | None = None,
    after: Iterable[Variable] = (),
) -> Variable:
    """Append an operator that pushes gradients of rows: one step of this trainer.

    A program has one, and all trainers run it equally often: see :func:`paddlempi.ps.step`.

    Args:
        requests: tables with variables of ids, and of float32 gradients, [*ids.shape, dim].
        average: whether gradients are divided by the number of trainers in sync mode.
        learning_rate: a variable of one float32 with that of this step, such as the value of a
            schedule. None: that of the table.
        after: variables of operators that have to run before.

    Returns:
        A token, for operators that have to run after it.

    Raises:
        UnsupportedError: the current program is not of the legacy IR.
        DtypeError: a request is something else.

    The executor's ``run`` raises what :func:`paddlempi.ps.step` does.
    """
    block = _block("mpi_send")
    kept = _checked("mpi_send", requests, "ids", "gradients")
    first = list(after) + ([] if learning_rate is None else [learning_rate])
    tables = [table for table, _, _ in kept]

    def call(*tensors: Any) -> list[_Array]:
        given = tensors[len(first) :]
        if learning_rate is not None:
            for table in tables:
                table.learning_rate = float(array_of(tensors[len(first) - 1])[0])
        send(
            [
                (table, array_of(ids), array_of(gradients), None)
                for table, ids, gradients in zip(tables, given[::2], given[1::2], strict=True)
            ],
            average,
        )
        return []

    reads = [*first, *(one for _, ids, gradients in kept for one in (ids, gradients))]
    return append(block, "mpi_send", call, reads, [], OPTIMIZE, _names(tables))


def mpi_listenandserve(shown: Sequence[str] = ()) -> Variable:
    """Append an operator that serves until all trainers have completed; return its token.

    It is the program of a rank that does not train. Set ``FLAGS_new_executor_serial_run`` to have
    it run in the main thread, where Ctrl-C is seen, also when the program is run a second time.

    Args:
        shown: what a printed program says of it, such as what the servers do.

    Raises:
        UnsupportedError: the current program is not of the legacy IR.

    The executor's ``run`` raises what :func:`paddlempi.ps.serve` does.
    """

    def call() -> list[_Array]:
        serve()
        return []

    return append(_block("mpi_listenandserve"), "mpi_listenandserve", call, [], [], FORWARD, shown)


def _checked(what: str, requests: Any, *names: str) -> list[Any]:
    taken = list(requests) if isinstance(requests, Iterable) else [requests]
    for one in taken:
        fits = isinstance(one, (tuple, list)) and len(one) == 1 + len(names)
        if not (
            fits
            and isinstance(one[0], RemoteTable)
            and all(isinstance(variable, Variable) for variable in one[1:])
        ):
            raise DtypeError(
                f"{what}: a request is ({', '.join(('RemoteTable', *names))}), with variables of a "
                f"program, not {one!r:.100}"
            )
    return taken


def _names(tables: Sequence[RemoteTable]) -> list[str]:
    return [table.name for table in tables]


def _block(what: str) -> Any:
    """The block that the current program is at."""
    program = paddle.static.default_main_program()
    check_ir(what, program)
    return program.current_block()


def check_ir(what: str, program: Any) -> None:
    """Raise if a program, or Paddle now, is not of the legacy IR.

    Raises:
        DtypeError: it is no program.
        UnsupportedError: it is of PIR, which takes no operators from outside.
    """
    legacy = isinstance(program, Program)
    kind = type(program)
    if not legacy and not (kind.__name__ == "Program" and "pir" in kind.__module__):
        raise DtypeError(
            f"{what}: a {kind.__qualname__} is no paddle.nn.Layer and no static program"
        )
    flag = "FLAGS_enable_pir_api"
    if not legacy or get_flags(flag)[flag]:
        raise UnsupportedError(
            f"{what}: a static program of Paddle's PIR takes no operators from outside: start "
            "Python with FLAGS_enable_pir_api=0 in the environment, for programs of the legacy IR"
        )


# What they do


def pulled(
    requests: Sequence[tuple[RemoteTable, _Array, int | None]], missing: str | None
) -> list[_Array]:
    """Pull rows in one request to each server.

    Args:
        requests: tables, ids of any shape, and the id of the padding, whose row is zeros.
        missing: as for :func:`paddlempi.ps.pull`.

    Returns:
        The rows of each, [ids.size, dim].
    """
    # A table is once in a request of the servers.
    of: dict[str, tuple[RemoteTable, list[_Array]]] = {}
    keeps = []
    for table, ids, padding in requests:
        flat = ids.reshape(-1)
        keep = None if padding is None else flat != padding
        keeps.append(keep)
        of.setdefault(table.name, (table, []))[1].append(flat if keep is None else flat[keep])
    joined = [(t, ids[0] if len(ids) == 1 else np.concatenate(ids)) for t, ids in of.values()]
    rows = dict(zip(of, pull(joined, missing=missing), strict=True))
    ends = dict.fromkeys(of, 0)
    results = []
    for (table, ids, _), keep in zip(requests, keeps, strict=True):
        begin = ends[table.name]
        count = ids.size if keep is None else int(keep.sum())
        ends[table.name] = end = begin + count
        mine: _Array = rows[table.name][begin:end]
        if keep is not None:
            padded = np.zeros((keep.size, table.dim), np.float32)
            padded[keep] = mine
            mine = padded
        results.append(mine)
    return results


def send(requests: Sequence[tuple[RemoteTable, _Array, _Array, int | None]], average: bool) -> None:
    """Push gradients of rows in one request: a step of this trainer.

    Args:
        requests: tables, ids and gradients, of any shape, and the id of the padding, which is not
            trained.
        average: see :func:`paddlempi.ps.step`.

    Raises:
        Error: as :func:`paddlempi.ps.step`. If it is a mistake of this trainer, the others raise
            RefusedError.
    """
    try:
        for table, ids, gradients, padding in requests:
            flat, rows = ids.reshape(-1), gradients.reshape(-1, table.dim)
            if padding is not None:
                keep = flat != padding
                flat, rows = flat[keep], rows[keep]
            note(table, flat, rows)
        step(average=average)
    except (ArgumentError, DtypeError, UnsupportedError):
        refuse()
        raise


# How they are made


def append(
    block: Any,
    name: str,
    call: Callable[..., Sequence[Any]],
    reads: Sequence[Variable],
    writes: Sequence[Variable],
    role: int,
    shown: Sequence[str],
    index: int | None = None,
    *,
    tests: Callable[..., Sequence[Any]] | None = None,
) -> Variable:
    """Put an operator into a block.

    Args:
        name: one of NAMES.
        call: what it does. It gets the tensors of ``reads``, and returns those of ``writes``.
        reads, writes: variables. The operator runs after those that write the first, and before
            others that read the second.
        role: FORWARD or OPTIMIZE.
        shown: what it is about, for who prints the program: ``mpi_of``.
        index: its place. None: the end.
        tests: what it does in a ``clone(for_test=True)`` of the program. None: the same.

    Returns:
        The first variable that it writes, which is a token if ``writes`` is empty.
    """
    _watch()
    written = list(writes) or [token_of(block, name)]

    def registered(does: Callable[..., Sequence[Any]]) -> int:
        def guarded(*tensors: Any) -> Sequence[Any]:
            try:
                return does(*tensors) if writes else (does(*tensors), TOKEN)[1:]
            except BaseException as error:
                _failed.append(error)
                raise

        return int(PyFuncRegistry(guarded).id)

    number = registered(call)
    if tests is not None:
        _in_tests[number] = registered(tests)
    attributes = {
        "forward_callable_id": number,
        "backward_callable_id": -1,
        "backward_skip_vars": [],
        "op_role": role,
    }
    given = {
        "type": "py_func",
        "inputs": {"X": list(reads)},
        "outputs": {"Out": written},
        "attrs": attributes,
    }
    place = len(block.ops) if index is None else index
    operator = block._insert_op(place, **given)
    operator._set_attr("op_namescope", f"/{name}/")
    if shown:
        operator._set_attr("mpi_of", list(shown))
    return written[0]


def token_of(block: Any, name: str) -> Variable:
    """Make a token for an operator."""
    token = unique_name.generate(name) + ".token"
    return block.create_var(name=token, shape=[1], dtype="float32", stop_gradient=True)


def name_of(operator: Any) -> str | None:
    """Return which of NAMES an operator of a program is; None: another one."""
    if operator.type != "py_func":
        return None
    scope = operator.attr("op_namescope").strip("/")
    return scope if scope in NAMES else None


def array_of(tensor: Any) -> _Array:
    """Return the elements of an executor's tensor as an array, [elements]. Host memory is shared.

    Raises:
        DtypeError: it is of another dtype than float32, int64 and int32.
    """
    if not tensor._place().is_cpu_place():
        copied: _Array = np.array(tensor).reshape(-1)
        return copied
    size = math.prod(tensor.shape())
    kind = _KINDS.get(tensor._dtype())
    if kind is None:
        raise DtypeError(f"a tensor of {tensor._dtype()} is neither of float32 nor of int64, int32")
    if size == 0:
        return np.empty(0, kind)
    shared: _Array = np.frombuffer((kind * size).from_address(tensor._ptr()), kind)
    return shared


_KINDS: dict[Any, Any] = {
    core.VarDesc.VarType.FP32: ctypes.c_float,
    core.VarDesc.VarType.INT64: ctypes.c_int64,
    core.VarDesc.VarType.INT32: ctypes.c_int32,
}


def set_array(tensor: Any, values: _Array) -> None:
    """Set the elements of an executor's tensor to an array, [elements]."""
    if tensor._place().is_cpu_place() and tensor._dtype() in _KINDS:
        array_of(tensor)[:] = values
    else:
        tensor.set(values.reshape(tensor.shape()), tensor._place())


# What is changed in Paddle, when the first operator is made


def _watch() -> None:
    """Have ``run`` raise the errors of operators, and programs for tests do what they do in tests.

    Functions that save programs refuse them.
    """
    if vars(Executor)["run"] is _run:
        return
    owners = (static_io, paddle.static)
    patches.replace(
        [
            (Executor, "run", _run),
            (Program, "clone", _clone),
            *((owner, "normalize_program", _normalize_program) for owner in owners),
            *((owner, "save", _save) for owner in owners),
        ]
    )


def _run(self: Any, *arguments: Any, **named: Any) -> Any:
    try:
        return patches.original(Executor, "run")(self, *arguments, **named)
    except BaseException as told:
        errors, _failed[:] = _failed[:], []
        if errors and told is not errors[0]:
            raise errors[0] from None
        raise


def _clone(self: Any, for_test: bool = False) -> Any:
    program = patches.original(Program, "clone")(self, for_test)
    for block in program.blocks if for_test else ():
        for place in reversed(range(len(block.ops))):
            operator = block.ops[place]
            if name_of(operator) is None:
                continue
            if operator.attr("op_role") == OPTIMIZE:  # Paddle leaves it there after gradients()
                block._remove_op(place)
            else:
                number = operator.attr("forward_callable_id")
                operator._set_attr("forward_callable_id", _in_tests.get(number, number))
    return program


def _normalize_program(program: Any, *arguments: Any, **named: Any) -> Any:
    _refuse_to_save(program)
    return patches.original(static_io, "normalize_program")(program, *arguments, **named)


def _save(program: Any, *arguments: Any, **named: Any) -> Any:
    _refuse_to_save(program)
    return patches.original(static_io, "save")(program, *arguments, **named)


def _refuse_to_save(program: Any) -> None:
    if isinstance(program, Program):
        for block in program.blocks:
            for operator in block.ops:
                name = name_of(operator)
                if name is not None:
                    raise UnsupportedError(
                        f"a program with {name} cannot be saved: the operator calls a function of "
                        "this process. Save the program of one machine, with the values that "
                        "plan.state_dict() gives"
                    )


private.check(private.STATIC)
