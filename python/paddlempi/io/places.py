"""Places: which elements of a long row of elements an array has, and their runs and slabs.

The row is a tensor of a file, or the file itself. An array of it is told by a
:class:`~paddlempi.window_proxy.Place`: an offset, a shape and strides, in elements. That of a box
of a tensor has the strides of the tensor. A *run* is elements of a place that lie one behind the
other. A *slab* is a part of a place whose elements lie in a short range of the row, so that it can
be staged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..window_proxy import Place, whole

__all__ = [
    "Place",
    "Runs",
    "Slab",
    "box",
    "flipped",
    "overlaps",
    "runs",
    "slabs",
    "span",
    "whole",
]


class Runs(NamedTuple):
    """The runs of a place.

    Attributes:
        dims: how many leading dimensions of the place number the runs.
        begins: where each begins, in elements, in the order of the place; int64.
        elements: of each run.
    """

    dims: int
    begins: Any
    elements: int


class Slab(NamedTuple):
    """A part of a place.

    Attributes:
        part: its index in an array of the place's shape.
        place: the part's.
    """

    part: tuple[slice, ...]
    place: Place


def box(shape: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> Place:
    """Return the place of a box of a contiguous tensor."""
    strides = whole(tuple(shape)).strides
    offset = sum(begin * step for begin, step in zip(offsets, strides, strict=True))
    return Place(offset, tuple(lengths), strides)


def span(place: Place) -> int:
    """Return how many elements there are from the first to the last. No stride is below 0."""
    if 0 in place.shape:
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(place.shape, place.strides, strict=True))


def flipped(place: Place) -> tuple[Place, tuple[slice, ...]]:
    """Return a place without strides below 0.

    Returns:
        The place, and the index that makes an array of it one of the place that was given.
    """
    offset = place.offset
    index, strides = [], []
    for n, step in zip(place.shape, place.strides, strict=True):
        if step < 0 and n:
            offset += (n - 1) * step
        index.append(slice(None, None, -1 if step < 0 else None))
        strides.append(abs(step))
    return Place(offset, place.shape, tuple(strides)), tuple(index)


def runs(place: Place) -> Runs:
    """Return the runs of a place without strides below 0."""
    elements, dims = 1, len(place.shape)
    while dims and (place.strides[dims - 1] == elements or place.shape[dims - 1] == 1):
        dims -= 1
        elements *= place.shape[dims]
    begins = np.array([place.offset], np.int64)
    for n, step in zip(place.shape[:dims], place.strides[:dims], strict=True):
        begins = np.add.outer(begins, np.arange(n, dtype=np.int64) * step)
    return Runs(dims, begins.reshape(-1), elements)


def slabs(place: Place, limit: int) -> Iterator[Slab]:
    """Yield the slabs of a place, in its order; each has a span of at most ``limit`` elements.

    No stride is below 0. An empty place has none.
    """
    if 0 in place.shape:
        return
    # The slabs are parts of dimension ``dim``, with all of the dimensions behind it.
    dim, inner = len(place.shape), 1
    while dim:
        n, step = place.shape[dim - 1], place.strides[dim - 1]
        if inner + (n - 1) * step > limit:
            break
        dim -= 1
        inner += (n - 1) * step
    if dim == 0:
        yield Slab(tuple(slice(0, n) for n in place.shape), place)
        return
    dim -= 1
    step = place.strides[dim]
    rows = max(1, (limit - inner) // step + 1) if step else place.shape[dim]
    behind = tuple(slice(0, n) for n in place.shape[dim + 1 :])
    for before in np.ndindex(*place.shape[:dim]):
        base = place.offset + sum(i * s for i, s in zip(before, place.strides, strict=False))
        for first in range(0, place.shape[dim], rows):
            count = min(rows, place.shape[dim] - first)
            yield Slab(
                (*(slice(i, i + 1) for i in before), slice(first, first + count), *behind),
                Place(
                    base + first * step,
                    (*(1 for _ in before), count, *place.shape[dim + 1 :]),
                    place.strides,
                ),
            )


def overlaps(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two elements of an array may have the same address, as the core sees it.

    It is true for every overlap, and for some arrays with strides made by hand.

    Args:
        shape, strides: the array's. A stride of 1 is one element.
    """
    if 0 in shape:
        return False
    reach = 0  # from the first to the last element of the dimensions so far
    for step, n in sorted((abs(step), n) for step, n in zip(strides, shape, strict=True) if n > 1):
        if step <= reach:
            return True
        reach += step * (n - 1)
    return False
