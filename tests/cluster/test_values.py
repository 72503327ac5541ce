"""Collectives over nodes have the values that NumPy computes, and the same bits on all ranks."""

from __future__ import annotations

import itertools

import pytest
import reports
from conftest import ALL
from hosts import Hosts
from mpis import MPI, NAMES

SHAPES = {
    "2x1": (1, 1),
    "2x2": (2, 2),
    "3x1": (1, 1, 1),
    "1+2": (1, 2),
    "1+2+3": (1, 2, 3),
    "4x1": (1, 1, 1, 1),
    "3x2": (2, 2, 2),
}
EVERY = list(zip(itertools.cycle(NAMES), SHAPES))
SOME = [("mpich", "2x2"), ("openmpi", "1+2")]
HOW_MUCH = "all" if ALL else "some"
# What must have served: the program is of no use if the sizes pass an algorithm by.
ALGORITHMS = {"2x1": {"doubling", "slices"}, "3x1": {"slices"}, "4x1": {"slices"}}


@pytest.mark.parametrize(("mpi", "shape"), EVERY if ALL else SOME, indirect=["mpi"])
def test_values_and_bits_are_right(mpi: MPI, four: Hosts, shape: str) -> None:
    layout = [(f"h{i + 1}", ranks) for i, ranks in enumerate(SHAPES[shape])]
    with reports.directory(four) as place:
        program = [reports.HERE / "ranks_values.py", place, HOW_MUCH]
        result = mpi.run(four, layout, program, timeout=300)
        found = reports.read(place)
    assert len(found) == sum(SHAPES[shape]), str(result)
    assert [r["wrong"] for r in found] == [[] for _ in found]
    assert all(r["tried"] > 300 for r in found), found
    for report in found:
        assert {"inline", *ALGORITHMS.get(shape, {"leaders", "levels"})} <= set(
            report["algorithms"]
        ), report
    assert result.code == 0 and not result.timed_out, str(result)
