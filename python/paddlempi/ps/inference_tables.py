"""Tables of a cut, or of an export, in this process: for inference, kept up to date by increments.

::

    tables = ps.load("model.safetensors")  # {"user": Table(...), ...}
    rows = tables["user"].pull(ids)
    tables.apply("from-40-to-50.safetensors")  # while other threads pull

It needs neither servers nor MPI.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from .. import _native
from .._progress import Bytes
from ..errors import ArgumentError
from ..io.commit import Names
from . import lifetime
from .cuts import Cut, CutTable, open_cut
from .export_files import Digests, Exported, Label, chosen_of, shape_of, widened
from .increments import Increment
from .initializers import Initializer, Normal, Uniform, initializer
from .optimizers import SGD, Optimizer, optimizer
from .table import Table

__all__ = ["Tables", "load"]

_LIFETIME = ("admit_after", "expire_after", "max_rows")
_REMOVED = 1 << 14  # ids: so long others wait who pull without held()


class Tables(dict[str, Table]):
    """Tables by name, of a cut or of an export. Made by :func:`load`.

    Thread-safety: any thread may pull at any time, also while :meth:`apply` changes rows.

    Attributes:
        step: of the cut that they hold. None: an increment could be applied only in part.
        serial: counts the cuts of its directory; two of one step differ in it.
    """

    def __init__(self, label: Label, train: bool, follow: bool) -> None:
        super().__init__()
        self.step, self.serial = label
        self._train, self._follow = train, follow
        self._digests: dict[str, str] = {}
        self._gate = _Gate()
        self._one = threading.Lock()  # increments come one at a time

    @contextmanager
    def held(self) -> Iterator[int | None]:
        """Keep increments out: what a thread pulls inside is all of one cut.

        ::

            with tables.held() as step:
                rows = [tables[name].pull(ids) for name, ids in asked.items()]

        :meth:`apply` waits until all threads have left, and who comes then waits for it: for the
        time in which the rows are copied.

        Raises:
            ArgumentError: this thread is inside already.
        """
        with self._gate.shared():
            yield self.step

    def apply(self, increment: str | os.PathLike[str]) -> int:
        """Take over the changes of an increment, while other threads pull.

        A row is seen whole, the old one or the new one; :meth:`held` sees all of one cut. The
        increment is read and checked before a row changes. Rows of ids that are gone are removed.
        If all tables were loaded, tables that are new come in, and those that are gone go. Dense
        parameters are not in the tables: read them from the increment, which has those that have
        changed. With ``train=True`` states and steps change too, and learning rates stay.

        Args:
            increment: a file that ``export(since=)`` has written.

        Returns:
            The step of the cut that the tables hold now.

        Raises:
            ArgumentError: the increment is of another base, or was applied already; it is damaged;
                it has no states, which tables need that were loaded with ``train=True``; or this
                thread is in :meth:`held`. The tables are as they were.
            OutOfMemoryError: there is no memory for the rows. If ``step`` is None then, rows have
                changed: load the tables anew.
            OSError: the file cannot be read. The same holds.
        """
        from ..io.reader import OpenFile  # needs NumPy

        what = "Tables.apply"
        self._gate.check()  # before it takes the lock that another thread may be waiting with
        with self._one, OpenFile(Names(increment), "numpy") as file:
            change = Increment(what, file, Path(increment))
            if self.step is None:
                raise ArgumentError(
                    f"{what}: an increment was applied to these tables only in part: load them anew"
                )
            change.fits(Label(self.step, self.serial), self._digests, "what these tables hold")
            change.check()
            self._take(change)
            return self.step

    def _take(self, change: Increment) -> None:
        for name in self:
            if name in change.results or f"{name}.ids" not in change.base_digests:
                raise ArgumentError(
                    f"{change.what}: {change.folder} has no table {name!r} of its base: it was "
                    "exported with other tables, or that is a dense parameter: see tables="
                )
        made, written = {}, []
        for number, info in enumerate(change.tables):
            table = self.get(info.name)
            if table is None:
                if self._follow:
                    made[info.name] = _filled(change, number, self._train)
                continue
            _check(change, info, table)
            if self._train and info.state_len != table._config.optimizer.state_width(table.dim):
                raise ArgumentError(
                    f"{change.what}: {change.folder} has no states of {info.name!r}, which tables "
                    "that are trained need: export it with states=True"
                )
            written.append((number, table, change.removed(number)))
        with self._gate.alone():
            self.step = None
            for number, table, gone in written:
                for first in range(0, len(gone), _REMOVED):
                    table.remove(gone[first : first + _REMOVED])
                self._write(change, number, table)
            self.update(made)
            for name in set(self) - {table.name for table in change.tables}:
                del self[name]  # a thread may be using it: it closes when none does
            self.step, self.serial = change.label
            self._digests = {
                name: change.result_digests[name] for name in self._names(change.tables)
            }

    def _names(self, infos: list[CutTable]) -> list[str]:
        """Return the names of the tensors whose values are here."""
        parts = ["ids", "rows", *(["states"] if self._train else [])]
        return [
            f"{info.name}.{part}"
            for info in infos
            if info.name in self
            for part in parts
            if part in Exported.parts(info)
        ]

    def _write(self, change: Increment, number: int, table: Table) -> None:
        info = change.tables[number]
        if self._train:  # before rows, whose last use is now
            _native.control("table_info", table=table._held.number, steps=info.steps)
        for ids, rows, states in change.chunks(number, states=self._train):
            if len(ids):
                wide = widened(info.dtype, rows)
                table._write(ids, wide, states if self._train else None)


def _check(change: Increment, info: CutTable, table: Table) -> None:
    """Raise an error if a table here is of another kind than that of an increment."""
    new = _empty(info, False)
    for what, one, two in (
        ("dim", table.dim, new.dim),
        ("dtype", table.dtype, new.dtype),
        ("seed", table._config.seed, new._config.seed),
        ("initializer", table._config.initializer, new._config.initializer),
        ("num_ids", table._config.num_ids, new._config.num_ids),
    ):
        if one != two:
            raise ArgumentError(
                f"{change.what}: {what} of table {info.name!r} is {two} in {change.folder} and "
                f"{one} here: load a full export"
            )


class _Gate:
    """Many threads may be inside, or one that changes what they see."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: set[int] = set()  # threads
        self._closed = False

    def check(self) -> None:
        """Raise an error if this thread is inside: it would wait for itself."""
        if threading.get_ident() in self._inside:
            raise ArgumentError("this thread is inside held() of these tables already")

    @contextmanager
    def shared(self) -> Iterator[None]:
        self.check()
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside.add(threading.get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._inside.remove(threading.get_ident())
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For one thread at a time."""
        try:
            with self._changed:
                self._closed = True
                self._changed.wait_for(lambda: not self._inside)
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


def load(
    directory: str | os.PathLike[str],
    *,
    step: int | None = None,
    tables: Collection[str] | None = None,
    train: bool = False,
    progress: bool = False,
) -> Tables:
    """Make tables in this process of those of a cut, or of a safetensors file of ``export``.

    Args:
        directory: what the servers saved into; or the file.
        step: of the cut. None: the newest one that is whole.
        tables: the names of the tables. None: all but dense parameters, which ``export`` writes.
        train: False: the tables have no optimizer states, which saves their memory, and a push is
            that of SGD; ids do not come and go. True: they have the optimizers and states of the
            cut, and its ``admit_after``, ``expire_after`` and ``max_rows``. A file has neither last
            uses nor counts of ids: its rows count as used now.
        progress: show on stderr how many bytes of rows and states were taken.

    Returns:
        The tables by name, a dictionary that also takes increments (:meth:`Tables.apply`). A pull
        of an id without a row makes the row that the servers would have made.

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
            source = Exported("load", file, Path(directory))
            if step is not None and source.label.step != step:
                raise ArgumentError(f"load: {directory} is of step {source.label.step}, not {step}")
            return _loaded(source, source.label, tables, train, progress)
    cut = open_cut(directory, step)
    return _loaded(cut, Label(cut.step, cut.serial), tables, train, progress)


def _loaded(
    source: Cut | Exported,
    label: Label,
    names: Collection[str] | None,
    train: bool,
    progress: bool,
) -> Tables:
    chosen = chosen_of("load", source, names)
    if names is None:
        chosen = [number for number in chosen if shape_of(source.tables[number]) is None]
    loaded = Tables(label, train, follow=names is None)
    digests = Digests()
    total = sum(source.tables[number].nbytes(train) for number in chosen)
    try:
        with Bytes("load", total, progress) as line:
            for number in chosen:
                name = source.tables[number].name
                loaded[name] = _filled(source, number, train, digests, line.add)
        if isinstance(source, Exported):
            found = digests.done()
            source.compare(found)
            infos = [source.tables[number] for number in chosen]
            loaded._digests = {name: found[name] for name in loaded._names(infos)}
    except BaseException:
        for table in loaded.values():
            table.close()
        raise
    return loaded


def _filled(
    source: Cut | Exported,
    number: int,
    train: bool,
    digests: Digests | None = None,
    told: Callable[[int], object] = lambda done: None,
) -> Table:
    """Make a table of a source.

    Args:
        digests: gets its bytes, if they are in order.
        told: gets how many bytes of its rows and states more are there.
    """
    info = source.tables[number]
    table = _empty(info, train)
    pieces: Iterator[tuple[Any, Any, Any]] = (
        source.chunks(number, digests, states=train)
        if isinstance(source, Exported)
        else source.chunks(number)
    )
    try:
        if train:  # before rows, whose last use is now where the source has none
            _native.control("table_info", table=table._held.number, steps=info.steps)
        for ids, rows, states in pieces:
            if len(ids):
                wide = widened(info.dtype, rows)
                table._write(ids, wide, states if train else None)
                told(rows.nbytes + (states.nbytes if train else 0))
        if len(table) != info.rows:
            raise ArgumentError(
                f"load: {source.folder} has {info.rows} rows of table {info.name!r}, but only "
                f"{len(table)} different ids"
            )
        if train and isinstance(source, Cut):
            _lived(table, source, number)
    except BaseException:
        table.close()
        raise
    return table


def _lived(table: Table, cut: Cut, number: int) -> None:
    """Give a table whose ids come and go the last uses and the counts of a cut."""
    if not cut.tables[number].stamps or not table._config.lifetime:
        return
    for ids, stamps in cut.stamps(number):
        lifetime.set_stamps(table._held.number, ids, stamps)
    if (table._config.admit_after or 0) > 1:
        for counts in cut.sketches(number):
            lifetime.add_sketch(table._held.number, counts)


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
