"""``open_file`` and ``load_file``: tensors of safetensors files, whole, in slices, or in parts."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from .._progress import Bytes
from ..errors import ArgumentError, DtypeError, Error, UnsupportedError
from ..group import ProcessGroup, is_initialized, warn_nonmember
from ..together import leads, together
from ..window_proxy import indexed
from . import layout, shards
from .commit import Names, read_header
from .elements import STAGED, Elements, new, raw
from .header import Entry, Header
from .opened import opened
from .places import Place, Slab, box, flipped, runs, slabs, span, whole
from .posix import PosixFile
from .tiles import Box, within

__all__ = ["OpenFile", "TensorSlice", "load_file", "open_file", "read_place"]

_GAP = 64 << 10
"""Shorter gaps between short runs are read too, because that is faster than a call for each run."""
_FRAMEWORKS = ("numpy", "torch", "paddle")


def read_place(
    file: PosixFile,
    begin: int,
    place: Place,
    out: Elements,
    progress: Callable[[int], object],
) -> None:
    """Read the elements of a place.

    Args:
        file: which is read.
        begin: the byte from which the place counts.
        place: in elements of ``out``; no stride is below 0.
        out: has the shape of the place.
        progress: is told the bytes that are read.
    """
    size = out.itemsize
    for slab in slabs(place, max(1, STAGED // size)):
        there = runs(slab.place)
        gap = span(slab.place) - len(there.begins) * there.elements
        short = there.elements * size < _GAP and gap * size < _GAP * len(there.begins)
        target = out.part(slab.part) if out.array is not None else None
        if len(there.begins) > 1 and short:
            _sieve(file, begin, slab, out)
        elif target is not None and target.flags.c_contiguous:
            _get_runs(file, begin, there, target, size)
        else:
            staged = np.empty(slab.place.shape, out.raw)
            _get_runs(file, begin, there, staged, size)
            out.store(slab.part, staged)
        progress(int(np.prod(slab.place.shape, dtype=np.int64)) * size)


def _get_runs(file: PosixFile, begin: int, there: Any, out: Any, size: int) -> None:
    data, step = memoryview(out.reshape(-1).view("u1")), there.elements * size
    for number, first in enumerate(there.begins.tolist()):
        file.get(data[number * step : (number + 1) * step], begin + first * size)


def _sieve(file: PosixFile, begin: int, slab: Slab, out: Elements) -> None:
    """Read a slab with the gaps between its runs, and copy what it has."""
    staged = np.empty(span(slab.place), out.raw)
    file.get(staged.view("u1"), begin + slab.place.offset * out.itemsize)
    strides = [step * out.itemsize for step in slab.place.strides]
    out.store(slab.part, np.ndarray(slab.place.shape, out.raw, staged.data, 0, strides))


class _Source(NamedTuple):
    """An open file.

    Attributes:
        file: which is read.
        header: what its header says.
    """

    file: PosixFile
    header: Header


def open_file(path: str | os.PathLike[str], framework: str = "numpy") -> OpenFile:
    """Open a safetensors file, or a set of files with an index, to read tensors and slices.

    Every rank that wants to read calls it, in any order: it is not collective. The header is
    checked before anything else is done with it. The files stay as they were opened, also if
    another save replaces them.

    Args:
        path: of the file, of an index, or of a file that has an index instead; or a folder with a
            ``model.safetensors`` or an index of it.
        framework: whose tensors it gives: ``"numpy"``, ``"torch"`` or ``"paddle"``.

    Raises:
        ArgumentError: the file is damaged, or ``framework`` is none of the three.
        OSError: it cannot be opened or read.

    Source: ``safetensors.safe_open``.
    """
    if framework not in _FRAMEWORKS:
        raise ArgumentError(
            f"open_file: framework={framework!r} is none of {', '.join(map(repr, _FRAMEWORKS))}"
        )
    return OpenFile(Names(path), framework)


class OpenFile:
    """Tensors that can be read; ``with``, or its end, closes it. Made by :func:`open_file`.

    Thread-safety: all methods but ``close`` may be called from any thread.
    """

    def __init__(self, names: Names, framework: str) -> None:
        self._framework = framework
        self._metadata: dict[str, str] | None = None
        self._at: dict[str, _Source] = {}
        with ExitStack() as stack:
            for attempt in range(3):
                try:
                    self._open(names, stack)
                    break
                except FileNotFoundError:
                    # A save has replaced the set between the index and its files.
                    if attempt == 2 or not names.index.exists() or names.one.exists():
                        raise
                    stack.close()
            self._stack = stack.pop_all()
        # For a file that nobody closes. Not at exit: MPI may have ended.
        weakref.finalize(self, self._stack.close).atexit = False

    def _open(self, names: Names, stack: ExitStack) -> None:
        if names.one.exists() or not names.index.exists():
            source = _source(str(names.one), stack)
            self._metadata = source.header.metadata
            self._at = dict.fromkeys(source.header.entries, source)
            return
        where = _about(str(names.index), lambda: layout.parsed_index(names.index.read_bytes()))
        self._metadata = {key: str(value) for key, value in where[1].items()}
        folder = names.index.parent
        sources = {file: _source(str(folder / file), stack) for file in set(where[0].values())}
        self._at = {name: sources[file] for name, file in where[0].items()}
        for name, source in self._at.items():
            if name not in source.header.entries:
                raise ArgumentError(
                    f"{source.file.path} has no {name!r}, and {names.index} says it has"
                )

    def keys(self) -> list[str]:
        """Return the names of the tensors, in the order of their bytes."""
        return list(self._at)

    def metadata(self) -> dict[str, str] | None:
        """Return the metadata; None if there is none. That of a set is the index's."""
        return self._metadata

    def get_tensor(self, name: str) -> Any:
        """Return a tensor, in ordinary host memory.

        Raises:
            ArgumentError: there is none of that name.
            DtypeError: the framework does not have the dtype.
        """
        return self.get_slice(name)[...]

    def get_slice(self, name: str) -> TensorSlice:
        """Return a tensor of which parts can be read by an index.

        Raises:
            ArgumentError: there is none of that name.
        """
        return TensorSlice(self, name, self.entry(name))

    def read_into(self, name: str, out: Any, offsets: Sequence[int] | None = None) -> None:
        """Read a tensor, or a box of it, into a tensor that exists.

        Args:
            name: of the tensor.
            out: any tensor of its dtype, in host memory, or of torch or Paddle in device memory.
            offsets: where the box begins that has the shape of ``out``. None: ``out`` is the whole.

        Raises:
            ArgumentError: the box is no part of the tensor, or ``out`` is read-only.
            DtypeError: ``out`` is of another dtype.
        """
        entry, elements = self.entry(name), Elements(out)
        begins = (0,) * len(entry.shape) if offsets is None else tuple(offsets)
        if offsets is None and elements.shape != entry.shape:
            raise ArgumentError(f"{name!r} is of shape {list(entry.shape)}, and out of "
                                f"{list(elements.shape)}")  # fmt: skip
        self.fill(name, shards.Part(elements, entry.shape, Box(begins, elements.shape)))

    def bits(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> Any:
        """Return a box of a tensor as an array of unsigned integers that have its bits.

        NumPy alone has no bfloat16.
        """
        entry, out = self.entry(name), np.empty(lengths, raw(self.entry(name).dtype.name))
        place = box(entry.shape, offsets, lengths)
        self._read(name, place, Elements(out), lambda done: None)
        return out

    def raw_bytes(self, name: str, begin: int, size: int) -> Any:
        """Return some bytes of a tensor, from that of number ``begin``, as an array of uint8."""
        entry, source = self.entry(name), self._at[name]
        if not 0 <= begin <= begin + size <= entry.end - entry.begin:
            raise ArgumentError(f"{name!r} has no {size} bytes from byte {begin}")
        out = np.empty(size, "u1")
        source.file.get(out, source.header.data + entry.begin + begin)
        return out

    def fill(
        self, name: str, part: shards.Part, progress: Callable[[int], object] = lambda done: None
    ) -> None:
        """Read what a rank holds of a tensor.

        Raises:
            ArgumentError, DtypeError: the tensor is another one in the file.
        """
        entry = self.entry(name)
        if part.elements.dtype != entry.dtype.name:
            raise DtypeError(
                f"{name!r} is of {entry.dtype.name or entry.dtype.code} in the file, and of "
                f"{part.elements.dtype} here; load it into one of its dtype and convert that"
            )
        if part.shape != entry.shape:
            raise ArgumentError(
                f"{name!r} is of shape {list(entry.shape)} in the file, and {list(part.shape)} here"
            )
        if part.elements.nbytes == 0:
            return
        if not within(part.box, entry.shape):
            raise ArgumentError(f"{part.box} is no part of {name!r}, of shape {list(entry.shape)}")
        part.elements.check_writable(repr(name))
        self._read(name, box(entry.shape, *part.box), part.elements, progress)
        part.elements.written()

    def entry(self, name: str) -> Entry:
        """Return what the header says of a tensor.

        Raises:
            ArgumentError: there is none of that name.
        """
        if name not in self._at:
            some = ", ".join(map(repr, list(self._at)[:8]))
            raise ArgumentError(f"there is no tensor {name!r}; there are {some}")
        return self._at[name].header.entries[name]

    def _read(
        self, name: str, place: Place, out: Elements, progress: Callable[[int], object]
    ) -> None:
        source = self._at[name]
        begin = source.header.data + source.header.entries[name].begin
        read_place(source.file, begin, place, out, progress)

    def new(self, name: str, shape: Sequence[int]) -> Any:
        """Return a new tensor of the framework, of the dtype of a tensor of the file."""
        dtype = self.entry(name).dtype
        if not dtype.name:
            raise UnsupportedError(f"{name!r} is of {dtype.code}: its elements are no whole bytes")
        return new(self._framework, dtype.name, shape)

    def close(self) -> None:
        """Close the files."""
        self._stack.close()

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __contains__(self, name: object) -> bool:
        return name in self._at

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class TensorSlice:
    """A tensor of an open file. An index reads a part: integers, slices, ``...`` and None."""

    def __init__(self, file: OpenFile, name: str, entry: Entry) -> None:
        self._file, self._name, self._entry = file, name, entry

    def get_shape(self) -> list[int]:
        """Return the shape."""
        return list(self._entry.shape)

    def get_dtype(self) -> str:
        """Return the dtype as it is in the file, such as ``"BF16"``."""
        return self._entry.dtype.code

    def __getitem__(self, index: Any) -> Any:
        place = indexed(whole(self._entry.shape), index, f"index of {self._name!r}")
        place, turned = flipped(place)
        out = self._file.new(self._name, place.shape)
        elements = Elements(out)
        elements.turn(turned)
        self._file._read(self._name, place, elements, lambda done: None)
        return out


def load_file(
    path: str | os.PathLike[str],
    like: Mapping[str, Any] | None = None,
    *,
    framework: str = "numpy",
    group: ProcessGroup | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Load tensors of a safetensors file, or of a set of files with an index, on all ranks.

    All members of ``group`` call it. Each reads its parts, of whatever number of ranks and in
    whatever parts the file was written. Before init and after destroy the process is alone.

    Args:
        path: as for :func:`open_file`; the same on all ranks.
        like: what is loaded, by name: a :class:`Shard`, a distributed tensor of torch or Paddle, or
            any tensor, which gets the whole. They are written to, and returned. Other tensors of
            the file are not read. None: every rank gets all tensors, whole and new.
        framework: whose tensors are made without ``like``: ``"numpy"``, ``"torch"``, ``"paddle"``.
        group: the ranks; None: the world.
        progress: rank 0 shows on stderr how many bytes it has read.

    Returns:
        The tensors by name: ``like``'s, or new ones in ordinary host memory.

    Raises:
        ArgumentError: the file is damaged; or lacks a name; or has another shape.
        DtypeError: the file has another dtype, or the framework does not have it.
        OSError: this rank cannot read; the text has the path, the rank and the offset.
        RefusedError: ``ranks`` raise an error of their own. Tensors of ``like`` may have been
            written to.

    Source: ``safetensors.torch.load_file``.
    """
    what = "load_file"
    if group is not None and is_initialized() and warn_nonmember(group, what):
        return {}
    with ExitStack() as stack:
        with together(what, group):
            file = stack.enter_context(open_file(path, framework))
            if like is None:
                found = {name: file.new(name, file.entry(name).shape) for name in file}
            else:
                found = dict(like)
            parts = shards.parts_of(what, found)
            missing = [name for name in parts if name not in file]
            if missing:
                some = ", ".join(map(repr, missing[:8]))
                raise ArgumentError(f"{what}: {os.fspath(path)!r} has no {some}")
            total = sum(part.elements.nbytes for part in parts.values())
        with together(what, group) as step, Bytes(what, total, progress and leads(group)) as bar:
            for name, part in parts.items():
                file.fill(name, part, step.with_life(bar.add))
    return found


def _source(path: str, stack: ExitStack) -> _Source:
    file = opened(path, os.O_RDONLY, stack)
    return _Source(file, _about(path, lambda: read_header(file.descriptor)))


def _about(path: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Error as error:
        raise type(error)(f"{path}: {error}") from None
