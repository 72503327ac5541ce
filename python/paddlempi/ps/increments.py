"""Increments: files that ``export(since=)`` has written. They make a newer export of an older one.

What is in a file is not trusted. ``docs/ps-checkpoint.md`` has the format.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .._progress import Bytes
from ..errors import ArgumentError
from ..io import layout
from ..io.commit import Names, Save
from ..io.dtypes import BY_NAME
from .export_files import (
    INCREMENT,
    INCREMENT_FORMAT,
    Digests,
    Exported,
    Label,
    Piece,
    aligned,
    ascending,
    canonical,
    digests_of,
    empty_piece,
    places,
    same_table,
)

if TYPE_CHECKING:
    from ..io.reader import OpenFile

__all__ = ["Increment", "apply_increment"]


class Increment(Exported):
    """A file that ``export(since=)`` has written.

    Attributes:
        base: what it is applied to.
        base_digests: the SHA-256 of the base's tensors.
        result_digests: those of the tensors of the file that it makes of the base.
        rows: how many rows each table then has.
    """

    def __init__(self, what: str, file: OpenFile, path: Path) -> None:
        super().__init__(what, file, path)
        said = self._json(INCREMENT)
        format_ = said.get("format") if isinstance(said, dict) else None
        if format_ not in (None, INCREMENT_FORMAT):
            raise ArgumentError(
                f"{what}: {path} is an increment of format {format_!r:.20}; this paddlempi reads "
                f"format {INCREMENT_FORMAT}"
            )
        try:
            base, result = said["base"], said["result"]
            self.base = Label(base["step"], base["serial"])
            self.rows = dict(result["rows"])
            of_base, of_result = base["sha256"], result["sha256"]
            numbers = [*self.rows.values(), *(n for n in self.base if n is not None)]
        except (KeyError, TypeError, ValueError):
            numbers = [None]
        if format_ is None or not all(map(_is_count, numbers)):
            raise ArgumentError(
                f"{what}: {path} is no increment: ps.export(since=...) writes them; its metadata "
                f"says {INCREMENT}={self.metadata.get(INCREMENT)!r:.80}"
            )
        self.base_digests = digests_of(of_base, f"{what}: {path}: of its base")
        self.result_digests = digests_of(of_result, f"{what}: {path}: of its result")
        names = [table.name for table in self.tables]
        if names != sorted(self.rows):
            raise ArgumentError(
                f"{what}: {path} has changes of tables {names}, and says they are of "
                f"{sorted(self.rows)}"
            )
        self._check_removed()
        of_tables = {f"{one.name}.{part}" for one in self.tables for part in self.parts(one)}
        self.results = sorted(set(self.result_digests) - of_tables)
        if not of_tables <= set(self.result_digests) or not set(self.others) <= set(self.results):
            raise ArgumentError(f"{what}: {path} has tensors that its result does not have")

    def _check_removed(self) -> None:
        """Look at the lists of ids that are gone: they are no dense parameters."""
        for table in self.tables:
            name = f"{table.name}.removed"
            entry = self.file.entry(name)
            if len(entry.shape) != 1 or entry.dtype.name != "int64":
                raise ArgumentError(
                    f"{self.what}: {self.folder}: {name!r} is of {entry.dtype.code} and of shape "
                    f"{list(entry.shape)}: it must be of I64, [ids]"
                )
            if name in self.others:
                self.others.remove(name)

    def removed(self, number: int) -> Any:
        """Return the ids of a table that are gone, ascending."""
        name = f"{self.tables[number].name}.removed"
        (count,) = self.file.entry(name).shape
        return self._part(name, 0, (count,), "int64")

    def fits(self, label: Label, digests: dict[str, str], where: str) -> None:
        """Raise an error if this is the increment of another base than that of a label.

        Args:
            label: of the base.
            digests: the SHA-256 of its tensors; of those that both have.
            where: the base, for the error.
        """
        say = f"{self.what}: {self.folder} is from {self.base} to {self.label}, and {where}"
        if label == self.label and label != self.base:
            raise ArgumentError(f"{say} is at {label} already")
        if label != self.base:
            raise ArgumentError(f"{say} is at {label}: give it what comes between, in order")
        for name, digest in digests.items():
            if self.base_digests.get(name) != digest:
                raise ArgumentError(
                    f"{say} has another {name!r}: it is of another job, or was exported with "
                    "other tables or states"
                )

    def check(self) -> None:
        """Read all of it.

        Raises:
            ArgumentError: it is damaged, or its ids do not ascend, or are removed too.
        """
        digests = Digests()
        for number, table in enumerate(self.tables):
            gone = self.removed(number)
            digests.add(f"{table.name}.removed", gone)
            where, name = f"{self.what}: {self.folder}", table.name
            for _ in ascending(where, f"{name}.removed", iter([Piece(gone, gone, gone)])):
                pass
            for piece in ascending(where, name, self.chunks(number, digests)):
                both = piece.ids[places(piece.ids, gone)[1]]
                if len(both):
                    raise ArgumentError(f"{where}: id {both[0]} of {name!r} is changed and removed")
        for name in self.others:
            for _ in self.flat(name, digests):
                pass
        self.compare(digests.done())


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def apply_increment(
    base: str | os.PathLike[str],
    increment: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    progress: bool = False,
) -> int:
    """Make a full export of an older one, and of an increment of ``export(since=)``.

    The file has the bytes of ``export`` of the newer cut with the same ``tables`` and ``states``.
    It has its name when it is whole: if this process is killed, what was there before stays.

    Args:
        base: the older full export.
        increment: the increment since it.
        to: the file that is written; it may be ``base``.
        progress: show on stderr how many bytes are written.

    Returns:
        The step of the newer cut.

    Raises:
        ArgumentError: the increment is of another base: of another step or job, or it was applied
            already; or a file is damaged. Nothing is written then.
        OSError: a file cannot be read or written.

    Memory: some pieces of rows, and 8 bytes for each id that was removed.
    """
    what = "apply_increment"
    with ExitStack() as stack:
        older = Exported(what, stack.enter_context(_opened(base)), Path(base))
        change = Increment(what, stack.enter_context(_opened(increment)), Path(increment))
        change.fits(older.label, older.digests, str(older.folder))
        change.check()
        save = Save(what, Names(to, plain=True), None)
        try:
            _Result(older, change).write(save.partial, progress)
            save.commit()
        finally:
            save.abandon()
        return change.label.step or 0


def _opened(path: str | os.PathLike[str]) -> OpenFile:
    from ..io.reader import OpenFile  # needs NumPy

    return OpenFile(Names(path, plain=True), "numpy")


class _Result:
    """The file that an increment makes of its base."""

    def __init__(self, base: Exported, change: Increment) -> None:
        self._base, self._change = base, change
        self._of_base, self._of_result = Digests(), Digests()
        self._older = {table.name: number for number, table in enumerate(base.tables)}

    def write(self, path: Path, progress: bool) -> None:
        base, change = self._base, self._change
        metadata = {key: text for key, text in change.metadata.items() if key != INCREMENT}
        metadata["sha256"] = canonical(change.result_digests)
        file = layout.laid_out(self._wholes(), metadata)
        with (
            open(path, "r+b") as out,
            Bytes(change.what, file.size - len(file.head), progress) as bar,
        ):
            out.write(file.head)
            for number, table in enumerate(change.tables):
                self._write_table(out, file.begins, number, bar)
                self._older.pop(table.name, None)
            for name in change.results:
                out.seek(file.begins[name])
                for data in self._source(name).flat(name):
                    self._of_result.add(name, data)
                    out.write(data)
                    bar.add(data.nbytes)
            for number in self._older.values():  # they are gone
                for _ in base.chunks(number, self._of_base):
                    pass
            for name in base.others:
                for _ in base.flat(name, self._of_base):
                    pass
        found = self._of_base.done()
        base.compare(found)
        if found != change.base_digests:
            change.fits(change.base, found, str(base.folder))
            raise ArgumentError(f"{change.what}: {base.folder} lacks tensors of its base")
        if self._of_result.done() != change.result_digests:
            raise ArgumentError(
                f"{change.what}: {change.folder} makes other bytes of {base.folder} than its "
                "sha256 of the result says: it is damaged"
            )

    def _source(self, name: str) -> Exported:
        return self._change if name in self._change.others else self._base

    def _wholes(self) -> dict[str, layout.Whole]:
        """Return the tensors of the result. What the increment says is not trusted."""
        base, change = self._base, self._change
        wholes = {}
        for table in change.tables:
            before = base.tables[self._older[table.name]] if table.name in self._older else None
            if before is not None:
                same_table(change.what, before, table)
            rows, had = change.rows[table.name], before.rows if before else 0
            if rows > had + table.rows:  # before memory or a disk is taken for them
                raise ArgumentError(
                    f"{change.what}: {change.folder} makes {rows} rows of the {had} of table "
                    f"{table.name!r} with {table.rows} changed ones"
                )
            wholes[f"{table.name}.ids"] = layout.Whole(BY_NAME["int64"], (rows,))
            wholes[f"{table.name}.rows"] = layout.Whole(BY_NAME[table.dtype], (rows, table.dim))
            if table.state_len:
                shape = (rows, table.state_len)
                wholes[f"{table.name}.states"] = layout.Whole(BY_NAME["float32"], shape)
        for name in change.results:
            if name in wholes or name not in (*change.others, *base.others):
                raise ArgumentError(
                    f"{change.what}: {change.folder} says that {name!r} has not changed, and "
                    f"{base.folder} does not have it"
                )
            entry = self._source(name).file.entry(name)
            wholes[name] = layout.Whole(entry.dtype, entry.shape)
        return wholes

    def _write_table(self, out: BinaryIO, begins: dict[str, int], number: int, bar: Bytes) -> None:
        base, change = self._base, self._change
        table, gone = change.tables[number], change.removed(number)
        name, empty = table.name, empty_piece(table)
        older = self._older.get(name)
        before = iter([empty]) if older is None else base.chunks(older, self._of_base)
        pairs = aligned(
            ascending(f"{change.what}: {base.folder}", name, before),
            change.chunks(number),
            empty,
        )
        ends = {part: begins[f"{name}.{part}"] for part in change.parts(table)}
        rows, left = 0, change.rows[name]
        for was, now in pairs:
            piece = _merged(was, now, gone)
            rows += len(piece.ids)
            if rows > left:
                break
            for part, end in ends.items():
                data = getattr(piece, part)
                self._of_result.add(f"{name}.{part}", data)
                out.seek(end)
                out.write(data.reshape(-1).view("u1"))
                ends[part] += data.nbytes
                bar.add(data.nbytes)
        if rows != left:
            raise ArgumentError(
                f"{change.what}: {change.folder} says that table {name!r} becomes one of {left} "
                f"rows; it becomes one of {rows}"
            )


def _merged(was: Piece, now: Piece, gone: Any) -> Piece:
    """Return the rows of a piece of the base with the changes in its range."""
    numpy = import_module("numpy")
    keep = ~(places(was.ids, now.ids)[1] | places(was.ids, gone)[1])
    if keep.all() and not len(now.ids):
        return Piece(*map(numpy.ascontiguousarray, was))
    order = numpy.concatenate((was.ids[keep], now.ids)).argsort(kind="stable")
    return Piece(
        *(numpy.concatenate((one[keep], two))[order] for one, two in zip(was, now, strict=True))
    )
