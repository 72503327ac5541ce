"""Strided tensors that go in pieces have the right values over nodes."""

from __future__ import annotations

import pytest
import reports
from hosts import Hosts
from mpis import MPI

LAYOUTS = {"1 and 1": (("h1", 1), ("h2", 1)), "2 and 2": (("h1", 2), ("h2", 2))}


@pytest.mark.parametrize(
    ("mpi", "layout"), [("openmpi", "1 and 1"), ("mpich", "2 and 2")], indirect=["mpi"]
)
def test_strided_tensors_are_right(mpi: MPI, hosts: Hosts, layout: str) -> None:
    with reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_strided.py", place]
        result = mpi.run(hosts, LAYOUTS[layout], program, timeout=120)
        found = reports.read(place)
    assert len(found) == sum(ranks for _, ranks in LAYOUTS[layout]), str(result)
    assert [r["wrong"] for r in found] == [[] for _ in found]
    assert all(r["tried"] == 14 for r in found)
    assert result.code == 0 and not result.timed_out, str(result)
