"""Places, boxes and who writes what: compared with what NumPy makes of the same arguments."""

from __future__ import annotations

import itertools
import re
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddlempi.errors import ArgumentError
from paddlempi.io import places, tiles
from paddlempi.io.places import Place
from paddlempi.io.tiles import Box


@st.composite
def placed(draw: Any) -> Place:
    """A place whose elements are distinct, as of a slice of a contiguous array."""
    dims = draw(st.integers(0, 4))
    whole = [draw(st.integers(1, 6)) for _ in range(dims)]
    offset, shape, strides, step = 0, [], [], 1
    for n in reversed(whole):
        begin = draw(st.integers(0, n - 1))
        every = draw(st.integers(1, 3))
        shape.insert(0, draw(st.integers(0, (n - begin + every - 1) // every)))
        strides.insert(0, step * every)
        offset += begin * step
        step *= n
    return Place(offset, tuple(shape), tuple(strides))


def row(place: Place) -> Any:
    """Return a row in which the place lies, and the elements of the place."""
    data = np.arange(6**4)
    strides = [step * data.itemsize for step in place.strides]
    return np.ndarray(place.shape, data.dtype, data.data, place.offset * data.itemsize, strides)


@given(placed())
@settings(max_examples=80, deadline=None)
def test_runs_are_the_elements(place: Place) -> None:
    there = places.runs(place)
    found = [begin + i for begin in there.begins.tolist() for i in range(there.elements)]
    assert found == row(place).reshape(-1).tolist()


@given(placed(), st.integers(1, 40))
@settings(max_examples=80, deadline=None)
def test_slabs_are_short_and_in_order(place: Place, limit: int) -> None:
    wanted, end = row(place), 0
    seen = np.zeros(place.shape, int)
    for slab in places.slabs(place, limit):
        part = wanted[slab.part]
        assert part.shape == slab.place.shape
        assert np.array_equal(row(slab.place), part)
        assert 0 < places.span(slab.place) <= limit
        assert part.reshape(-1)[0] >= end
        end = part.reshape(-1)[-1]
        seen[slab.part] += 1
    assert (seen == 1).all()


@given(placed(), st.lists(st.booleans(), min_size=4, max_size=4))
@settings(max_examples=40, deadline=None)
def test_flipped(place: Place, turned: list[bool]) -> None:
    index = tuple(
        slice(None, None, -1 if turn else 1) for turn, _ in zip(turned, place.shape, strict=False)
    )
    offset = place.offset
    for turn, n, step in zip(turned, place.shape, place.strides, strict=False):
        offset += (n - 1) * step if turn and n else 0
    signed = tuple(
        -step if turn else step for turn, step in zip(turned, place.strides, strict=False)
    )
    found, turns = places.flipped(Place(offset, place.shape, signed))
    assert np.array_equal(row(found)[turns], row(place)[index])
    assert all(step >= 0 for step in found.strides)


def boxes(*pairs: tuple[Any, Any]) -> Any:
    return np.array(pairs, np.int64)


@st.composite
def cut(draw: Any) -> tuple[tuple[int, ...], list[Box]]:
    """A shape and boxes that tile it, by cutting a box again and again."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    found = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        number = draw(st.integers(0, len(found) - 1))
        dim = draw(st.integers(0, len(shape) - 1))
        box = found.pop(number)
        at = draw(st.integers(0, box.lengths[dim]))
        for begin, n in ((0, at), (at, box.lengths[dim] - at)):
            offsets, lengths = list(box.offsets), list(box.lengths)
            offsets[dim] += begin
            lengths[dim] = n
            found.append(Box(tuple(offsets), tuple(lengths)))
    return shape, found


@given(cut(), st.integers(1, 3), st.randoms())
@settings(max_examples=80, deadline=None)
def test_boxes_that_tile(
    given_: tuple[tuple[int, ...], list[Box]], copies: int, random: Any
) -> None:
    shape, found = given_
    everyone = found * copies
    random.shuffle(everyone)
    held = tiles.check("w", shape, boxes(*everyone))
    assert set(held) == {box for box in found if prod(box.lengths)}
    for box, ranks in held.items():
        assert [everyone[rank] for rank in ranks] == [box] * len(ranks)
    pieces = tiles.shared_out([held], [1 << 20], len(everyone))
    seen = np.zeros(shape, int)
    for piece in pieces:
        seen[tuple(slice(o, o + n) for o, n in zip(*piece.box, strict=True))] += 1
        mine = everyone[piece.rank]
        assert all(
            o <= a and a + n <= o + m for a, n, o, m in zip(*piece.box, *mine, strict=True)
        ), "a rank writes what it has not"
    assert (seen == 1).all()


@given(cut(), st.data())
@settings(max_examples=80, deadline=None)
def test_boxes_that_do_not_tile(given_: tuple[tuple[int, ...], list[Box]], data: Any) -> None:
    """One box is moved, or is longer or shorter, or missing."""
    shape, found = given_
    number = data.draw(st.integers(0, len(found) - 1))
    offsets, lengths = map(list, found[number])
    dim = data.draw(st.integers(0, len(shape) - 1))
    lengths[dim] = data.draw(st.integers(0, shape[dim]))
    offsets[dim] = data.draw(st.integers(0, shape[dim] - lengths[dim]))
    changed = [*found[:number], Box(tuple(offsets), tuple(lengths)), *found[number + 1 :]]
    seen = np.zeros(shape, int)
    for box in set(changed):
        seen[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))] += 1
    if (seen == 1).all():
        tiles.check("w", shape, boxes(*changed))
        return
    with pytest.raises(ArgumentError, match="'w'"):
        tiles.check("w", shape, boxes(*changed))


def test_the_errors_name_ranks_and_boxes() -> None:
    with pytest.raises(ArgumentError, match="'w': the boxes of the ranks overlap: rank "):
        tiles.check("w", (4,), boxes(((0,), (3,)), ((2,), (2,))))
    with pytest.raises(
        ArgumentError,
        match=re.escape("the ranks hold 2 of its 4 elements, the boxes [0:1], [3:4]"),
    ):
        tiles.check("w", (4,), boxes(((0,), (1,)), ((3,), (1,))))
    with pytest.raises(ArgumentError, match="hold 0 of its 4 elements, the boxes none"):
        tiles.check("w", (4,), boxes(((0,), (0,)), ((0,), (0,))))
    assert tiles.check("w", (0, 4), boxes(((0, 0), (0, 4)))) == {}
    assert tiles.check("w", (), np.zeros((3, 2, 0), np.int64)) == {Box((), ()): [0, 1, 2]}


def test_a_grid_of_many_boxes() -> None:
    """Thousands of boxes take no time that anybody sees."""
    many = [((i, j), (1, 1)) for i, j in itertools.product(range(60), range(60))]
    assert len(tiles.check("w", (60, 60), boxes(*many))) == 3600
    many[1234] = many[1235]
    with pytest.raises(ArgumentError, match="not whole"):
        tiles.check("w", (60, 60), boxes(*many))


def test_copies_are_shared_out_evenly() -> None:
    """Of a model that all ranks have, each writes as much; also if one tensor is most of it."""
    everyone = list(range(4))
    sizes = [(1 << 26,), (300,), (1 << 20,), (5,), (1 << 22,)]
    held = [{Box((0,), size): everyone} for size in sizes]
    load = [0] * 4
    for piece in tiles.shared_out(held, [4] * len(sizes), 4):
        load[piece.rank] += 4 * piece.box.lengths[0]
    assert sum(load) == 4 * sum(size for (size,) in sizes)
    assert max(load) - min(load) <= 4 << 20


def test_who_has_more_already_writes_fewer_copies() -> None:
    held = [{Box((0,), (90,)): [0]}, {Box((0,), (30,)): [0, 1]}, {Box((0,), (50,)): [0, 1]}]
    assert [piece.rank for piece in tiles.shared_out(held, [1, 1, 1], 2)] == [0, 1, 1]
