"""The index of a proxy chooses the elements that NumPy's basic indexing chooses."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from paddlempi.errors import ArgumentError, DtypeError
from paddlempi.window_proxy import Place, indexed, whole

SHAPES = [(), (7,), (0,), (3, 4), (2, 0, 3), (2, 3, 4), (1, 2, 1, 3)]


def chosen(place: Place) -> np.ndarray[Any, Any]:
    """Return the numbers, in the window, of the elements of a place."""
    numbers = np.full(place.shape, place.offset)
    for dim, (length, stride) in enumerate(zip(place.shape, place.strides, strict=True)):
        steps = np.arange(length) * stride
        numbers += steps.reshape(-1, *[1] * (len(place.shape) - dim - 1))
    return numbers


def an_index(draw: random.Random, shape: tuple[int, ...]) -> Any:
    """Return a valid index for a shape: of some dimensions, or of one without a tuple."""
    items: list[Any] = []
    for length in shape[: draw.randint(0, len(shape))]:
        if length and draw.random() < 0.4:
            items.append(draw.choice([int, np.int64, np.array])(draw.randrange(-length, length)))
        else:
            ends = [draw.choice([None, *range(-length - 2, length + 3)]) for _ in range(2)]
            items.append(slice(*ends, draw.choice([None, 1, 2, 3, -1, -2, -5])))
    if draw.random() < 0.4:  # anywhere if it stands for no dimension, else behind the others
        at = draw.randint(0, len(items)) if len(items) == len(shape) else len(items)
        items.insert(at, Ellipsis)
    for _ in range(draw.choice([0, 0, 1, 2])):
        items.insert(draw.randint(0, len(items)), None)
    return items[0] if len(items) == 1 and draw.random() < 0.5 else tuple(items)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_that_of_numpy(shape: tuple[int, ...]) -> None:
    draw = random.Random(str(shape))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    for _ in range(500):
        place, part = whole(shape), array
        for _ in range(2):  # the second one is an index of an indexed proxy
            index = an_index(draw, part.shape)
            place, part = indexed(place, index), part[index]
            assert place.shape == part.shape, index
            assert np.array_equal(chosen(place), part), index


def test_the_last_dimensions_after_an_ellipsis() -> None:
    array = np.arange(24).reshape(2, 3, 4)
    for index in [(..., 1), (..., 0, 1), (1, ..., 2), (..., slice(1, 3)), (None, ..., 1, None)]:
        assert np.array_equal(chosen(indexed(whole((2, 3, 4)), index)), array[index])


def test_the_time_does_not_depend_on_the_elements() -> None:
    shape = (1 << 40, 1 << 20)  # a loop over them, or a list, would never end
    place = indexed(whole(shape), (slice(None, None, -3), 5))
    assert place == (5 + ((1 << 40) - 1) * (1 << 20), ((1 << 40) // 3 + 1,), (-3 << 20,))


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (3, ArgumentError, "3 is out of range for dimension 0 of length 3"),
        ((0, -5), ArgumentError, "-5 is out of range for dimension 1 of length 4"),
        ((0, 0, 0), ArgumentError, "names 3 dimensions"),
        ((..., ...), ArgumentError, "2 times"),
        (slice(None, None, 0), ArgumentError, "zero"),
        (slice(0.5), DtypeError, "slice"),
        ([0, 1], DtypeError, "list"),
        (np.array([0, 1]), DtypeError, "ndarray"),
        (np.array([1]), DtypeError, "ndarray"),
        (np.ones((3, 4), bool), DtypeError, "ndarray"),
        (True, DtypeError, "bool"),
        (np.True_, DtypeError, "bool"),
        (1.0, DtypeError, "float"),
        ("a", DtypeError, "str"),
    ],
    ids=repr,
)
def test_another_index_is_an_error(index: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"index of a window: .*{text}"):
        indexed(whole((3, 4)), index)
