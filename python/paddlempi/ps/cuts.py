"""Cuts of the tables of servers, read with NumPy alone. ``docs/ps-checkpoint.md`` has the format.

What is in the files is not trusted. Lengths and counts are compared with those of the file before
memory is taken for them, and every byte that is used is under a checksum.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from .. import _log
from ..errors import ArgumentError

__all__ = ["Cut", "CutTable", "cuts_of", "newest", "open_cut", "warn_of_skipped"]

_PLAIN, _STAMPED = 1, 2
"""The formats: the second is that of a cut with a table that has stamps."""
_MAGIC = b"PMPIPART"
_HEADER, _ENTRY = 32, 16
_MOST_MANIFEST, _MOST_CHUNK = 64 << 20, 16 << 20
_MOST = 1 << 16  # servers, tables, elements of a row
_MOST_SKETCH = 256 << 20
_OF_SKETCH = 1 << 31
"""Is added to the number of the table of a piece of a sketch."""
_ITEM = {"float32": ("<f4", 4), "float16": ("<f2", 2), "bfloat16": ("<u2", 2)}
"""NumPy's dtype of an element, and its bytes. NumPy has no bfloat16: its bits are integers."""


class CutTable(NamedTuple):
    """What a cut has of one table."""

    name: str
    dtype: str
    dim: int
    state_len: int
    """Floats of the state of a row."""
    steps: int
    """The greatest step of a push."""
    rows: int
    config: dict[str, Any]
    learning_rate: float | None
    """That which was set instead of the config's. None: none was."""
    stamps: bool = False
    """Whether chunks have the last use of each row, and parts may have a sketch."""

    @property
    def numpy_dtype(self) -> str:
        """NumPy's dtype of an element; that of the bits for bfloat16."""
        return _ITEM[self.dtype][0]

    def layout(self, rows: Any) -> tuple[Any, Any, Any]:
        """Return where rows and states of a chunk begin, and the bytes of the chunk."""
        begin = 8 * rows
        states = begin + (rows * self.dim * _ITEM[self.dtype][1] + 7) // 8 * 8
        return begin, states, self.uses(rows) + (8 * rows if self.stamps else 0)

    def nbytes(self, states: bool) -> int:
        """Return the bytes of all rows, and with ``states`` of the optimizer's states too."""
        return self.rows * (self.dim * _ITEM[self.dtype][1] + states * 4 * self.state_len)

    def uses(self, rows: Any) -> Any:
        """Return where the last uses of the rows of a chunk begin, or would."""
        begin = 8 * rows + (rows * self.dim * _ITEM[self.dtype][1] + 7) // 8 * 8
        return begin + (rows * self.state_len * 4 + 7) // 8 * 8


class _Part(NamedTuple):
    path: Path
    size: int
    chunks: int
    crc: int
    rows: list[int]  # of each table
    version: int
    """How many updates the server had applied; 0 also if it was not noted."""


class _Damaged(Exception):
    """Says what is wrong with a file."""


