"""Files of :func:`paddlempi.ps.export`: what they say of themselves, and their tables in pieces.

What is in a file is not trusted.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ArgumentError
from .cuts import Cut, CutTable

if TYPE_CHECKING:
    from ..io.reader import OpenFile

__all__ = [
    "INCREMENT",
    "INCREMENT_FORMAT",
    "NUMPY",
    "Digests",
    "Exported",
    "Label",
    "Piece",
    "aligned",
    "ascending",
    "canonical",
    "chosen_of",
    "digests_of",
    "empty_piece",
    "places",
    "same_table",
    "shape_of",
    "widened",
]

INCREMENT = "increment"
"""In the metadata of an increment: what it is the difference of."""
INCREMENT_FORMAT = 1

NUMPY = {"int64": "<i8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
"""NumPy's dtype of an element; that of its bits for bfloat16."""

_PIECE = 4 << 20  # bytes of rows that are read at once, and at most so many rows:
_ROWS = 1 << 16


class Label(NamedTuple):
    """Which cut something is of. None: the file does not say it."""

    step: int | None
    serial: int | None
    """Counts the cuts of a directory: two of one step differ in it."""

    def __str__(self) -> str:
        return f"step {self.step} (serial {self.serial})"


class Piece(NamedTuple):
    """Some rows of a table: arrays of NumPy."""

    ids: Any
    rows: Any
    """[n, dim], in the dtype of the table; of bfloat16 the bits."""
    states: Any
    """[n, floats of a state]"""


def canonical(value: Any) -> str:
    """Return the one JSON text of a value that we write."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


class Digests:
    """The SHA-256 of tensors whose bytes come in their order, piece by piece."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}

    def add(self, name: str, array: Any) -> None:
        """Take the next elements of a tensor; a tensor without elements needs one call too."""
        of = self._sums.setdefault(name, hashlib.sha256())
        if array.size:
            of.update(array.reshape(-1).view("u1"))

    def of(self, name: str) -> str:
        """Return the digest of one tensor."""
        digest: str = self._sums[name].hexdigest()
        return digest

    def done(self) -> dict[str, str]:
        """Return the digests by name, in hexadecimal digits."""
        return {name: self.of(name) for name in self._sums}


