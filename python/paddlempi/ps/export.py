"""Tables of a cut for other programs, and for inference in this process.

::

    ps.export("saved", "model.safetensors")
    tables = ps.load("saved")  # {"user": Table(...), ...}
    rows = tables["user"].pull(ids)

Neither needs servers or MPI. ``docs/ps-checkpoint.md`` has the formats.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import secrets
import zipfile
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import fields
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from .. import _native
from ..errors import ArgumentError
from ..together import flush
from .cuts import Cut, CutTable, open_cut
from .initializers import Initializer, Normal, Uniform, initializer
from .optimizers import SGD, Optimizer, optimizer
from .table import _WRITE, Table

__all__ = ["export", "load"]


def export(
    directory: str | os.PathLike[str],
    to: str | os.PathLike[str],
    format: str = "safetensors",
    *,
    step: int | None = None,
    tables: Collection[str] | None = None,
    states: bool = False,
) -> int:
    """Write the tables of a cut into one file.

    A table ``user`` becomes ``user.ids``, int64, ascending, [rows], and ``user.rows``, in the same
    order, [rows, dim]; with ``states`` also ``user.states``, float32, [rows, floats of a state]. A
    dense parameter becomes one tensor with its name and its shape; its states are those of its
    blocks.

    Args:
        directory: what the servers saved into.
        to: the file. One that is there is replaced when the new one is whole.
        format: "safetensors"; "numpy": an archive for ``numpy.load``; "paddle": for
            ``paddle.load``. NumPy has no bfloat16, so such rows are of float32 in its archive.
        step: of the cut. None: the newest one that is whole.
        tables: the names of the tables. None: all.
        states: whether to write the states of the optimizers.

    Returns:
        The step of the cut.

    Raises:
        ArgumentError: there is no such cut, table or format; or a file is damaged.
        OSError: a file cannot be read or written.

    Memory: 8 bytes for each row; numpy: also the largest table; paddle: also all tables.
    """
    if format not in _FORMATS:
        raise ArgumentError(f"export: format={format!r} is none of {', '.join(_FORMATS)}")
    cut = open_cut(directory, step)
    chosen = _chosen("export", cut, tables)
    tensors = [one for number in chosen for one in _tensors(_Rows(cut, number), states)]
    names = set()
    for tensor in tensors:
        if tensor.name in names:
            raise ArgumentError(f"export: two tensors would have the name {tensor.name!r}")
        names.add(tensor.name)
    path = Path(to)
    staged = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        _FORMATS[format](staged, cut, tensors)
        flush(staged)
        staged.replace(path)
        flush(path.parent)
    finally:
        with suppress(FileNotFoundError):
            staged.unlink()
    return cut.step


def load(
    directory: str | os.PathLike[str],
    *,
    step: int | None = None,
    tables: Collection[str] | None = None,
    train: bool = False,
) -> dict[str, Table]:
    """Make tables in this process of those of a cut.

    Args:
        directory: what the servers saved into.
        step: of the cut. None: the newest one that is whole.
        tables: the names of the tables. None: all but dense parameters, which :func:`export`
            writes.
        train: False: the tables have no optimizer states, which saves their memory, and a push is
            that of SGD. True: they have the optimizers and states of the cut.

    Returns:
        The tables by name. A pull of an id without a row makes the row that the servers would have
        made.

    Raises:
        ArgumentError: there is no such cut or table; or a file is damaged.
        OutOfMemoryError: there is no memory for the rows.
        OSError: a file cannot be read.
        ForkError: this process is a fork of the one that loaded the core.
    """
    cut = open_cut(directory, step)
    chosen = _chosen("load", cut, tables)
    if tables is None:
        chosen = [number for number in chosen if _shape(cut.tables[number]) is None]
    loaded: dict[str, Table] = {}
    try:
        for number in chosen:
            info = cut.tables[number]
            table = loaded[info.name] = _empty(info, train)
            for ids, rows, states in cut.chunks(number):
                wide = _widened(info.dtype, rows)
                table._core.table(_WRITE, table._number, ids, wide, states if train else None)
            if len(table) != info.rows:
                raise ArgumentError(
                    f"load: {cut.folder} has {info.rows} rows of table {info.name!r}, but only "
                    f"{len(table)} different ids"
                )
            if train:
                _native.control("table_info", table=table._number, steps=info.steps)
    except BaseException:
        for table in loaded.values():
            table.close()
        raise
    return loaded


def _chosen(function: str, cut: Cut, names: Collection[str] | None) -> list[int]:
    """Return the numbers of tables."""
    there = {table.name: number for number, table in enumerate(cut.tables)}
    if names is None:
        return list(there.values())
    if isinstance(names, str):
        raise ArgumentError(f"{function}: tables={names!r} is one name; give a list of names")
    for name in names:
        if name not in there:
            known = ", ".join(map(repr, sorted(there)[:20]))
            raise ArgumentError(f"{function}: {cut.folder} has no table {name!r}; it has {known}")
    return [there[name] for name in dict.fromkeys(names)]


def _empty(info: CutTable, train: bool) -> Table:
    """Make a table without rows by the config in a cut."""
    config = info.config
    try:
        kind = type(optimizer(config["optimizer"]["name"]))
        numbers = {field.name: config["optimizer"][field.name] for field in fields(kind)}
        if info.learning_rate is not None:
            numbers["learning_rate"] = info.learning_rate
        first: Initializer = initializer(config["initializer"]["name"])
        if isinstance(first, Uniform | Normal):
            first = type(first)(config["initializer"]["a"], config["initializer"]["b"])
        made: Optimizer = kind(**numbers) if train else SGD(numbers["learning_rate"])
        seed, most = config["seed"], config.get("num_ids") or None
        allow = "refuse" if config.get("refuse", True) else "allow"
    except (KeyError, TypeError) as error:
        raise ArgumentError(
            f"load: the config of {info.name!r} in the cut is none of a table: {error!r}"
        ) from None
    if train and made.state_width(info.dim) != info.state_len:
        raise ArgumentError(
            f"load: the states of {info.name!r} in the cut have {info.state_len} floats; those of "
            f"{made.NAME} have {made.state_width(info.dim)}"
        )
    return Table(info.dim, made, first, dtype=info.dtype, seed=seed, num_ids=most, non_finite=allow)


class _Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Callable[[Any], None]
    """Writes the elements into a NumPy array; for bfloat16 into one of their bits."""


_NUMPY = {"int64": "<i8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
_SAFETENSORS = {"int64": "I64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}


class _Rows:
    """The rows of a table of a cut, in the order of their ids."""

    def __init__(self, cut: Cut, number: int) -> None:
        self.cut, self.number, self.info = cut, number, cut.tables[number]

    @cached_property
    def ids(self) -> Any:
        numpy = import_module("numpy")
        found = numpy.empty(self.info.rows, "<i8")
        end = 0
        for ids, _, _ in self.cut.chunks(self.number, values=False):
            found[end : end + len(ids)] = ids
            end += len(ids)
        found.sort()
        twice = found[1:][found[1:] == found[:-1]]
        if len(twice):
            raise ArgumentError(
                f"{self.cut.folder} has two rows of id {twice[0]} of table {self.info.name!r}"
            )
        return found

    def fill_ids(self, out: Any) -> None:
        out[:] = self.ids

    def fill_rows(self, out: Any) -> None:
        for ids, rows, _ in self.cut.chunks(self.number):
            out[self.ids.searchsorted(ids)] = rows

    def fill_states(self, out: Any) -> None:
        for ids, _, states in self.cut.chunks(self.number):
            out[self.ids.searchsorted(ids)] = states

    def fill_dense(self, out: Any) -> None:
        flat, dim = out.reshape(-1), self.info.dim
        blocks = -(-len(flat) // dim)
        if len(self.ids) != blocks or (blocks and tuple(self.ids[[0, -1]]) != (0, blocks - 1)):
            raise ArgumentError(
                f"{self.cut.folder} has {len(self.ids)} blocks of {self.info.name!r}; it needs "
                f"those from 0 to {blocks - 1}"
            )
        for ids, rows, _ in self.cut.chunks(self.number):
            for block, row in zip(ids.tolist(), rows, strict=True):
                piece = flat[block * dim : (block + 1) * dim]
                piece[:] = row[: len(piece)]


def _shape(info: CutTable) -> tuple[int, ...] | None:
    """Return the shape of a dense parameter; None for a table of embeddings."""
    if info.config.get("kind") != "dense":
        return None
    dims = info.config.get("dims")
    if not isinstance(dims, list) or any(type(dim) is not int or dim < 0 for dim in dims):
        raise ArgumentError(f"the config of {info.name!r} in the cut has dims={dims!r:.80}")
    if math.prod(dims) > info.rows * info.dim:
        raise ArgumentError(
            f"{info.name!r} has dims={dims!r:.80} and {info.rows} blocks of {info.dim} elements"
        )
    return tuple(dims)


def _tensors(rows: _Rows, states: bool) -> list[_Tensor]:
    info = rows.info
    shape = _shape(info)
    if shape is not None:
        tensors = [_Tensor(info.name, info.dtype, shape, rows.fill_dense)]
    else:
        tensors = [
            _Tensor(f"{info.name}.ids", "int64", (info.rows,), rows.fill_ids),
            _Tensor(f"{info.name}.rows", info.dtype, (info.rows, info.dim), rows.fill_rows),
        ]
    if states and info.state_len:
        of_states = (info.rows, info.state_len)
        tensors.append(_Tensor(f"{info.name}.states", "float32", of_states, rows.fill_states))
    return tensors


def _widened(dtype: str, rows: Any) -> Any:
    """Return rows in float32, which is exact."""
    if dtype == "bfloat16":
        return (rows.astype("<u4") << 16).view("<f4")
    return rows.astype("<f4", copy=False)


def _filled(tensor: _Tensor) -> Any:
    array = import_module("numpy").empty(tensor.shape, _NUMPY[tensor.dtype])
    tensor.fill(array)
    return array


def _safetensors(path: Path, cut: Cut, tensors: list[_Tensor]) -> None:
    numpy = import_module("numpy")
    # The widest elements first, so that all are aligned.
    tensors = sorted(tensors, key=lambda tensor: -numpy.dtype(_NUMPY[tensor.dtype]).itemsize)
    configs = {f"config.{table.name}": json.dumps(table.config) for table in cut.tables}
    header: dict[str, Any] = {"__metadata__": {"step": str(cut.step), **configs}}
    end = 0
    begins = []
    for tensor in tensors:
        begins.append(end)
        end += math.prod(tensor.shape) * numpy.dtype(_NUMPY[tensor.dtype]).itemsize
        header[tensor.name] = {
            "dtype": _SAFETENSORS[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [begins[-1], end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.flush()
        # A full disk is an error here, and a crash where a page of the mapping is written.
        os.posix_fallocate(file.fileno(), 0, 8 + len(text) + end)
    for tensor, begin in zip(tensors, begins, strict=True):
        if math.prod(tensor.shape):
            dtype, offset = _NUMPY[tensor.dtype], 8 + len(text) + begin
            tensor.fill(numpy.memmap(path, dtype, "r+", offset, tensor.shape))


def _archive(path: Path, cut: Cut, tensors: list[_Tensor]) -> None:
    lib = import_module("numpy.lib.format")
    with zipfile.ZipFile(path, "x") as archive:
        for tensor in tensors:
            array = _filled(tensor)
            if tensor.dtype == "bfloat16":
                array = _widened(tensor.dtype, array)
            with archive.open(f"{tensor.name}.npy", "w", force_zip64=True) as file:
                lib.write_array(file, array, allow_pickle=False)


def _paddle(path: Path, cut: Cut, tensors: list[_Tensor]) -> None:
    state: dict[str, Any] = {tensor.name: _filled(tensor) for tensor in tensors}
    # paddle.load makes tensors of the arrays that this table names, of uint16 those of bfloat16.
    state["StructuredToParameterName@@"] = {name: name for name in state}
    with open(path, "xb") as file:
        pickle.dump(state, file, protocol=4)


_FORMATS = {"safetensors": _safetensors, "numpy": _archive, "paddle": _paddle}
