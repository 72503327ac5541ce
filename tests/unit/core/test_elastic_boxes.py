"""Boxes of tensors that are divided among ranks, in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paddlempi.elasticity import boxes
from paddlempi.elasticity.boxes import Box, Flat, complete, fill, mark_of, size_of


def box(begin: int, size: int) -> Box:
    return Box((10, 2), "float32", 4, (begin, 0), (size, 2), True)


def scalar(itemsize: int, dtype: str) -> Box:
    return Box((), dtype, itemsize, (), (), False)


def test_boxes_that_are_whole() -> None:
    halves = [(0, 0, {"w": box(0, 5)}), (1, 0, {"w": box(5, 5)})]
    found = complete([*halves, (2, 1, {"w": box(5, 5)})])
    assert found is not None
    assert {at: who[:2] for at, who in found["w"].items()} == {(0, 0): (0, 0), (5, 0): (1, 0)}
    assert complete(halves[1:]) is None
    assert complete([*halves[:1], (1, 0, {"w": box(5, 4)})]) is None
    assert complete([(0, 0, {"step": scalar(4, "float32")})]) is not None
    nothing = Box((0, 2), "float32", 4, (0, 0), (0, 2), False)
    assert complete([(0, 0, {"none": nothing})]) is not None


def test_the_owner_of_states_is_missing() -> None:
    """What it has, nobody else knows by name."""
    owner = (0, 0, {"owner": mark_of(True)[0], "moment": box(0, 10)})
    other = (1, 0, {"owner": mark_of(False)[0]})
    found = complete([owner, other])
    assert found is not None and found["moment"][0, 0][0] == found["owner"][0,][0] == 0
    assert complete([other]) is None


def test_boxes_are_filled_from_boxes_of_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """From this rank and another one, whose memory comes by broadcasts."""
    whole = np.arange(20, dtype="u4").reshape(10, 2)
    theirs: list[Any] = [whole[5:], np.array(7, "u8")]
    told: list[tuple[int, int]] = []

    def broadcast(memory: Any, root: int) -> None:
        told.append((root, memory.nbytes))
        if root == 1:
            memory[:] = theirs.pop(0).reshape(-1).view("u1")

    monkeypatch.setattr(boxes, "broadcast", broadcast)
    monkeypatch.setattr(boxes.group, "get_rank", lambda: 0)
    step = scalar(8, "int64")
    mine, other = (0, 1, {"w": box(0, 5)}), (1, 0, {"w": box(5, 5), "s": step})
    who = complete([mine, other])
    assert who is not None
    local, number = np.zeros((2, 4), "u4").T, np.zeros((), "u8")
    targets = {"w": (box(3, 4), local), "s": (step, number)}
    fill(targets, who, [{}, {"w": np.asfortranarray(whole[:5])}])
    assert (local == whole[3:7]).all() and number == 7
    assert told == [(0, 40), (1, 40), (1, 8)]


def test_boxes_in_one_piece_of_memory() -> None:
    index = {"a": box(0, 5), "b": scalar(1, "bool"), "c": box(0, 0), "d": scalar(16, "complex128")}
    flat = Flat(index)
    assert flat.arrays["a"].shape == (5, 2) and flat.arrays["c"].shape == (0, 2)
    assert flat.memory.size == size_of(index) == 3 * 64
    flat.arrays["d"][...] = 1 + 2j
    flat.arrays["b"][...] = 3
    assert flat.memory[64] == 3 and flat.memory[128:144].view("c16") == 1 + 2j
