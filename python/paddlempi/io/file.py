"""``File``: a file that all ranks of a group read and write, at offsets and through views."""

from __future__ import annotations

import operator
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import ArgumentError, DtypeError, Error, MismatchError
from ..group import ProcessGroup
from ..memory import name_of_dtype
from ..together import leads, rank_in, size_of, together, world_rank
from . import tiles
from .commit import Names, Save
from .elements import Elements, new
from .opened import created, opened
from .places import Place, box, runs, whole
from .reader import read_place
from .tiles import Box, Piece
from .writer import Target, write

__all__ = ["File", "View"]

_MODES = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w": os.O_RDWR}


def _quiet(done: int) -> None:
    """Tell nobody how much is done."""


class File:
    """A file that the ranks of a group have opened together; ``with`` closes it.

    Offsets are bytes. Tensors are of any kind, of any strides, in host memory, or of torch or
    Paddle in device memory; their elements stand in the file in C order. The names with ``_all``,
    and all others that say so, are collective: every member calls them, and they succeed on all or
    on none. The others are for one rank alone.

    What a rank has written is seen by the ranks of its host at once, by all after :meth:`sync` or
    close. Ranks that write the same bytes at the same time write them in no order.

    Args:
        path: of the file; the same on all ranks.
        mode: ``"r"``: it is read; ``"r+"``: also written; ``"w"``: made anew.
        group: the ranks; None: the world. Before init and after destroy the process is alone.
        atomic: with ``"w"``: it is written beside its place, and gets its name when all ranks have
            closed it. If the ``with`` block ends with an exception on a rank, the old file stays.

    Raises:
        ArgumentError: a wrong ``mode``.
        MismatchError: the ranks have not given the same arguments.
        OSError: this rank cannot open it.
        RefusedError: ``ranks`` raise an error of their own.

    Thread-safety: the methods for one rank may be called from any thread.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: str = "r",
        group: ProcessGroup | None = None,
        *,
        atomic: bool = False,
    ) -> None:
        self._what, self._group, self._ordered = "File", group, 0
        self._save: Save | None = None
        self._atomic = atomic
        with together(self._what, group) as step:
            if mode not in _MODES:
                raise ArgumentError(
                    f"File: mode={mode!r} is none of {', '.join(map(repr, _MODES))}"
                )
            if atomic and mode != "w":
                raise ArgumentError(f"File: atomic=True is for mode='w', and mode is {mode!r}")
            self._path = Path(os.fsdecode(path))
            step.tell = (str(self._path), mode, bool(atomic))
        self._same("path, mode and atomic", step.told)
        with ExitStack() as stack:
            with together(self._what, group) as step:
                if leads(group):
                    step.tell = self._made(mode, atomic, stack)
            if step.told[0] is not None:
                self._path = self._path.with_name(step.told[0])
            with together(self._what, group):
                self._file = opened(
                    str(self._path), _MODES[mode], stack, made=mode == "w", ahead=atomic
                )
            self._stack = stack.pop_all()
        # For a file that nobody closes. Not at exit: MPI may have ended.
        weakref.finalize(self, self._stack.close).atexit = False

    def _made(self, mode: str, atomic: bool, stack: ExitStack) -> str | None:
        """Make the file on the rank that leads. Return its name if it is another one."""
        if mode != "w":
            return None
        if atomic:
            self._save = Save(self._what, Names(self._path, plain=True), None)
            stack.callback(self._save.abandon)
            return self._save.partial.name
        os.close(created(str(self._path), os.O_TRUNC))
        return None

    def _same(self, name: str, told: Sequence[Any]) -> None:
        wrong = [rank for rank, one in enumerate(told) if one != told[0]]
        if wrong:
            error = MismatchError(
                f"{self._what}: the ranks have not given the same {name}: rank "
                f"{world_rank(0, self._group)} has {told[0]}, and rank "
                f"{world_rank(wrong[0], self._group)} has {told[wrong[0]]}"
            )
            error.ranks = tuple(world_rank(rank, self._group) for rank in wrong)[:32]
            raise error

    @property
    def path(self) -> str:
        """The path that this rank writes to."""
        return str(self._path)

    def size(self) -> int:
        """Return how many bytes the file has."""
        return os.fstat(self._file.descriptor).st_size

    def write_at(self, offset: int, tensor: Any) -> int:
        """Write a tensor at an offset.

        Returns:
            How many bytes it has.

        Raises:
            ArgumentError: ``offset`` is below 0.
            DtypeError: it is no tensor.
            OSError: it cannot be written; the text has the path, the rank and the offset.
        """
        return self._write_at(offset, tensor, _quiet)

    def _write_at(self, offset: int, tensor: Any, progress: Callable[[int], object]) -> int:
        at, elements = _offset(offset), Elements(tensor)
        for _, array in elements.parts():
            self._file.put(array.reshape(-1).view("u1"), at)
            at += array.nbytes
            progress(array.nbytes)
        return elements.nbytes

    def read_at(self, offset: int, out: Any) -> int:
        """Read bytes at an offset into a tensor, which they must fill.

        Returns:
            How many bytes it has.

        Raises:
            ArgumentError: ``offset`` is below 0, or ``out`` is read-only.
            DtypeError: it is no tensor.
            OSError: it cannot be read, or the file ends before; the text has the path, the rank and
                the offset.
        """
        return self._read_at(offset, out, _quiet)

    def _read_at(self, offset: int, out: Any, progress: Callable[[int], object]) -> int:
        elements = Elements(out)
        elements.check_writable("out")
        place = whole(elements.shape)
        read_place(self._file, _offset(offset), place, elements, progress)
        elements.written()
        return elements.nbytes

    def write_at_all(self, offset: int, tensor: Any) -> int:
        """Write a tensor of each rank at an offset of its own; see :meth:`write_at`. Collective."""
        with together(self._what, self._group) as step:
            return self._write_at(offset, tensor, step.alive)

    def read_at_all(self, offset: int, out: Any) -> int:
        """Read into a tensor of each rank; see :meth:`read_at`. Collective."""
        with together(self._what, self._group) as step:
            return self._read_at(offset, out, step.alive)

    def write_ordered(self, tensor: Any, offset: int | None = None) -> int:
        """Write the tensors of all ranks one behind the other, in the order of the ranks.

        Collective. The tensors may have any lengths.

        Args:
            tensor: this rank's.
            offset: where the first one begins, the same on all ranks. None: behind what the last
                ``write_ordered`` of this file has written; at first 0.

        Returns:
            The offset of this rank's tensor.
        """
        with together(self._what, self._group) as step:
            begin = self._ordered if offset is None else _offset(offset)
            step.tell = (begin, Elements(tensor).nbytes)
        self._same("offset", [begin for begin, _ in step.told])
        lengths: list[int] = [n for _, n in step.told]
        at: int = begin + sum(lengths[: rank_in(self._group)])
        self.write_at_all(at, tensor)
        self._ordered = begin + sum(lengths)
        return at

    def view(
        self,
        dtype: Any,
        shape: Sequence[int],
        offsets: Sequence[int] | None = None,
        lengths: Sequence[int] | None = None,
        *,
        strides: Sequence[int] | None = None,
        start: int = 0,
    ) -> View:
        """Return a view: elements of the file that this rank reads and writes as one array.

        Args:
            dtype: of the elements: a name, or a dtype of NumPy, torch or Paddle.
            shape: of an array in the file, in C order, of which ``offsets`` and ``lengths`` give a
                box. With ``strides``, of the view itself.
            offsets, lengths: the box. None: all of the array.
            strides: from an element to the next one in each dimension, in elements, 0 or above.
            start: the byte at which the array begins.

        Raises:
            ArgumentError: the box does not lie in the array, or a number is below 0.
            DtypeError: the dtype is none that can be moved.
        """
        name = name_of_dtype("File.view", dtype)
        bounds = _numbers("shape", shape)
        if strides is not None:
            if offsets is not None or lengths is not None:
                raise ArgumentError("File.view: give strides, or offsets and lengths")
            steps = _numbers("strides", strides)
            if len(steps) != len(bounds):
                raise ArgumentError(f"File.view: strides={list(steps)} for shape={list(bounds)}")
            return View(self, name, Place(0, bounds, steps), _offset(start), None)
        begins = (0,) * len(bounds) if offsets is None else _numbers("offsets", offsets)
        if lengths is None:
            if offsets is not None:
                raise ArgumentError("File.view: offsets is given, and lengths is not")
            lengths = bounds
        mine = Box(begins, _numbers("lengths", lengths))
        if not tiles.within(mine, bounds):
            raise ArgumentError(f"File.view: {mine} is no part of an array of {list(bounds)}")
        return View(self, name, box(bounds, *mine), _offset(start), (bounds, mine))

    def preallocate(self, size: int) -> None:
        """Reserve the file's first bytes on the disk, and make it so long at least. Collective.

        Raises:
            OSError: the disk has no room for them.
        """
        with together(self._what, self._group):
            if leads(self._group) and _offset(size):
                os.posix_fallocate(self._file.descriptor, 0, size)

    def sync(self) -> None:
        """Return when what all ranks have written is on the disk. Collective."""
        with together(self._what, self._group):
            self._file.flush()

    def close(self) -> None:
        """Close the file; with ``atomic`` also flush it and give it its name. Collective."""
        if self._file.descriptor < 0:
            return
        try:
            with together(self._what, self._group):
                if self._atomic:
                    self._file.flush()
            with together(self._what, self._group):
                if self._save is not None:
                    self._save.commit()
        finally:
            self._end()

    def _end(self) -> None:
        self._stack.close()

    def __enter__(self) -> File:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        if isinstance(error, Exception) and self._file.descriptor >= 0:
            with suppress(Exception), together(self._what, self._group):
                raise error  # the others are in close()
        self._end()


class View:
    """Elements of a file that one rank reads and writes as an array. Made by :meth:`File.view`.

    Attributes:
        shape: of the array.
        dtype: the name of its dtype.
    """

    def __init__(
        self,
        file: File,
        dtype: str,
        place: Place,
        start: int,
        part: tuple[tuple[int, ...], Box] | None,
    ) -> None:
        self._file, self.dtype, self._place, self._start = file, dtype, place, start
        self._part = part

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return self._place.shape

    def read(self, out: Any = None, framework: str = "numpy") -> Any:
        """Read the elements.

        Args:
            out: a tensor of the view's dtype and shape. None: a new one.
            framework: of the new one: ``"numpy"``, ``"torch"`` or ``"paddle"``.

        Returns:
            The tensor.

        Raises:
            ArgumentError: ``out`` has another shape, or is read-only.
            DtypeError: it has another dtype.
            OSError: it cannot be read, or the file ends before.
        """
        return self._read(out, framework, _quiet)

    def _read(self, out: Any, framework: str, progress: Callable[[int], object]) -> Any:
        out = new(framework, self.dtype, self.shape) if out is None else out
        elements = self._checked(out)
        elements.check_writable("out")
        file = self._file
        read_place(file._file, self._start, self._place, elements, progress)
        elements.written()
        return out

    def write(self, tensor: Any) -> None:
        """Write a tensor of the view's dtype and shape, one call of the system for each run.

        Raises:
            ArgumentError: it has another shape.
            DtypeError: it has another dtype.
            OSError: it cannot be written.
        """
        self._write(tensor, _quiet)

    def _write(self, tensor: Any, progress: Callable[[int], object]) -> None:
        elements, file = self._checked(tensor), self._file
        size = elements.itemsize
        for index, array in elements.parts():
            begins = [one.start for one in index]
            offset = self._place.offset + sum(
                b * step for b, step in zip(begins, self._place.strides, strict=True)
            )
            there = runs(Place(offset, array.shape, self._place.strides))
            data, step = memoryview(array.reshape(-1).view("u1")), there.elements * size
            for number, first in enumerate(there.begins.tolist()):
                run = data[number * step : (number + 1) * step]
                file._file.put(run, self._start + first * size)
            progress(array.nbytes)

    def read_all(self, out: Any = None, framework: str = "numpy") -> Any:
        """Read on all ranks; see :meth:`read`. Collective."""
        with together(self._file._what, self._file._group) as step:
            return self._read(out, framework, step.alive)

    def write_all(self, tensor: Any) -> None:
        """Write on all ranks; see :meth:`write`. Collective.

        The views of the ranks may be any. If they are boxes of one array with many short runs, the
        ranks bring these together, so that each writes rows that are whole.

        Raises:
            ArgumentError, DtypeError, OSError: as for :meth:`write`.
            RefusedError: ``ranks`` raise an error of their own.
        """
        file = self._file
        with together(file._what, file._group) as step:
            elements = self._checked(tensor)
            step.tell = (self.dtype, self._start, self._part)
        told = step.told
        boxes = [part[1] for _, _, part in told if part is not None]
        if len(boxes) < size_of(file._group) or len({(d, s, p[0]) for d, s, p in told}) > 1:
            with together(file._what, file._group) as step:
                self._write(tensor, step.alive)
            return
        bounds, mine = self._part  # type: ignore[misc]
        pieces = [Piece(0, rank, one) for rank, one in enumerate(boxes) if prod(one.lengths)]
        target = Target(0, self._start, bounds, elements.itemsize)
        try:
            tiles.check("view", bounds, np.array(boxes, np.int64).reshape(len(boxes), 2, -1))
            holes = False
        except Error:
            holes = True
        held, files = [(elements, mine)], [file._file]
        write(file._what, held, pieces, [target], lambda: files, file._group, _quiet, holes=holes)

    def _checked(self, tensor: Any) -> Elements:
        elements = Elements(tensor)
        if elements.dtype != self.dtype:
            raise DtypeError(f"the view is of {self.dtype}, and the tensor of {elements.dtype}")
        if elements.shape != self.shape:
            raise ArgumentError(
                f"the view is of shape {list(self.shape)}, and the tensor {list(elements.shape)}"
            )
        return elements


def _offset(value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise DtypeError(f"File: {value!r} is no number of bytes") from None
    if number < 0:
        raise ArgumentError(f"File: {number} bytes; it must be 0 or more")
    return number


def _numbers(name: str, values: Any) -> tuple[int, ...]:
    try:
        found = tuple(operator.index(value) for value in values)
    except TypeError:
        raise DtypeError(f"File.view: {name}={values!r} is no sequence of integers") from None
    if any(value < 0 for value in found):
        raise ArgumentError(f"File.view: {name}={list(found)} has a number below 0")
    return found
