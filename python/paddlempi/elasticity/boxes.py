"""Tensors that are divided among ranks: boxes of whole tensors, and how they are filled.

A tensor is an array here that shares its memory. Only bits are copied, so the arrays are of
:data:`BITS`, whatever the framework calls the dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import group
from ..collectives import broadcast

__all__ = [
    "BITS",
    "Array",
    "Box",
    "Flat",
    "Index",
    "Owners",
    "complete",
    "fill",
    "mark_of",
    "size_of",
]

_ALIGNED = 64

Array = np.ndarray[Any, Any]

BITS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}
"""NumPy's dtype of an array, by the bytes of an element."""


class Box(NamedTuple):
    """What a rank has of a tensor."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    dtype: str
    """The framework's name of it."""
    itemsize: int
    """Bytes of an element."""
    begin: tuple[int, ...]
    size: tuple[int, ...]
    is_divided: bool
    """False: every rank has all of it."""

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.size)


Index = dict[Any, Box]
"""The boxes of a rank, by the names of tensors."""

Owners = dict[Any, dict[tuple[int, ...], tuple[int, int, Box]]]
"""By the name of a tensor and the begin of a box: a rank, which of its states, and the box."""


class Flat:
    """Boxes one after another in one piece of memory, which is one message."""

    def __init__(self, boxes: Index) -> None:
        self.boxes = boxes
        self.memory: Array = np.empty(size_of(boxes), "u1")
        self.arrays: dict[Any, Array] = {}
        at = 0
        for name, box in boxes.items():
            part = self.memory[at : at + box.elements * box.itemsize]
            self.arrays[name] = part.view(BITS[box.itemsize]).reshape(box.size)
            at += _space(box)


def size_of(boxes: Index) -> int:
    """Return the bytes of a :class:`Flat` of boxes."""
    return sum(_space(box) for box in boxes.values())


def _space(box: Box) -> int:
    return -(-box.elements * box.itemsize // _ALIGNED) * _ALIGNED


def mark_of(is_owner: bool) -> tuple[Box, Array]:
    """Return what stands for tensors of which only their owner knows which there are.

    If no rank has the mark, tensors are missing.
    """
    mark = np.ones(int(is_owner), "u1")
    return Box((1,), "uint8", 1, (0,), mark.shape, True), mark


def complete(indices: Sequence[tuple[int, int, Index]]) -> Owners | None:
    """Return who has which box, if together they have whole tensors; else None.

    Args:
        indices: a rank, which of its states it is, and the boxes in it.
    """
    found: Owners = {}
    for rank, which, index in indices:
        for name, box in index.items():
            boxes = found.setdefault(name, {})
            if box.elements or not math.prod(box.shape):
                boxes.setdefault(box.begin, (rank, which, box))
    for boxes in found.values():
        held = sum(box.elements for _, _, box in boxes.values())
        if not boxes or held != math.prod(next(iter(boxes.values()))[2].shape):
            return None
    return found


def fill(
    targets: Mapping[Any, tuple[Box, Array]], who: Owners, mine: Sequence[Mapping[Any, Array]]
) -> None:
    """Fill the boxes of this rank. Collective over the world.

    Args:
        targets: what this rank has now, by name. It may lack names of ``who``.
        who: who has which box (:func:`complete`).
        mine: the states of this rank, arrays by name.
    """
    rank = group.get_rank()
    for name, boxes in who.items():
        for owner, which, box in boxes.values():
            if not box.elements:
                continue
            if owner == rank:
                part = np.ascontiguousarray(mine[which][name])
            else:
                part = np.empty(box.size, BITS[box.itemsize])
            broadcast(part.reshape(-1).view("u1"), owner)
            if name in targets:
                there, local = targets[name]
                _put(local, there, part.reshape(box.size), box)


def _put(local: Array, there: Box, part: Array, box: Box) -> None:
    """Copy what two boxes have in common."""
    into, out = [], []
    for begin, size, other, length in zip(
        there.begin, there.size, box.begin, box.size, strict=True
    ):
        low, high = max(begin, other), min(begin + size, other + length)
        if low >= high:
            return
        into.append(slice(low - begin, high - begin))
        out.append(slice(low - other, high - other))
    local[tuple(into)] = part[tuple(out)]
