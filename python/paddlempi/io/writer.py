"""Writes the parts of tensors that this rank holds into files of all ranks.

A box of a tensor is many runs in its file. Long ones are written where they are. Short ones, as of
a matrix that is cut by columns, would take a system call each. For these the ranks exchange: each
gets ranges of rows whole, from all others, and writes them in one call. That takes staging memory
of 32 MiB a rank at the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import collectives, memory
from ..group import ProcessGroup
from ..together import rank_in, size_of, together
from .elements import STAGED, Elements
from .places import box as place_of_box
from .places import runs, slabs, span, whole
from .posix import PosixFile
from .tiles import Box, Piece

__all__ = ["MANY", "SHORT", "Swap", "Target", "exchange", "exchanged", "write", "write_piece"]

SHORT = 64 << 10
"""A run of fewer bytes is short."""
MANY = 16
"""So many short runs are written where they are."""
_EXCHANGED = 16 << 20  # bytes that a rank gives away and gets, each, in a round


class Target(NamedTuple):
    """Where a tensor goes.

    Attributes:
        file: the number of its file.
        begin: where in the file its bytes begin.
        shape: the whole tensor's.
        itemsize: bytes of an element.
    """

    file: int
    begin: int
    shape: tuple[int, ...]
    itemsize: int


def exchanged(pieces: Iterable[Piece], targets: Sequence[Target]) -> set[int]:
    """Return the tensors that have many short runs. The same on all ranks."""
    found = set()
    for piece in pieces:
        if piece.tensor not in found:
            target = targets[piece.tensor]
            place = place_of_box(target.shape, *piece.box)
            there = runs(place)
            if len(there.begins) > MANY and there.elements * target.itemsize < SHORT:
                found.add(piece.tensor)
    return found


def write(
    what: str,
    parts: Sequence[tuple[Elements, Box]],
    pieces: Sequence[Piece],
    targets: Sequence[Target],
    opens: Callable[[], Sequence[PosixFile]],
    group: ProcessGroup | None,
    progress: Callable[[int], object],
    *,
    flushes: bool = False,
    holes: bool = False,
) -> None:
    """Write this rank's pieces. All members of the group call it: all succeed, or all raise.

    A rank that cannot open or write long runs keeps all from the exchange of short ones. One that
    fails in the exchange goes on giving the others what they need.

    Args:
        what: the beginning of the text of an error of another rank.
        parts: what this rank holds of each tensor.
        pieces: who writes what, of all ranks.
        targets: where each tensor goes.
        opens: gives the files.
        group: the ranks.
        progress: is told the bytes of this rank's that were written.
        flushes: whether the files are flushed at the end.
        holes: whether the pieces may not tile the tensors. What is in the file stays there.

    Raises:
        OSError: this rank could not write.
        RefusedError: ``ranks`` raise an error of their own.
    """
    rank = rank_in(group)
    apart = exchanged(pieces, targets) if size_of(group) > 1 else set()
    with together(what, group) as step:
        told = step.with_life(progress)
        files = opens()
        for piece in pieces:
            if piece.rank == rank and piece.tensor not in apart:
                write_piece(parts[piece.tensor], piece.box, targets[piece.tensor], files, told)
        if flushes and not apart:
            _flush(files)
    if apart:
        held = {tensor: parts[tensor] for tensor in apart}
        shared = [piece for piece in pieces if piece.tensor in apart]
        with together(what, group):
            exchange(held, shared, targets, files, _swap(group), progress, holes=holes)
            if flushes:
                _flush(files)


def _flush(files: Iterable[PosixFile]) -> None:
    for file in files:
        file.flush()


class Swap(NamedTuple):
    """How the ranks exchange bytes.

    Attributes:
        rank: this one.
        size: how many there are.
        move: gives each rank a part of an array, one behind the other, and gets parts of another
            array, by ``move(taken, lengths taken, given, lengths given)``. Collective.
    """

    rank: int
    size: int
    move: Callable[[Any, Sequence[int], Any, Sequence[int]], object]


def _swap(group: ProcessGroup | None) -> Swap:
    def move(taken: Any, lengths: Sequence[int], given: Any, given_lengths: Sequence[int]) -> None:
        collectives.all_to_all(_cut(taken, lengths), _cut(given, given_lengths), group)

    return Swap(rank_in(group), size_of(group), move)


def _cut(array: Any, lengths: Sequence[int]) -> list[Any]:
    ends = list(accumulate(lengths))
    return [array[end - n : end] for n, end in zip(lengths, ends, strict=True)]


def exchange(
    parts: Mapping[int, tuple[Elements, Box]],
    pieces: Sequence[Piece],
    targets: Sequence[Target],
    files: Sequence[PosixFile] | Mapping[int, PosixFile],
    swap: Swap,
    progress: Callable[[int], object],
    *,
    holes: bool = False,
    failed: Exception | None = None,
) -> None:
    """Write tensors with many short runs, for which the ranks bring rows together.

    All ranks call it. One that fails goes on giving the others what they need.

    Args:
        parts: what this rank holds, by tensor.
        pieces: what is written of them out of the parts of which rank.
        targets: where they go.
        files: where they go, by the numbers of the targets.
        swap: how the ranks exchange bytes.
        progress: is told the bytes that this rank has written.
        holes: see :func:`write`.
        failed: an error of this rank's from before.

    Raises:
        OSError: this rank could not write.
        Exception: ``failed``.
    """
    failed = _Exchange(parts, pieces, targets, files, swap, progress, holes).run(failed)
    if failed is not None:
        raise failed


def _index(held: Box, box: Box) -> tuple[slice, ...]:
    """Return the index of a box in what a rank holds."""
    return tuple(
        slice(o - begin, o - begin + n)
        for o, n, begin in zip(box.offsets, box.lengths, held.offsets, strict=True)
    )


def write_piece(
    part: tuple[Elements, Box],
    box: Box,
    target: Target,
    files: Sequence[PosixFile] | Mapping[int, PosixFile],
    progress: Callable[[int], object],
) -> None:
    """Write a box of a tensor, of which this rank holds ``part``, run by run."""
    elements, held = part
    for index, array in elements.parts(_index(held, box)):
        offsets = [one.start + begin for one, begin in zip(index, held.offsets, strict=True)]
        there = runs(place_of_box(target.shape, offsets, array.shape))
        data, size = memoryview(array.reshape(-1).view("u1")), there.elements * target.itemsize
        for number, begin in enumerate(there.begins.tolist()):
            run = data[number * size : (number + 1) * size]
            files[target.file].put(run, target.begin + begin * target.itemsize)
        progress(array.nbytes)


class _Slab(NamedTuple):
    """Rows of a tensor that one rank writes."""

    tensor: int
    box: Box


class _Exchange:
    """The rounds in which the ranks bring short runs together. In a round each writes a slab."""

    def __init__(
        self,
        parts: Mapping[int, tuple[Elements, Box]],
        pieces: Sequence[Piece],
        targets: Sequence[Target],
        files: Sequence[PosixFile] | Mapping[int, PosixFile],
        swap: Swap,
        progress: Callable[[int], object],
        holes: bool,
    ) -> None:
        self._holes = holes
        self._parts, self._targets, self._files = parts, targets, files
        self._swap, self._progress = swap, progress
        self._rank, self._size = swap.rank, swap.size
        self._pieces: dict[int, list[Piece]] = {}
        for piece in pieces:
            self._pieces.setdefault(piece.tensor, []).append(piece)

    def run(self, failed: Exception | None) -> Exception | None:
        """Write the tensors. Return the first error of this rank's, which may be ``failed``."""
        slabs = [slab for tensor in sorted(self._pieces) for slab in self._slabs(tensor)]
        # The ranks of a node copy out of each other's memory if it is in their heaps.
        give = memory.empty(_EXCHANGED, "uint8")
        take = memory.empty(_EXCHANGED, "uint8")
        for first in range(0, len(slabs), self._size):
            failed = self._round(slabs[first : first + self._size], give, take, failed)
        return failed

    def _slabs(self, tensor: int) -> Iterable[_Slab]:
        """Cut a tensor into rows: one slab a rank, or more if what a rank gives away must fit."""
        target = self._targets[tensor]
        even = -(-prod(target.shape) * target.itemsize // self._size)
        most = max(SHORT, min(STAGED, _EXCHANGED // self._size, even)) // target.itemsize
        for slab in slabs(whole(target.shape), max(1, most)):
            begins = tuple(one.start for one in slab.part)
            yield _Slab(tensor, Box(begins, slab.place.shape))

    def _common(self, slab: _Slab) -> list[tuple[int, Box]]:
        """Return what each rank has of a slab: the rank and a box."""
        found = []
        for piece in self._pieces[slab.tensor]:
            box = _intersection(piece.box, slab.box)
            if box is not None:
                found.append((piece.rank, box))
        return found

    def _round(
        self, slabs: Sequence[_Slab], give: Any, take: Any, failed: Exception | None
    ) -> Exception | None:
        given: list[int] = []
        at = 0
        for slab in slabs:  # slab i is written by rank i
            begin = at
            for rank, box in self._common(slab):
                if rank == self._rank:
                    end = at + prod(box.lengths) * self._targets[slab.tensor].itemsize
                    if end > len(give):  # more ranks than bytes of a round are for
                        give = np.concatenate([give, np.empty(end, "u1")])
                    try:
                        self._pack(slab.tensor, box, give[at:end])
                    except Exception as error:  # of a device
                        failed = failed or error
                    at = end
            given.append(at - begin)
        given += [0] * (self._size - len(given))
        mine = slabs[self._rank] if self._rank < len(slabs) else None
        lengths = [0] * self._size
        if mine is not None:
            for rank, box in self._common(mine):
                lengths[rank] += prod(box.lengths) * self._targets[mine.tensor].itemsize
        self._swap.move(take[: sum(lengths)], lengths, give[:at], given)
        taken = _cut(take, lengths)
        if mine is not None and failed is None:
            try:
                self._write(mine, taken)
            except Exception as error:
                failed = error
        return failed

    def _pack(self, tensor: int, box: Box, out: Any) -> None:
        elements, held = self._parts[tensor]
        part = elements.part(_index(held, box))
        np.copyto(out.view(part.dtype).reshape(part.shape), part)

    def _write(self, slab: _Slab, taken: Sequence[Any]) -> None:
        target, common = self._targets[slab.tensor], self._common(slab)
        if not common:
            return
        size, file = target.itemsize, self._files[target.file]
        begin = target.begin + place_of_box(target.shape, *slab.box).offset * size
        rows = np.empty(slab.box.lengths, self._parts[slab.tensor][0].raw)
        flat = rows.reshape(-1).view("u1")
        first, end = 0, len(flat)
        if self._holes:
            places = [place_of_box(slab.box.lengths, *_moved(slab.box, box)) for _, box in common]
            first = min(place.offset for place in places) * size
            end = max(place.offset + span(place) for place in places) * size
            file.get_old(flat[first:end], begin + first)
        read = [0] * self._size
        for rank, box in common:
            until = read[rank] + prod(box.lengths) * size
            data = taken[rank][read[rank] : until].view(rows.dtype).reshape(box.lengths)
            rows[_index(slab.box, box)] = data
            read[rank] = until
        file.put(flat[first:end], begin + first)
        self._progress(end - first)


def _moved(outer: Box, box: Box) -> Box:
    """Return a box as it lies in another one."""
    offsets = (o - begin for o, begin in zip(box.offsets, outer.offsets, strict=True))
    return Box(tuple(offsets), box.lengths)


def _intersection(one: Box, two: Box) -> Box | None:
    offsets = tuple(map(max, one.offsets, two.offsets))
    lengths = tuple(
        min(a + n, b + m) - begin for a, n, b, m, begin in zip(*one, *two, offsets, strict=True)
    )
    return Box(offsets, lengths) if min(lengths, default=1) > 0 else None
