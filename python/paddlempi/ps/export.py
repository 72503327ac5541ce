"""Tables of a cut for other programs: all of them, or what has changed since another cut.

::

    ps.export("saved", "model.safetensors")
    ps.export("saved", "from-40.safetensors", since=40)

It needs neither servers nor MPI. ``docs/ps-checkpoint.md`` has the formats.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from importlib import import_module
from operator import index
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

from .._progress import Bytes
from ..errors import ArgumentError, DtypeError
from ..io import layout
from ..io.commit import Names, Save
from ..io.dtypes import BY_NAME
from .cuts import Cut, cuts_of, open_cut
from .export_files import NUMPY, Exported, canonical, chosen_of, shape_of, widened
from .increment_writer import write_difference

__all__ = ["export"]


def export(
    directory: str | os.PathLike[str],
    to: str | os.PathLike[str],
    format: str = "safetensors",
    *,
    step: int | None = None,
    since: SupportsIndex | Sequence[int] | str | os.PathLike[str] | None = None,
    tables: Collection[str] | None = None,
    states: bool = False,
    progress: bool = False,
) -> int:
    """Write the tables of a cut into one file, or what has changed since another cut.

    A table ``user`` becomes ``user.ids``, int64, ascending, [rows], and ``user.rows``, in the same
    order, [rows, dim]; with ``states`` also ``user.states``, float32, [rows, floats of a state]. A
    dense parameter becomes one tensor with its name and its shape (several that lie in one vector,
    as with ``DistributedOptimizer(dense="server")``: one long tensor); its states are those of its
    blocks.

    With ``since`` the file is an increment: of each table the rows whose bytes are others than
    then, or which are new, and ``user.removed``, the ids that are gone, int64, ascending; of dense
    parameters those that have changed, whole. :func:`apply_increment` makes a new full export of
    an older one and of the increment; ``apply`` of the tables of :func:`load` takes it over in a
    process that serves. The same cuts give the same bytes.

    Args:
        directory: what the servers saved into.
        to: the file. One that is there is replaced when the new one is whole.
        format: "safetensors"; "numpy": an archive for ``numpy.load``; "paddle": for
            ``paddle.load``. NumPy has no bfloat16, so such rows are of float32 in its archive.
        step: of the cut. None: the newest one that is whole.
        since: None: everything. Else the base, of which this is the increment: the step of a cut of
            the directory; or the versions of a cut, a list of how many updates each server had
            applied; or the path of a full export, of which the cut may be gone. It may be older or
            newer, and of another number of servers.
        tables: the names of the tables. None: all.
        states: whether to write the states of the optimizers. The base is one with the same.
        progress: show on stderr how many bytes are written.

    Returns:
        The step of the cut.

    Raises:
        DtypeError: ``since`` is none of these.
        ArgumentError: there is no such cut, base, table or format; a table of the base has another
            dim, dtype, optimizer, initializer or seed now; or a file is damaged.
        OSError: a file cannot be read or written.

    Memory: 8 bytes for each row; numpy: also the largest table; paddle: also all tables. With
    ``since`` nameless files beside ``to`` take the bytes of a full export of both cuts, or of one
    if the base is a file.
    """
    if format not in _FORMATS:
        raise ArgumentError(f"export: format={format!r} is none of {', '.join(_FORMATS)}")
    if since is not None and format != "safetensors":
        raise ArgumentError(f"export: since= writes format='safetensors', and not {format!r}")
    cut = open_cut(directory, step)
    tensors = _tensors_of(cut, chosen_of("export", cut, tables), states)
    base = None if since is None else _base(directory, since)
    save = Save("export", Names(to, plain=True), None)
    try:
        total = _bytes(tensors)
        if base is None:
            with Bytes("export", total, progress) as bar:
                _FORMATS[format](save.partial, cut, tensors, bar)
        else:
            of_base = None
            if isinstance(base, Cut):
                named = {table.name for table in base.tables}
                chosen = chosen_of("export", base, tables and [n for n in tables if n in named])
                of_base = _tensors_of(base, chosen, states)
            with Bytes("export", 2 * total + _bytes(of_base or []), progress) as bar:
                _increment(save, cut, tensors, base, of_base, bar)
        save.commit()
    except FileNotFoundError as error:
        for one in (cut, base):
            if isinstance(one, Cut) and not (one.folder / "manifest.json").exists():
                raise ArgumentError(
                    f"export: {one.folder} was removed while it was read: keep more cuts "
                    "(ps.save(keep=))"
                ) from error
        raise
    finally:
        save.abandon()
    return cut.step


def _base(
    directory: str | os.PathLike[str], since: SupportsIndex | Sequence[int] | str | os.PathLike[str]
) -> Cut | Path:
    """Return what an increment is the difference of: a cut, or the path of an export."""
    if isinstance(since, str | os.PathLike):
        if not Path(since).is_file():
            raise ArgumentError(f"export: since={os.fspath(since)!r}: there is no such file")
        return Path(since)
    what = "cut of step"
    sought: Any = since
    if isinstance(since, bool) or not isinstance(since, Sequence | SupportsIndex):
        raise DtypeError(f"export: since={since!r} is no step, no list of versions and no path")
    if isinstance(since, SupportsIndex):
        sought = index(since)
        if (Path(directory) / f"cut-{sought:08d}").is_dir():
            return open_cut(directory, sought)
    else:
        what, sought = "cut with versions", list[Any](since)
    there = cuts_of(directory)
    for cut in there:
        if cut.versions == sought:
            return cut
    some = ", ".join(f"{cut.step} with versions {cut.versions}" for cut in there[:8])
    raise ArgumentError(
        f"export: since={sought}: there is no {what} {sought} in {directory}; there are {some}. "
        "Have ps.save(keep=) keep it, or give the path of a full export of it"
    )


def _increment(
    save: Save,
    cut: Cut,
    tensors: list[_Tensor],
    base: Cut | Path,
    of_base: list[_Tensor] | None,
    bar: Bytes,
) -> None:
    from ..io.reader import OpenFile  # needs NumPy

    folder = save.partial.parent
    with ExitStack() as stack:
        if isinstance(base, Cut):
            older = stack.enter_context(_unnamed(folder, base, of_base or [], bar))
        else:
            opened = stack.enter_context(OpenFile(Names(base, plain=True), "numpy"))
            older = Exported("export", opened, base)
        write_difference(older, stack.enter_context(_unnamed(folder, cut, tensors, bar)), save, bar)


@contextmanager
def _unnamed(folder: Path, cut: Cut, tensors: list[_Tensor], bar: Bytes) -> Iterator[Exported]:
    """Export a cut into a file without a name, of which nothing stays when this process ends."""
    from ..io.reader import OpenFile  # needs NumPy

    with tempfile.TemporaryFile(dir=folder) as file:
        path = Path(f"/proc/self/fd/{file.fileno()}")
        _safetensors(path, cut, tensors, bar)
        with OpenFile(Names(path, plain=True), "numpy") as opened:
            yield Exported("export", opened, cut.folder)


def _tensors_of(cut: Cut, chosen: list[int], states: bool) -> list[_Tensor]:
    tensors = [one for number in chosen for one in _tensors(_Rows(cut, number), states)]
    names = set()
    for tensor in tensors:
        if tensor.name in names:
            raise ArgumentError(f"export: two tensors would have the name {tensor.name!r}")
        names.add(tensor.name)
    return tensors


def _bytes(tensors: list[_Tensor]) -> int:
    return sum(math.prod(one.shape) * BY_NAME[one.dtype].bits // 8 for one in tensors)


class _Tensor(NamedTuple):
    name: str
    dtype: str
    shape: tuple[int, ...]
    fill: Callable[[Any], None]
    """Writes the elements into a NumPy array; for bfloat16 into one of their bits."""


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


def _tensors(rows: _Rows, states: bool) -> list[_Tensor]:
    info = rows.info
    shape = shape_of(info)
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


def _filled(tensor: _Tensor) -> Any:
    array = import_module("numpy").empty(tensor.shape, NUMPY[tensor.dtype])
    tensor.fill(array)
    return array


def _safetensors(path: Path, cut: Cut, tensors: list[_Tensor], bar: Bytes) -> None:
    numpy = import_module("numpy")
    metadata = _metadata(cut)
    wholes = {one.name: layout.Whole(BY_NAME[one.dtype], one.shape) for one in tensors}
    digests = dict.fromkeys(wholes, "0" * 64)  # as long as those that are not known yet
    file = layout.laid_out(wholes, metadata | {"sha256": canonical(digests)})
    with open(path, "r+b") as opened:
        opened.write(file.head)
        opened.flush()
        # A full disk is an error here, and a crash where a page of the mapping is written.
        os.posix_fallocate(opened.fileno(), 0, file.size)
    by_name = {tensor.name: tensor for tensor in tensors}
    for name, offset in file.begins.items():
        tensor, digest = by_name[name], hashlib.sha256()
        if math.prod(tensor.shape):
            array = numpy.memmap(path, NUMPY[tensor.dtype], "r+", offset, tensor.shape)
            tensor.fill(array)
            digest.update(array.reshape(-1).view("u1"))
        digests[name] = digest.hexdigest()
        bar.add(wholes[name].nbytes)
    with open(path, "r+b") as opened:
        opened.write(layout.laid_out(wholes, metadata | {"sha256": canonical(digests)}).head)


def _metadata(cut: Cut) -> dict[str, str]:
    """Return what a file says of its cut. It is the same whenever it is written."""
    metadata = {
        "step": str(cut.step),
        "serial": str(cut.serial),
        "versions": canonical(cut.versions),
    }
    for table in cut.tables:
        more = {"steps": table.steps, "learning_rate": table.learning_rate}  # for load
        metadata[f"config.{table.name}"] = canonical(table.config)
        metadata[f"table.{table.name}"] = canonical(more)
    return metadata


def _archive(path: Path, cut: Cut, tensors: list[_Tensor], bar: Bytes) -> None:
    lib = import_module("numpy.lib.format")
    with zipfile.ZipFile(path, "w") as archive:
        for tensor in tensors:
            array = _filled(tensor)
            bar.add(array.nbytes)
            if tensor.dtype == "bfloat16":
                array = widened(tensor.dtype, array)
            with archive.open(f"{tensor.name}.npy", "w", force_zip64=True) as file:
                lib.write_array(file, array, allow_pickle=False)


def _paddle(path: Path, cut: Cut, tensors: list[_Tensor], bar: Bytes) -> None:
    state: dict[str, Any] = {}
    for tensor in tensors:
        state[tensor.name] = _filled(tensor)
        bar.add(state[tensor.name].nbytes)
    # paddle.load makes tensors of the arrays that this table names, of uint16 those of bfloat16.
    state["StructuredToParameterName@@"] = {name: name for name in state}
    with open(path, "wb") as file:
        pickle.dump(state, file, protocol=4)


_FORMATS = {"safetensors": _safetensors, "numpy": _archive, "paddle": _paddle}