class Exported:
    """A file that :func:`paddlempi.ps.export` has written, with tables as a ``Cut`` has them.

    Attributes:
        folder: its path.
        label: which cut it is of.
        tables: its tables.
        others: the names of all other tensors: dense parameters, and their states.
        digests: the SHA-256 of each tensor, as the file says; empty: it does not.
        metadata: all that it says.
    """

    def __init__(self, what: str, file: OpenFile, path: Path) -> None:
        self.what, self.folder, self.file = what, path, file
        self.metadata = metadata = file.metadata() or {}
        if type(self) is Exported and INCREMENT in metadata:
            raise ArgumentError(
                f"{what}: {path} is an increment, and no full export: ps.apply_increment makes "
                "one of it and of its base"
            )
        self.label = Label(*(_whole(metadata.get(key)) for key in ("step", "serial")))
        self.digests = digests_of(self._json("sha256", {}), f"{what}: {path}")
        self.tables = [
            self._table(name)
            for name in sorted(key.removeprefix("config.") for key in metadata)
            if f"config.{name}" in metadata and f"{name}.rows" in file and not self._is_dense(name)
        ]
        own = {f"{table.name}.{what}" for table in self.tables for what in self.parts(table)}
        self.others = [name for name in sorted(file.keys()) if name not in own]

    @staticmethod
    def parts(table: CutTable) -> list[str]:
        """Return what follows the name of a table in those of its tensors."""
        return ["ids", "rows", *(["states"] if table.state_len else [])]

    def _json(self, key: str, otherwise: Any = None) -> Any:
        if key not in self.metadata:
            return otherwise
        try:
            return json.loads(self.metadata[key])
        except (ValueError, RecursionError):
            raise ArgumentError(f"{self.what}: {self.folder}: its {key} is no JSON") from None

    def _is_dense(self, name: str) -> bool:
        config = self._json(f"config.{name}")
        return isinstance(config, dict) and config.get("kind") == "dense"

    def _table(self, name: str) -> CutTable:
        config, more = self._json(f"config.{name}"), self._json(f"table.{name}")
        try:
            steps, rate = int(more["steps"]), more["learning_rate"]
            rate = None if rate is None else float(rate)
        except (ValueError, KeyError, TypeError, OverflowError):
            config, steps, rate = None, -1, None
        file, states = self.file, f"{name}.states"
        rows, ids = file.entry(f"{name}.rows"), file.entry(f"{name}.ids")
        of_states = file.entry(states) if states in file else None
        width = of_states.shape[1:] if of_states else (0,)
        if (
            not isinstance(config, dict)
            or not 0 <= steps < 1 << 63
            or len(rows.shape) != 2
            or ids.shape != rows.shape[:1]
            or ids.dtype.name != "int64"
            or rows.dtype.name not in list(NUMPY)[1:]
            or len(width) != 1
            or (of_states and (of_states.shape[:1], of_states.dtype.name) != (ids.shape, "float32"))
        ):
            raise ArgumentError(
                f"{self.what}: {self.folder} has no table {name!r} as export writes it"
            )
        dim, count = rows.shape[1], ids.shape[0]
        return CutTable(name, rows.dtype.name, dim, width[0], steps, count, config, rate)

    def chunks(
        self, number: int, digests: Digests | None = None, *, states: bool = True
    ) -> Iterator[Piece]:
        """Yield the rows of a table in pieces, in the order of the file.

        ``digests`` gets their bytes. A table without rows is one piece. Without ``states`` they are
        not read.
        """
        numpy = import_module("numpy")
        info = self.tables[number]
        width = info.dim * numpy.dtype(NUMPY[info.dtype]).itemsize + 4 * info.state_len
        most = max(1, min(_ROWS, _PIECE // max(width, 1)))
        for first in range(0, max(info.rows, 1), most):
            count = min(most, info.rows - first)
            ids = self._part(f"{info.name}.ids", first, (count,), "int64")
            rows = self._part(f"{info.name}.rows", first, (count, info.dim), info.dtype)
            of_states = numpy.empty((count, 0), "<f4")
            if states and info.state_len:
                shape = (count, info.state_len)
                of_states = self._part(f"{info.name}.states", first, shape, "float32")
            piece = Piece(ids, rows, of_states)
            if digests is not None:
                for part in self.parts(info) if states else ["ids", "rows"]:
                    digests.add(f"{info.name}.{part}", getattr(piece, part))
            yield piece

    def _part(self, name: str, first: int, shape: tuple[int, ...], dtype: str) -> Any:
        if not math.prod(shape):
            return import_module("numpy").empty(shape, NUMPY[dtype])
        bits = self.file.bits(name, (first,) + (0,) * (len(shape) - 1), shape)
        return bits.view(NUMPY[dtype])

    def flat(self, name: str, digests: Digests | None = None) -> Iterator[Any]:
        """Yield the bytes of a tensor in pieces; ``digests`` gets them."""
        entry = self.file.entry(name)
        size = entry.end - entry.begin
        for first in range(0, max(size, 1), _PIECE):
            data = self.file.raw_bytes(name, first, min(_PIECE, size - first))
            if digests is not None:
                digests.add(name, data)
            yield data

    def compare(self, found: Mapping[str, str]) -> None:
        """Compare the digests of what was read with those that the file says.

        Raises:
            ArgumentError: the file is damaged.
        """
        for name, digest in found.items():
            if self.digests and self.digests.get(name) != digest:
                raise ArgumentError(
                    f"{self.what}: {self.folder} is damaged: the SHA-256 of {name!r} is not that "
                    "in its metadata"
                )


def digests_of(value: Any, where: str) -> dict[str, str]:
    """Return digests by name, which a file says.

    Raises:
        ArgumentError: they are none.
    """
    if not isinstance(value, dict) or not all(
        isinstance(digest, str) and re.fullmatch(r"[0-9a-f]{64}", digest)
        for digest in value.values()
    ):
        raise ArgumentError(f"{where}: its sha256 are no digests by name")
    return value


def _whole(text: Any) -> int | None:
    if isinstance(text, str) and re.fullmatch(r"\d{1,19}", text):
        return int(text)
    return None


def ascending(what: str, name: str, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield pieces whose ids ascend through all of them.

    Raises:
        ArgumentError: they do not.
    """
    last = None
    for piece in pieces:
        ids = piece.ids
        if len(ids):
            wrong = ids[1:] <= ids[:-1]
            if wrong.any() or (last is not None and ids[0] <= last):
                raise ArgumentError(f"{what}: the ids of {name!r} do not ascend")
            last = ids[-1]
        yield piece


def empty_piece(table: CutTable) -> Piece:
    """Return a piece of no rows."""
    numpy = import_module("numpy")
    return Piece(
        numpy.empty(0, "<i8"),
        numpy.empty((0, table.dim), NUMPY[table.dtype]),
        numpy.empty((0, table.state_len), "<f4"),
    )


def aligned(
    one: Iterator[Piece], two: Iterator[Piece], empty: Piece
) -> Iterator[tuple[Piece, Piece]]:
    """Yield pieces of two tables that cover the same ranges of ids. Both ascend."""
    left, right = _next(one), _next(two)
    yield empty, empty  # so that also tables without rows have a piece
    while left is not None or right is not None:
        end = min(piece.ids[-1] for piece in (left, right) if piece is not None)
        heads = []
        for piece in (left, right):
            count = 0 if piece is None else int(piece.ids.searchsorted(end, "right"))
            heads.append(empty if piece is None else Piece(*(part[:count] for part in piece)))
        left, right = (
            None if piece is None else _rest(piece, len(head.ids), more)
            for piece, head, more in ((left, heads[0], one), (right, heads[1], two))
        )
        yield heads[0], heads[1]


def _rest(piece: Piece, count: int, more: Iterator[Piece]) -> Piece | None:
    return Piece(*(part[count:] for part in piece)) if count < len(piece.ids) else _next(more)


def _next(pieces: Iterator[Piece]) -> Piece | None:
    return next((piece for piece in pieces if len(piece.ids)), None)


def places(ids: Any, among: Any) -> tuple[Any, Any]:
    """Return where ids are among others, which ascend, and whether they are there."""
    at = among.searchsorted(ids)
    if not len(among):
        return at, at < 0
    return at, among[at.clip(max=len(among) - 1)] == ids


def same_table(what: str, base: CutTable, new: CutTable) -> None:
    """Raise an error if two tables of one name hold rows of different kinds."""
    compared: list[tuple[str, Any, Any]] = [
        ("dim", base.dim, new.dim),
        ("dtype", base.dtype, new.dtype),
        ("floats of a state", base.state_len, new.state_len),
    ]
    for key in ("optimizer", "initializer", "seed"):
        one, two = (table.config.get(key) for table in (base, new))
        if key == "optimizer":  # its numbers may change
            one, two = (of.get("name") if isinstance(of, dict) else of for of in (one, two))
        compared.append((key, one, two))
    for key, one, two in compared:
        if one != two:
            raise ArgumentError(
                f"{what}: table {new.name!r}: {key} is {one!r} in the base and {two!r} now: export "
                "it whole, without since=, and the base with the same states="
            )


# Tables of cuts and of files.


def chosen_of(function: str, cut: Cut | Exported, names: Collection[str] | None) -> list[int]:
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


def shape_of(info: CutTable) -> tuple[int, ...] | None:
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


def widened(dtype: str, rows: Any) -> Any:
    """Return rows in float32, which is exact."""
    if dtype == "bfloat16":
        return (rows.astype("<u4") << 16).view("<f4")
    return rows.astype("<f4", copy=False)
