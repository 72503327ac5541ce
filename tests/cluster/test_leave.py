"""A rank of a job on several hosts ends before the others, under every MPI."""

from __future__ import annotations

import itertools

import pytest
import reports
from conftest import ALL
from hosts import Hosts
from mpis import MPI, NAMES

SHAPES = {
    "2x2": (("h1", 2), ("h2", 2)),
    "1+3": (("h1", 1), ("h2", 3)),
    "4x1": (("h1", 1), ("h2", 1), ("h3", 1), ("h4", 1)),
}

EVERY = list(itertools.product(NAMES, SHAPES, ["16", "262144"]))
# Each MPI ends ranks that wait in a short call, and in a long one; each shape has both.
SOME = [
    ("openmpi", "2x2", "16"),
    ("openmpi", "4x1", "262144"),
    ("mpich", "1+3", "16"),
    ("mpich", "2x2", "262144"),
    ("impi", "4x1", "16"),
    ("impi", "1+3", "262144"),
]


@pytest.mark.parametrize(("mpi", "shape", "elements"), EVERY if ALL else SOME, indirect=["mpi"])
def test_a_rank_that_leaves_is_named(mpi: MPI, four: Hosts, shape: str, elements: str) -> None:
    """The ranks that are told first end first, and take nothing from the others."""
    with reports.directory(four) as place:
        program = [reports.HERE / "ranks_leave.py", place, elements]
        result = mpi.run(four, SHAPES[shape], program, timeout=60)
        found = reports.read(place)
    left = {"PeerLeftError": [2], "": []}
    assert result.code == 0 and not result.strays, f"{found}\n{result}"
    assert [r["error"] for r in found] == ["PeerLeftError", "PeerLeftError", "", "PeerLeftError"]
    assert all(r.get("ranks", []) == left[r["error"]] for r in found), found
    assert all(r.get("seconds", 0) < 12 for r in found), found
    assert "paddlempi" not in result.text, result


def test_worlds_that_are_destroyed_end_in_order(mpi: MPI, four: Hosts) -> None:
    with reports.directory(four) as place:
        program = [reports.HERE / "ranks_worlds.py", place]
        result = mpi.run(four, SHAPES["2x2"], program, timeout=60)
        found = reports.read(place)
    assert result.code == 0 and not result.strays, f"{found}\n{result}"
    assert [r["sum"] for r in found] == [4, 4, 4, 4], found