class Cut:
    """A whole cut.

    Attributes:
        step: the step whose values it has.
        folder: where it lies.
        tables: what it has of each table, in the order of their names.
        extra: bytes that the servers have put into it.
        serial: counts the cuts of the directory, in the order in which they became complete.
        versions: how many updates each server had applied.
    """

    def __init__(self, folder: Path, step: int) -> None:
        self.folder = folder
        self._indexes: dict[int, tuple[Any, Any]] = {}
        try:
            manifest = _manifest(folder / "manifest.json")
            self.step = _whole(manifest, "step", 0)
            if self.step != step:
                raise _Damaged(f"its manifest is of step {self.step}")
            self.serial = _relation(manifest).serial
            self.tables = [_table(one) for one in _list(manifest, "tables")]
            names = [table.name for table in self.tables]
            if names != sorted(set(names)):
                raise _Damaged("its tables are not in the order of their names")
            self._format = manifest["format"]
            stamped = any(table.stamps for table in self.tables)
            if self._format != (_STAMPED if stamped else _PLAIN):
                raise _Damaged(f"its tables are not those of format {self._format}")
            self.extra = base64.b64decode(manifest.get("extra") or "", validate=True)
            self._parts = [self._part(one) for one in _list(manifest, "parts")]
            self.versions = [part.version for part in self._parts]
            for number, table in enumerate(self.tables):
                rows = sum(part.rows[number] for part in self._parts)
                if rows != table.rows:
                    raise _Damaged(f"its parts have {rows} rows of {table.name!r}: {table.rows}")
        except (_Damaged, OSError, ValueError, RecursionError) as error:
            raise ArgumentError(f"{folder} is no whole cut: {error}") from None

    def _part(self, given: Any) -> _Part:
        name = given.get("file") if isinstance(given, dict) else None
        if not isinstance(name, str) or not re.fullmatch(r"part-\d{5}-of-\d{5}-[0-9a-f]{16}", name):
            raise _Damaged(f"its manifest names a part {name!r:.80}")
        size = _whole(given, "bytes", _HEADER)
        part = _Part(
            self.folder / name,
            size,
            _whole(given, "chunks", 0, (size - _HEADER) // _ENTRY),
            _whole(given, "crc32", 0, (1 << 32) - 1),
            _list(given, "rows"),
            _whole({"version": 0, **given}, "version", 0),
        )
        there = _size(part.path)
        if there != size:
            raise _Damaged(f"{name} has {there} bytes; it was written with {size}")
        if len(part.rows) != len(self.tables):
            raise _Damaged(f"its manifest has no rows of {len(self.tables)} tables for {name}")
        for table, rows in zip(self.tables, part.rows, strict=True):
            if type(rows) is not int or rows < 0 or table.layout(rows)[2] > size:
                raise _Damaged(f"{name} has {size} bytes, and {rows!r:.40} rows of {table.name!r}")
        return part

    def verify(self) -> None:
        """Read all of it, and compare the checksums.

        Raises:
            ArgumentError: a file is damaged.
            OSError: a file cannot be read.
        """
        for table in range(len(self.tables)):
            for _ in self.chunks(table):
                pass
            self.sketches(table)

    def chunks(self, table: int, *, values: bool = True) -> Iterator[tuple[Any, Any, Any]]:
        """Yield the rows of a table in pieces: ids, rows, states, as NumPy arrays.

        Rows are of ``numpy_dtype``. Without ``values`` rows and states are not read and are None.

        Raises:
            ArgumentError: a file is damaged.
            OSError: a file cannot be read.
        """
        for ids, rows, states, _ in self._chunks(table, values):
            yield ids, rows, states

    def stamps(self, table: int) -> Iterator[tuple[Any, Any]]:
        """Yield the ids and the last uses of the rows of a table that has stamps, in pieces.

        Raises:
            ArgumentError: a file is damaged.
            OSError: a file cannot be read.
        """
        for ids, _, _, stamps in self._chunks(table, values=True):
            yield ids, stamps

    def sketches(self, table: int) -> list[bytes]:
        """Return the counts of ids of a table without a row, of each part that has some.

        Raises:
            ArgumentError: a file is damaged.
            OSError: a file cannot be read.
        """
        numpy = import_module("numpy")
        found = []
        for server, part in enumerate(self._parts):
            sketch = bytearray()
            try:
                with open(part.path, "rb") as file:
                    entries, offsets = self._index(file, server, part)
                    mine = entries[:, 0] == table + _OF_SKETCH
                    for entry, offset in zip(entries[mine], offsets[mine].tolist(), strict=True):
                        piece = numpy.empty((int(entry[1]) + 7) // 8 * 8, "u1")
                        file.seek(offset)
                        _read(file, piece)
                        if zlib.crc32(piece) != entry[2]:
                            raise _Damaged(f"the checksum of the sketch at {offset} is wrong")
                        if len(sketch) + int(entry[1]) > _MOST_SKETCH:
                            raise _Damaged(f"a sketch has more than {_MOST_SKETCH} bytes")
                        sketch += piece[: int(entry[1])].tobytes()
            except _Damaged as error:
                raise ArgumentError(f"{part.path} is damaged: {error}") from None
            if sketch:
                found.append(bytes(sketch))
        return found

    def _chunks(self, table: int, values: bool) -> Iterator[tuple[Any, Any, Any, Any]]:
        for server, part in enumerate(self._parts):
            try:
                yield from self._of_part(server, part, table, values)
            except _Damaged as error:
                raise ArgumentError(f"{part.path} is damaged: {error}") from None

    def _of_part(
        self, server: int, part: _Part, number: int, values: bool
    ) -> Iterator[tuple[Any, Any, Any, Any]]:
        table = self.tables[number]
        numpy = import_module("numpy")
        with open(part.path, "rb") as file:
            entries, offsets = self._index(file, server, part)
            mine = numpy.flatnonzero(entries[:, 0] == number)
            for entry, offset in zip(entries[mine].tolist(), offsets[mine].tolist(), strict=True):
                count = entry[1]
                at_rows, at_states, size = table.layout(count)
                chunk = numpy.empty(size if values else at_rows, "u1")
                file.seek(offset)
                _read(file, chunk)
                if zlib.crc32(chunk[:at_rows]) != entry[2]:
                    raise _Damaged(f"the checksum of the ids at byte {offset} is wrong")
                ids = chunk[:at_rows].view("<i8")
                if not values:
                    yield ids, None, None, None
                    continue
                if zlib.crc32(chunk[at_rows:]) != entry[3]:
                    raise _Damaged(f"the checksum of the rows at byte {offset} is wrong")
                width = _ITEM[table.dtype][1] * table.dim * count
                rows = chunk[at_rows : at_rows + width].view(table.numpy_dtype)
                states = chunk[at_states : at_states + 4 * table.state_len * count].view("<f4")
                stamps = chunk[table.uses(count) :].view("<i8")
                states = states.reshape(count, table.state_len)
                yield ids, rows.reshape(count, table.dim), states, stamps

    def _index(self, file: BinaryIO, server: int, part: _Part) -> tuple[Any, Any]:
        """Return the entries of the index of a part, and where their chunks begin."""
        if os.fstat(file.fileno()).st_size != part.size:
            raise _Damaged(f"it does not have {part.size} bytes any more")
        if server not in self._indexes:  # once, and not for each of many tables
            self._indexes[server] = self._read_index(file, server, part)
        return self._indexes[server]

    def _read_index(self, file: BinaryIO, server: int, part: _Part) -> tuple[Any, Any]:
        numpy = import_module("numpy")
        header = numpy.empty(_HEADER, "u1")
        _read(file, header)
        words = (self._format, server, len(self._parts), 0)
        beginning = _MAGIC + b"".join(word.to_bytes(4, "little") for word in words)
        if header.tobytes() != beginning + self.step.to_bytes(8, "little"):
            raise _Damaged(f"it does not begin as part {server} of step {self.step}")
        index = numpy.empty((part.chunks, 4), "<u4")
        file.seek(part.size - _ENTRY * part.chunks)
        _read(file, index)
        if zlib.crc32(index) != part.crc:
            raise _Damaged("the checksum of its index is wrong")
        sizes = numpy.zeros(part.chunks, "i8")
        order = index[:, 0].argsort(kind="stable")
        ends = index[order, 0].searchsorted(numpy.arange(len(self.tables)), side="right")
        for number, table in enumerate(self.tables):
            if table.stamps:
                pieces = (index[:, 0] == number + _OF_SKETCH) & (index[:, 3] == 0)
                sizes[pieces] = (index[pieces, 1].astype("i8") + 7) // 8 * 8
            of_table = order[ends[number - 1] if number else 0 : ends[number]]
            counts = index[of_table, 1].astype("i8")
            sizes[of_table] = table.layout(counts)[2]
            if counts.sum() != part.rows[number]:
                raise _Damaged(
                    f"its chunks have {counts.sum()} rows of table {table.name!r}; the manifest "
                    f"says {part.rows[number]}"
                )
        if ((index[:, 1] == 0) | (sizes == 0) | (sizes > _MOST_CHUNK)).any():
            raise _Damaged("a chunk is of no table, or has no rows, or too many")
        if _HEADER + sizes.sum() + _ENTRY * part.chunks != part.size:
            raise _Damaged(f"its chunks have {sizes.sum()} bytes of {part.size}")
        return index, _HEADER + sizes.cumsum() - sizes


def open_cut(directory: str | os.PathLike[str], step: int | None = None) -> Cut:
    """Open the cut of a step, or the newest one.

    Args:
        directory: what the servers saved into.
        step: None: the greatest step of a cut that is whole: it is read once, and its checksums are
            compared. A warning says which newer ones are not.

    Raises:
        ArgumentError: there is no such cut, or it is not whole.
    """
    root = Path(directory)
    if step is not None:
        if type(step) is not int or step < 0:
            raise ArgumentError(f"step={step!r} is not a number from 0 up")
        return Cut(root / f"cut-{step:08d}", step)
    cut, wrong = _newest(root, read=True)
    if cut is None:
        why = f"; the newest: {wrong[0]}" if wrong else ""
        raise ArgumentError(f"{root} has no whole cut{why}")
    warn_of_skipped("paddlempi.ps", cut.step, wrong, above=3)
    return cut


def cuts_of(directory: str | os.PathLike[str]) -> list[Cut]:
    """Return the cuts of a directory whose files have their sizes, the greatest step first.

    Those that are superseded are left out.
    """
    return list(_whole_cuts(Path(directory), []))


def newest(directory: str | os.PathLike[str]) -> int | None:
    """Return the step of the newest whole cut; None if there is no complete one.

    Raises:
        ArgumentError: there are complete cuts, and none is whole.
    """
    cut, wrong = _newest(Path(directory), read=False)
    if cut is None and wrong:
        raise ArgumentError(
            f"of {len(wrong)} complete cuts in {directory} none is whole; the newest: {wrong[0]}"
        )
    return None if cut is None else cut.step


def _newest(root: Path, *, read: bool) -> tuple[Cut | None, list[str]]:
    """Return the whole cut of the greatest step, and what is wrong with greater ones.

    Without ``read`` a cut is whole if its files have their sizes. Cuts that are superseded do not
    count.
    """
    wrong: list[str] = []
    for cut in _whole_cuts(root, wrong):
        try:
            if read:
                cut.verify()
        except (ArgumentError, OSError) as error:
            wrong.append(str(error))
            continue
        return cut, wrong
    return None, wrong


def _whole_cuts(root: Path, wrong: list[str]) -> Iterator[Cut]:
    """Yield cuts by descending steps; ``wrong`` gets what is the matter with others."""
    steps = []
    if root.is_dir():
        for path in root.iterdir():
            name = re.fullmatch(r"cut-(\d{8,19})", path.name)
            if name and (path / "manifest.json").exists():
                steps.append((int(name[1]), path))
    behind = _superseded([path for _, path in steps])
    for step, path in sorted(steps, reverse=True):
        if path in behind:
            continue
        try:
            cut = Cut(path, step)
        except (ArgumentError, OSError) as error:
            wrong.append(str(error))
            continue
        yield cut


def _superseded(folders: list[Path]) -> set[Path]:
    """Return the cuts that the latest one supersedes: its job had gone back behind them."""
    relations = {}
    for folder in folders:
        try:
            relations[folder] = _relation(_manifest(folder / "manifest.json"))
        except (_Damaged, OSError, ValueError, RecursionError):
            continue
    if not relations:
        return set()
    latest = max(relations.values(), key=lambda one: (one.serial, one.step))
    return {
        folder for folder, one in relations.items() if (one.step, one.serial) in latest.supersedes
    }


class _Relation(NamedTuple):
    step: int
    serial: int
    """Counts the cuts of a directory in the order in which they became complete, from 0."""
    supersedes: set[tuple[int, int]]
    """Steps and serial numbers."""


def _relation(manifest: dict[str, Any]) -> _Relation:
    """Return what a manifest says of others."""
    given = {"serial": 0, "supersedes": [], **manifest}
    supersedes = set()
    for one in _list(given, "supersedes"):
        if not isinstance(one, dict):
            raise _Damaged(f"its manifest supersedes {one!r:.40}")
        supersedes.add((_whole(one, "step", 0), _whole(one, "serial", 0)))
    return _Relation(_whole(given, "step", 0), _whole(given, "serial", 0), supersedes)


def warn_of_skipped(what: str, step: int, reasons: Sequence[str], *, above: int) -> None:
    """Warn that newer cuts than that of ``step`` are not whole, if there are any.

    The warning is that of the line which is ``above`` this function by so many calls.
    """
    if reasons:
        _log.warn(
            f"{what}: takes the cut of step {step}, because newer ones are damaged: "
            + "; ".join(reasons),
            stacklevel=above + 1,
        )


def _manifest(path: Path) -> dict[str, Any]:
    _size(path)
    with open(path, "rb") as file:
        text = file.read(_MOST_MANIFEST + 1)
    found = re.fullmatch(rb'\{"crc32":"([0-9a-f]{8})","manifest":(.*)\}\n', text, re.DOTALL)
    if len(text) > _MOST_MANIFEST or not found:
        raise _Damaged("its manifest is cut off or too long")
    if zlib.crc32(found[2]) != int(found[1], 16):
        raise _Damaged("the checksum of its manifest is wrong")
    manifest = json.loads(found[2])
    if not isinstance(manifest, dict) or manifest.get("format") not in (_PLAIN, _STAMPED):
        raise _Damaged(f"its manifest is none of format {_PLAIN} or {_STAMPED}")
    return manifest


def _size(path: Path) -> int:
    """Return the bytes of a file. To open a pipe would wait for whoever writes into it."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _Damaged(f"{path} is no regular file")
    return status.st_size


def _table(given: Any) -> CutTable:
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise _Damaged("its manifest has a table without a name")
    if given.get("dtype") not in _ITEM or not isinstance(given.get("config"), dict):
        raise _Damaged(f"its table {given['name']!r:.80} has no dtype of a row, or no config")
    rate = given.get("learning_rate")
    if rate is not None and not (type(rate) in (int, float) and 0 <= rate < math.inf):
        raise _Damaged(f"its table {given['name']!r:.80} has the learning rate {rate!r:.40}")
    stamps = given.get("stamps", False)
    if not isinstance(stamps, bool):
        raise _Damaged(f"its table {given['name']!r:.80} has stamps={stamps!r:.40}")
    return CutTable(
        given["name"],
        given["dtype"],
        _whole(given, "dim", 1, _MOST),
        _whole(given, "state_len", 0, 4 * _MOST),
        _whole(given, "steps", 0),
        _whole(given, "rows", 0),
        given["config"],
        rate,
        stamps,
    )


def _whole(given: dict[str, Any], name: str, least: int, most: int = (1 << 63) - 1) -> int:
    value = given.get(name)
    if type(value) is not int or not least <= value <= most:
        raise _Damaged(f"its manifest says {name}={value!r:.40}")
    return value


def _list(given: dict[str, Any], name: str) -> list[Any]:
    value = given.get(name)
    if not isinstance(value, list) or len(value) > _MOST:
        raise _Damaged(f"its manifest has no list of {name}")
    return value


def _read(file: BinaryIO, into: Any) -> None:
    if into.nbytes and file.readinto(into.reshape(-1).view("u1")) != into.nbytes:  # type: ignore[attr-defined]
        raise _Damaged(f"{into.nbytes} bytes cannot be read")
