"""Which boxes of a tensor the ranks hold, whether they tile it, and who writes which part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError

__all__ = ["Box", "Piece", "check", "shared_out", "within"]

_SPLIT = 1 << 20
"""A part that several ranks hold is written by several of them if it is longer, in bytes."""
_ROWS = 1024  # boxes that are compared with all others at a time


class Box(NamedTuple):
    """A part of a tensor that is a range in each dimension."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    def __str__(self) -> str:
        ranges = (f"{o}:{o + n}" for o, n in zip(self.offsets, self.lengths, strict=True))
        return f"[{', '.join(ranges)}]"


class Piece(NamedTuple):
    """What one rank writes of a tensor."""

    tensor: int
    rank: int
    box: Box


def within(box: Box, shape: Sequence[int]) -> bool:
    """Whether a box lies in a tensor of this shape."""
    return len(box.offsets) == len(box.lengths) == len(shape) and all(
        o >= 0 and n >= 0 and o + n <= most
        for o, n, most in zip(box.offsets, box.lengths, shape, strict=True)
    )


def check(name: str, shape: tuple[int, ...], boxes: Any) -> dict[Box, list[int]]:
    """Return the distinct boxes of a tensor with the ranks that hold each, if they tile it.

    Args:
        name: the tensor's, for errors.
        shape: the whole tensor's.
        boxes: int64, [ranks, 2, dims]: offsets and lengths. Empty ones count for nothing; the
            others lie within the tensor.

    Raises:
        ArgumentError: two boxes that are not equal have elements in common, or elements are in
            none.
    """
    if not len(shape):
        return {Box((), ()): list(range(len(boxes)))}
    total = prod(shape)
    if not total:
        return {}
    holders: dict[Box, list[int]] = {}
    if (boxes == boxes[0]).all():  # as of a model that every rank has
        distinct, ranks = boxes[:1], [list(range(len(boxes)))]
        if not boxes[0, 1].all():
            distinct, ranks = boxes[:0], []
    else:
        full = boxes[:, 1].all(axis=1)
        numbers = np.nonzero(full)[0]
        flat = boxes[full].reshape(len(numbers), 2 * len(shape))
        unique, inverse = np.unique(flat, axis=0, return_inverse=True)
        distinct = unique.reshape(-1, 2, len(shape))
        ranks = [[] for _ in range(len(unique))]
        for rank, number in zip(numbers.tolist(), inverse.reshape(-1).tolist(), strict=True):
            ranks[number].append(rank)
    for one, who in zip(distinct.tolist(), ranks, strict=True):
        holders[Box(tuple(one[0]), tuple(one[1]))] = who
    if len(distinct) > 1:
        _refuse_overlaps(name, distinct, ranks)
    covered = sum(prod(one.lengths) for one in holders)
    if covered != total:
        some = ", ".join(map(str, list(holders)[:8])) or "none"
        raise ArgumentError(
            f"{name!r} of shape {list(shape)} is not whole: the ranks hold {covered} of its "
            f"{total} elements, the boxes {some}"
        )
    return holders


def _refuse_overlaps(name: str, distinct: Any, ranks: list[list[int]]) -> None:
    begins, ends = distinct[:, 0], distinct[:, 0] + distinct[:, 1]
    for first in range(0, len(distinct), _ROWS):
        rows = slice(first, first + _ROWS)
        both = np.ones((len(begins[rows]), len(begins)), bool)
        for dim in range(begins.shape[1]):
            both &= begins[rows, None, dim] < ends[None, :, dim]
            both &= begins[None, :, dim] < ends[rows, None, dim]
        both[np.arange(len(both)), np.arange(first, first + len(both))] = False
        if both.any():
            one, two = (int(i) for i in np.argwhere(both)[0])
            one += first
            texts = [Box(*(tuple(x) for x in distinct[i].tolist())) for i in (one, two)]
            raise ArgumentError(
                f"{name!r}: the boxes of the ranks overlap: rank {ranks[one][0]} has {texts[0]}, "
                f"and rank {ranks[two][0]} has {texts[1]}"
            )


def shared_out(
    held: Sequence[dict[Box, list[int]]], itemsizes: Sequence[int], size: int
) -> list[Piece]:
    """Return who writes what, so that the bytes of a rank are even.

    The same on all ranks, and in every run. A part that one rank holds is written by it. One that
    several hold is written by those of them that have the least to write.

    Args:
        held: for each tensor its boxes, with the ranks that hold each.
        itemsizes: of each tensor, in bytes.
        size: the number of ranks.
    """
    load = [0] * size
    pieces: list[Piece] = []
    copies: list[tuple[int, int, Box, list[int]]] = []
    for number, boxes in enumerate(held):
        for box, ranks in boxes.items():
            nbytes = prod(box.lengths) * itemsizes[number]
            if len(ranks) == 1:
                pieces.append(Piece(number, ranks[0], box))
                load[ranks[0]] += nbytes
                continue
            for part in _parts(box, min(len(ranks), -(-nbytes // _SPLIT))):
                copies.append((prod(part.lengths) * itemsizes[number], number, part, ranks))
    copies.sort(key=lambda one: (-one[0], one[1], one[2]))
    for nbytes, number, box, ranks in copies:
        rank = min(ranks, key=lambda one: (load[one], one))
        load[rank] += nbytes
        pieces.append(Piece(number, rank, box))
    pieces.sort()
    return pieces


def _parts(box: Box, count: int) -> list[Box]:
    """Cut a box along its longest dimension among those before which all have the length 1."""
    dim = next((d for d, n in enumerate(box.lengths) if n > 1), None)
    if count < 2 or dim is None:
        return [box]
    n = box.lengths[dim]
    count = min(count, n)
    cuts = [n * i // count for i in range(count + 1)]
    return [
        Box(
            (*box.offsets[:dim], box.offsets[dim] + a, *box.offsets[dim + 1 :]),
            (*box.lengths[:dim], b - a, *box.lengths[dim + 1 :]),
        )
        for a, b in pairwise(cuts)
    ]
