"""``save_state`` and ``load_state``: what comes back is what was saved, or an error names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paddlempi import errors, io


def state() -> dict[Any, Any]:
    return {
        "model": {"w": np.arange(6.0).reshape(2, 3), "b": np.float32(2)},
        "optimizer": {
            "state": {0: {"step": np.array(7), "m": np.ones(3)}, 1: {}},
            "groups": [{"betas": (0.9, 0.99), "lr": np.array(0.1), "params": [0, 1]}],
        },
        "step": 3,
        "name": None,
        "text": "ümlaut",
        "flags": (True, float("inf"), ()),
        "paddlempi.kind": "a key of ours",
    }


def same(one: Any, two: Any) -> None:
    if isinstance(two, (np.ndarray, np.generic)):
        assert np.array_equal(one, two) and one.dtype == two.dtype
    elif isinstance(two, dict):
        assert isinstance(one, dict) and list(one) == list(two)
        for key in two:
            same(one[key], two[key])
    elif isinstance(two, (list, tuple)):
        assert type(one) is type(two) and len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            same(a, b)
    else:
        assert one == two and type(one) is type(two)


@pytest.mark.parametrize("most", [None, 60], ids=["file", "set"])
def test_what_comes_back_is_what_was_saved(tmp_path: Path, most: int | None) -> None:
    io.save_state(state(), tmp_path / "s", most, {"format": "np"})
    same(io.load_state(tmp_path / "s"), state())
    with io.open_file(tmp_path / "s") as file:
        assert file.metadata()["format"] == "np"
        assert "optimizer.state.0.step" in file and "optimizer.groups.0.lr" in file


def test_like_is_filled(tmp_path: Path) -> None:
    io.save_state(state(), tmp_path / "s")
    mine = np.zeros((2, 3))
    found = io.load_state(tmp_path / "s", {"model": {"w": mine}, "step": 0})
    assert found["model"]["w"] is mine
    same(found, state())


def test_flat_tensors_are_a_plain_file(tmp_path: Path) -> None:
    tensors = {"a.b": np.arange(3), "c": np.zeros(2)}
    io.save_state(tensors, tmp_path / "s")
    io.save_file(tensors, tmp_path / "f")
    assert (tmp_path / "s").read_bytes() == (tmp_path / "f").read_bytes()
    same(io.load_state(tmp_path / "s"), tensors)
    mine = {"a": {"b": np.zeros(3, int)}, "n": 5}
    assert io.load_state(tmp_path / "f", mine) is mine and mine["a"]["b"].tolist() == [0, 1, 2]


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    for wrong, kind, message in (
        ([1], errors.DtypeError, "the state is a list"),
        ({"a": {"b": object()}}, errors.DtypeError, "'a.b' has a object"),
        ({"a": {1, 2}}, errors.DtypeError, "'a' has a set"),
        ({"a.b": np.zeros(1), "a": {"b": np.zeros(1)}}, errors.ArgumentError, "the name 'a.b'"),
    ):
        with pytest.raises(kind, match=message):
            io.save_state(wrong, tmp_path / "s")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "tree",
    [
        "{",
        '{"a": {"paddlempi.kind": "no", "items": 1}}',
        '{"a": {"paddlempi.kind": "tensor", "items": "no"}}',
        '{"a": {"paddlempi.kind": "tuple"}}',
        '{"a": {"paddlempi.kind": "map", "items": [1]}}',
        '{"a": {"paddlempi.kind": "map", "items": [[[], 1]]}}',
    ],
)
def test_a_damaged_tree(tmp_path: Path, tree: str) -> None:
    io.save_file({"w": np.zeros(1)}, tmp_path / "s", metadata={"paddlempi.tree": tree})
    with pytest.raises(errors.ArgumentError, match="the values in the metadata"):
        io.load_state(tmp_path / "s")
