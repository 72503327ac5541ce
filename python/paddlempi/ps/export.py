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
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from .._ops import TableCall
from ..errors import ArgumentError
from ..io import layout
from ..io.commit import Names, Save
from ..io.dtypes import BY_NAME
from ..io.progress import Bar
from . import lifetime
from .cuts import Cut, CutTable, open_cut
from .initializers import Initializer, Normal, Uniform, initializer
from .optimizers import SGD, Optimizer, optimizer
from .table import Table

if TYPE_CHECKING:
    from ..io.reader import OpenFile

__all__ = ["export", "load"]


def export(
    directory: str | os.PathLike[str],
    to: str | os.PathLike[str],
    format: str = "safetensors",
    *,
    step: int | None = None,
    tables: Collection[str] | None = None,
    states: bool = False,
    progress: bool = False,
) -> int:
    """Write the tables of a cut into one file.

    A table ``user`` becomes ``user.ids``, int64, ascending, [rows], and ``user.rows``, in the same
    order, [rows, dim]; with ``states`` also ``user.states``, float32, [rows, floats of a state]. A
    dense parameter becomes one tensor with its name and its shape (several that lie in one vector,
    as with ``DistributedOptimizer(dense="server")``: one long tensor); its states are those of its
    blocks.

    Args:
        directory: what the servers saved into.
        to: the file. One that is there is replaced when the new one is whole.
        format: "safetensors"; "numpy": an archive for ``numpy.load``; "paddle": for
            ``paddle.load``. NumPy has no bfloat16, so such rows are of float32 in its archive.
        step: of the cut. None: the newest one that is whole.
        tables: the names of the tables. None: all.
        states: whether to write the states of the optimizers.
        progress: show a bar of the bytes; needs tqdm.

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
    save = Save("export", Names(to, plain=True), None)
    try:
        total = sum(math.prod(one.shape) * BY_NAME[one.dtype].bits // 8 for one in tensors)
        with Bar("export", total, progress) as bar:
            _FORMATS[format](save.partial, cut, tensors, bar)
        save.commit()
    finally:
        save.abandon()
    return cut.step


def load(
    directory: str | os.PathLike[str],
    *,
    step: int | None = None,
    tables: Collection[str] | None = None,
    train: bool = False,
) -> dict[str, Table]:
    """Make tables in this process of those of a cut, or of a safetensors file of :func:`export`.

    Args:
        directory: what the servers saved into; or the file.
        step: of the cut. None: the newest one that is whole.
        tables: the names of the tables. None: all but dense parameters, which :func:`export`
            writes.
        train: False: the tables have no optimizer states, which saves their memory, and a push is
            that of SGD; ids do not come and go. True: they have the optimizers and states of the
            cut, and its ``admit_after``, ``expire_after`` and ``max_rows``. A file has neither last
            uses nor counts of ids: its rows count as used now.

    Returns:
        The tables by name. A pull of an id without a row makes the row that the servers would have
        made.

    Raises:
        ArgumentError: there is no such cut or table; a file is damaged; ``step`` is not that of the
            file; or it has no states, which ``train`` needs.
        OutOfMemoryError: there is no memory for the rows.
        OSError: a file cannot be read.
        ForkError: this process is a fork of the one that loaded the core.
    """
    if Path(directory).is_file():
        from ..io.reader import OpenFile  # needs NumPy

        with OpenFile(Names(directory), "numpy") as file:
            return _loaded(_Exported(file, Path(directory), step), tables, train)
    return _loaded(open_cut(directory, step), tables, train)


def _loaded(
    source: Cut | _Exported, tables: Collection[str] | None, train: bool
) -> dict[str, Table]:
    chosen = _chosen("load", source, tables)
    if tables is None:
        chosen = [number for number in chosen if _shape(source.tables[number]) is None]
    loaded: dict[str, Table] = {}
    try:
        for number in chosen:
            info = source.tables[number]
            table = loaded[info.name] = _empty(info, train)
            if train:  # before rows, whose last use is now where the source has none
                _native.control("table_info", table=table._number, steps=info.steps)
            for ids, rows, states in source.chunks(number):
                wide = _widened(info.dtype, rows)
                table._core.table(
                    TableCall.WRITE, table._number, ids, wide, states if train else None
                )
            if len(table) != info.rows:
                raise ArgumentError(
                    f"load: {source.folder} has {info.rows} rows of table {info.name!r}, but only "
                    f"{len(table)} different ids"
                )
            if train and isinstance(source, Cut):
                _lived(table, source, number)
    except BaseException:
        for table in loaded.values():
            table.close()
        raise
    return loaded


def _lived(table: Table, cut: Cut, number: int) -> None:
    """Give a table whose ids come and go the last uses and the counts of a cut."""
    if not cut.tables[number].stamps or not table._config.lifetime:
        return
    for ids, stamps in cut.stamps(number):
        lifetime.set_stamps(table._number, ids, stamps)
    if (table._config.admit_after or 0) > 1:
        for counts in cut.sketches(number):
            lifetime.add_sketch(table._number, counts)


class _Exported:
    """The tables of a file that :func:`export` has written, as :class:`Cut` has those of a cut.

    Dense parameters are left out: the file has them as they are.
    """

    _ROWS = 1 << 16  # of a chunk

    def __init__(self, file: OpenFile, path: Path, step: int | None) -> None:
        metadata = file.metadata() or {}
        if step is not None and metadata.get("step") != str(step):
            raise ArgumentError(f"load: {path} is of step {metadata.get('step')}, not {step}")
        self.folder, self._file = path, file
        self.tables = [
            self._table(key.removeprefix("config."), metadata)
            for key in sorted(metadata)
            if key.startswith("config.") and f"{key.removeprefix('config.')}.rows" in file
        ]

    def _table(self, name: str, metadata: Mapping[str, str]) -> CutTable:
        try:
            config = json.loads(metadata[f"config.{name}"])
            more = json.loads(metadata[f"table.{name}"])
            steps, rate = int(more["steps"]), more["learning_rate"]
            rate = None if rate is None else float(rate)
        except (ValueError, KeyError, TypeError, RecursionError):
            config, steps, rate = None, 0, None
        rows, states = self._file.entry(f"{name}.rows"), f"{name}.states"
        ids = self._file.entry(f"{name}.ids")
        width = self._file.entry(states).shape[1:] if states in self._file else (0,)
        if (
            not isinstance(config, dict)
            or len(rows.shape) != 2
            or ids.shape != rows.shape[:1]
            or ids.dtype.name != "int64"
            or rows.dtype.name not in _NUMPY
            or len(width) != 1
        ):
            raise ArgumentError(f"load: {self.folder} has no table {name!r} as export writes it")
        dim, count = rows.shape[1], ids.shape[0]
        return CutTable(name, rows.dtype.name, dim, width[0], steps, count, config, rate)

    def chunks(self, number: int) -> Any:
        """Yield ids, rows and states of some rows of a table."""
        numpy = import_module("numpy")
        info = self.tables[number]
        for first in range(0, info.rows, self._ROWS):
            count = min(self._ROWS, info.rows - first)
            ids = numpy.empty(count, "<i8")
            self._file.read_into(f"{info.name}.ids", ids, (first,))
            rows = self._file.bits(f"{info.name}.rows", (first, 0), (count, info.dim))
            states = None
            if info.state_len:
                states = numpy.empty((count, info.state_len), "<f4")
                self._file.read_into(f"{info.name}.states", states, (first, 0))
            yield ids, rows.view(_NUMPY[info.dtype]), states


def _chosen(function: str, cut: Cut | _Exported, names: Collection[str] | None) -> list[int]:
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
        said = {"bias_correction": "table", **config["optimizer"]}  # older cuts do not say it
        numbers = {field.name: said[field.name] for field in fields(kind)}
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
            f"load: the states of {info.name!r} there have {info.state_len} floats; those of "
            f"{made.NAME} have {made.state_width(info.dim)}"
        )
    limits = {name: config.get(name) or None for name in _LIFETIME if train}
    return Table(
        info.dim, made, first, dtype=info.dtype, seed=seed, num_ids=most, non_finite=allow, **limits
    )


_LIFETIME = ("admit_after", "expire_after", "max_rows")


class _Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Callable[[Any], None]
    """Writes the elements into a NumPy array; for bfloat16 into one of their bits."""


_NUMPY = {"int64": "<i8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}


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


def _safetensors(path: Path, cut: Cut, tensors: list[_Tensor], bar: Bar) -> None:
    numpy = import_module("numpy")
    configs = {f"config.{table.name}": json.dumps(table.config) for table in cut.tables}
    for table in cut.tables:  # what a config does not have, for load
        more = {"steps": table.steps, "learning_rate": table.learning_rate}
        configs[f"table.{table.name}"] = json.dumps(more)
    wholes = {one.name: layout.Whole(BY_NAME[one.dtype], one.shape) for one in tensors}
    file = layout.laid_out(wholes, {"step": str(cut.step), **configs})
    with open(path, "r+b") as opened:
        opened.write(file.head)
        opened.flush()
        # A full disk is an error here, and a crash where a page of the mapping is written.
        os.posix_fallocate(opened.fileno(), 0, file.size)
    by_name = {tensor.name: tensor for tensor in tensors}
    for name, offset in file.begins.items():
        tensor = by_name[name]
        if math.prod(tensor.shape):
            tensor.fill(numpy.memmap(path, _NUMPY[tensor.dtype], "r+", offset, tensor.shape))
        bar.add(wholes[name].nbytes)


def _archive(path: Path, cut: Cut, tensors: list[_Tensor], bar: Bar) -> None:
    lib = import_module("numpy.lib.format")
    with zipfile.ZipFile(path, "w") as archive:
        for tensor in tensors:
            array = _filled(tensor)
            bar.add(array.nbytes)
            if tensor.dtype == "bfloat16":
                array = _widened(tensor.dtype, array)
            with archive.open(f"{tensor.name}.npy", "w", force_zip64=True) as file:
                lib.write_array(file, array, allow_pickle=False)


def _paddle(path: Path, cut: Cut, tensors: list[_Tensor], bar: Bar) -> None:
    state: dict[str, Any] = {}
    for tensor in tensors:
        state[tensor.name] = _filled(tensor)
        bar.add(state[tensor.name].nbytes)
    # paddle.load makes tensors of the arrays that this table names, of uint16 those of bfloat16.
    state["StructuredToParameterName@@"] = {name: name for name in state}
    with open(path, "wb") as file:
        pickle.dump(state, file, protocol=4)


_FORMATS = {"safetensors": _safetensors, "numpy": _archive, "paddle": _paddle}
