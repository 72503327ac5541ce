"""Tensors of many kinds in every public function that takes one: right, or an error.

:mod:`every_function` has the functions. A new one without a row there fails a test.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import paddlempi
from every_function import OPERATIONS, TABLES, Array, Table, Ways, parameters
from paddlempi import errors, io, ps

__all__ = ["Kind", "found", "tried"]


class Kind(NamedTuple):
    """A kind of tensors.

    ``make(values)`` makes one, and ``read(tensor)`` returns its values. ``sent`` and ``written``
    are the errors of functions that only read the tensor, and of those that write to it; None: they
    are right.
    """

    name: str
    values: Array
    make: Callable[[Array], Any]
    read: Callable[[Any], Any]
    sent: type[errors.Error] | None = None
    written: type[errors.Error] | None = None


# Which functions there are.


NO_TENSORS = frozenset(
    {
        "Graph",
        "Intercommunicator.recv_object_list",
        "Intercommunicator.send_object_list",
        "PreparedCall.wait",
        "Window.compare_and_swap",
        "Window.fetch_and_op",
        "Work",
        "Work.wait",
        "all_gather_object",
        "barrier",
        "broadcast_object_list",
        "empty",
        "gather_object",
        "init_process_group",
        "io.File.view",
        "io.OpenFile",
        "io.OpenFile.fill",
        "io.TensorSlice",
        "io.View",
        "launch",
        "prepare",
        "recv_object_list",
        "scatter_object_list",
        "send_object_list",
        "ps.KVRequest",
        "ps.Prefetched",
        "ps.Plan.clip_grad_norm_",
        "ps.Plan.clip_grad_value_",
        "ps.Task",
        "ps.note",
        "ps.tasks",
        "ps.transpile",
        "zeros",
    }
)
"""Objects, numbers and dtypes are no tensors; nor are classes that the library makes itself."""

ELSEWHERE = frozenset(
    {
        "Intercommunicator.irecv",
        "Intercommunicator.isend",
        "Intercommunicator.recv",
        "Intercommunicator.send",
        "empty_like",
        "ps.Plan.set_state_dict",
        "ps.RemoteTable.prefetch",
        "ps.RemoteTable.read_states",
        "ps.Table.load_state_dict",
        "ps.Table.remove",
        "ps.prefetch",
        "ps.pull",
    }
)
"""They need other jobs; do not touch the memory; or take ids, a model's state, or NumPy's arrays of
a file."""


def found() -> set[str]:
    """Return the names of the public functions and methods that may take a tensor."""
    names = set()
    for prefix, module in (("", paddlempi), ("io.", io), ("ps.", ps)):
        for name in module.__all__:
            what = getattr(module, name)
            if inspect.isclass(what) and not issubclass(what, BaseException):
                names |= {f"{prefix}{name}{one}" for one in _methods(what)}
            elif inspect.isfunction(what) and _may_take(what):
                names.add(prefix + name)
    return names - NO_TENSORS - ELSEWHERE


def _methods(kind: type) -> Iterator[str]:
    for name, method in vars(kind).items():
        if inspect.isfunction(method) and _may_take(method):
            if name == "__init__":
                yield ""
            elif not name.startswith("_"):
                yield f".{name}"


def _may_take(function: Any) -> bool:
    """Whether a parameter is of any type, or a tensor; what is annotated otherwise is none."""
    return any(
        re.search(r"Any|object|Tensor", str(one.annotation)) or one.annotation is one.empty
        for name, one in parameters(function).items()
        if name not in ("self", "kind", "rest", "dtype", "error")
    )


# What is tried.


def tried(
    kinds: list[Kind], dist: ModuleType, folder: Path, tables: Sequence[Table] = TABLES
) -> list[str]:
    """Give tensors of all kinds to all functions of tables, and return what was wrong."""
    wrong = []
    for how in ("plain", "async", "prepared"):
        ways = Ways(dist, folder, how)
        for table in tables:
            for names in _rows(table, how):
                for kind in kinds:
                    problem = _problem(ways, table, names[0], kind)
                    if problem:
                        wrong.append(f"{'/'.join(names)} ({how}) with {kind.name}: {problem}")
    return wrong


def _rows(table: Table, how: str) -> list[list[str]]:
    """Return the names of each row of a table."""
    rows: dict[int, list[str]] = {}
    for name, way in table.items():
        if how == "plain" or name in OPERATIONS:
            rows.setdefault(id(way), []).append(name)
    return list(rows.values())


def _problem(ways: Ways, table: Table, name: str, kind: Kind) -> str | None:
    v = kind.values.copy()
    wanted = kind.sent if table.what == "read" and name != "broadcast" else kind.written
    fill = np.zeros_like(v) if table.what == "write" else v
    misfits = {errors.ArgumentError} if v.ndim == 0 or v.size == 0 else set()
    # To prepare is local: nobody is told of a rank's error.
    differ = name == "reduce" and table.what == "both" and kind.sent != kind.written
    if ways.how == "prepared" and wanted and (differ or _spared(table, name, ways.rank)):
        return None
    try:
        x = kind.make(fill)
        got = table[name](ways, x, v.copy())
    except errors.Error as error:
        allowed = misfits | ({wanted, errors.RefusedError} if wanted else set())
        if name.startswith(STRICT):
            allowed |= {errors.ArgumentError, errors.UnsupportedError}
        if name.startswith("ps.") and v.dtype.kind == "c":  # tables have no complex rows
            allowed |= {errors.DtypeError}
        return None if isinstance(error, tuple(allowed)) else f"{type(error).__name__}: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if _spared(table, name, ways.rank):
        return None
    if wanted and not name.startswith(LENIENT):
        return f"no {wanted.__name__}"
    if table.what == "read":
        pairs = [(one, v) for one in got]
    else:
        pairs = [(kind.read(x), got if table.what == "both" else v)]
    for one, other in pairs:
        if not np.array_equal(np.asarray(one), other):
            return f"got {np.asarray(one).tolist()}, not {other.tolist()}"
    return None


STRICT = ("Window(tensor)", "Cartesian.halo_exchange", "ps.", "torch.allgather")
"""The beginnings of the names of functions that refuse what others take: what is in no heap; a leaf
that needs a gradient; rows that are not contiguous; sparse tensors with dense results."""
LENIENT = ("Window[...]", "io.", "torch.")
"""The beginnings of the names of functions that also take tensors which others refuse, rightly."""


def _spared(table: Table, name: str, rank: int) -> bool:
    """Whether a rank gives the function no tensor of the kind."""
    name = name.removeprefix("torch.")
    if table.what == "read":
        return (name in ("broadcast", "scatter") and rank > 0) or (name == "reduce" and rank == 0)
    return table.what == "write" and (
        (name == "broadcast" and rank == 0) or (name == "gather" and rank > 0)
    )
