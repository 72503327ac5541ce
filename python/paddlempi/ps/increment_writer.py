"""The difference of two exports, as an increment: a file that makes the newer one of the older one.

It has the rows whose bytes differ, the rows that are new, and the ids that are gone. All tables are
read side by side, in the order of their ids, and in pieces. ``docs/ps-checkpoint.md`` has the
format.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from .._progress import Bytes
from ..errors import ArgumentError
from ..io import layout
from ..io.commit import Save
from ..io.dtypes import BY_NAME
from .cuts import CutTable
from .export_files import (
    INCREMENT,
    INCREMENT_FORMAT,
    Digests,
    Exported,
    Piece,
    aligned,
    ascending,
    canonical,
    empty_piece,
    places,
    same_table,
)

__all__ = ["write_difference"]


def write_difference(base: Exported, new: Exported, save: Save, bar: Bytes) -> None:
    """Write what makes ``new`` of ``base`` into the partial file of a save.

    Raises:
        ArgumentError: a file is damaged, or a table has become another one.
        OSError: a file cannot be read or written.
    """
    of_base, of_new = Digests(), Digests()
    before = {table.name: number for number, table in enumerate(base.tables)}
    with tempfile.TemporaryFile(dir=save.partial.parent) as file:
        spool = _Spool(file)
        for number, table in enumerate(new.tables):
            older = before.pop(table.name, None)
            if older is not None:
                same_table(new.what, base.tables[older], table)
            _difference_of_table(base, older, new, number, (of_base, of_new), spool)
            for part in new.parts(table):
                entry = new.file.entry(f"{table.name}.{part}")
                bar.add(entry.end - entry.begin)
        for number in before.values():  # they are gone: their digests say which base it was
            for _ in base.chunks(number, of_base):
                pass
        for name in base.others:
            for _ in base.flat(name, of_base):
                pass
        base.compare(of_base.done())
        for name in new.others:
            _difference_of_other(base, new, name, (of_base, of_new), spool)
        new.compare(of_new.done())
        said = {
            "format": INCREMENT_FORMAT,
            "base": {**base.label._asdict(), "sha256": of_base.done()},
            "result": {
                "rows": {table.name: table.rows for table in new.tables},
                "sha256": of_new.done(),
            },
        }
        spool.write(save.partial, {**new.metadata, INCREMENT: canonical(said)})


class _Spool:
    """Tensors whose lengths are not known before their end, in a file without a name."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._end = file, 0
        self._wholes: dict[str, layout.Whole] = {}
        self._pieces: dict[str, list[tuple[int, int]]] = {}
        self._digests = Digests()

    def add(self, name: str, dtype: str, array: Any) -> None:
        """Take the next elements of a tensor: they lie behind those before, in the first axis."""
        numpy = import_module("numpy")
        array = numpy.ascontiguousarray(array)
        before = self._wholes.get(name)
        count = array.shape[0] + (before.shape[0] if before else 0)
        self._wholes[name] = layout.Whole(BY_NAME[dtype], (count, *array.shape[1:]))
        self._append(name, array)

    def whole(self, name: str, whole: layout.Whole, pieces: Iterator[Any]) -> None:
        """Take a tensor."""
        if name in self._wholes:
            raise ArgumentError(f"export: two tensors would have the name {name!r}")
        self._wholes[name] = whole
        for data in pieces:
            self._append(name, data)

    def _append(self, name: str, array: Any) -> None:
        self._digests.add(name, array)
        if array.nbytes:
            self._file.write(array.reshape(-1).view("u1"))
        self._pieces.setdefault(name, []).append((self._end, array.nbytes))
        self._end += array.nbytes

    def write(self, path: Path, metadata: dict[str, str]) -> None:
        """Write all of them into a file that is there and empty."""
        self._file.flush()
        metadata = {**metadata, "sha256": canonical(self._digests.done())}
        file = layout.laid_out(self._wholes, metadata)
        with open(path, "r+b") as out:
            out.write(file.head)
            for name in file.begins:
                for begin, size in self._pieces[name]:
                    _copy(self._file, begin, size, out)


def _copy(source: BinaryIO, begin: int, size: int, out: BinaryIO) -> None:
    source.seek(begin)
    while size:
        data = source.read(min(size, 1 << 20))
        if not data:
            raise OSError("a temporary file has become shorter")
        out.write(data)
        size -= len(data)


def _difference_of_table(
    base: Exported,
    older: int | None,
    new: Exported,
    number: int,
    digests: tuple[Digests, Digests],
    spool: _Spool,
) -> None:
    numpy = import_module("numpy")
    table = new.tables[number]
    name, empty = table.name, empty_piece(table)
    before = iter([empty]) if older is None else base.chunks(older, digests[0])
    pairs = aligned(
        ascending(f"{new.what}: {base.folder}", name, before),
        ascending(f"{new.what}: {new.folder}", name, new.chunks(number, digests[1])),
        empty,
    )
    for was, now in pairs:
        at, there = places(now.ids, was.ids)
        same = there.copy()
        for one, two in ((was.rows, now.rows), (was.states, now.states)):
            # The bits: a NaN is no change of itself, and -0 is one of 0.
            bits = f"<u{one.dtype.itemsize}"
            same[there] &= (one.view(bits)[at[there]] == two.view(bits)[there]).all(1)
        changed = Piece(*(part[~same] for part in now))
        gone = was.ids[~places(was.ids, now.ids)[1]]
        _add_to(spool, table, changed, numpy.ascontiguousarray(gone))


def _add_to(spool: _Spool, table: CutTable, changed: Piece, gone: Any) -> None:
    spool.add(f"{table.name}.ids", "int64", changed.ids)
    spool.add(f"{table.name}.rows", table.dtype, changed.rows)
    spool.add(f"{table.name}.removed", "int64", gone)
    if table.state_len:
        spool.add(f"{table.name}.states", "float32", changed.states)


def _difference_of_other(
    base: Exported, new: Exported, name: str, digests: tuple[Digests, Digests], spool: _Spool
) -> None:
    """Put a dense parameter into the increment if it has changed."""
    entry = new.file.entry(name)
    for _ in new.flat(name, digests[1]):
        pass
    if name in base.others:
        was = base.file.entry(name)
        same = (was.dtype, was.shape) == (entry.dtype, entry.shape)
        if same and digests[0].of(name) == digests[1].of(name):
            return
    spool.whole(name, layout.Whole(entry.dtype, entry.shape), new.flat(name))
