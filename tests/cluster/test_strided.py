"""Strided tensors that go in pieces have the right values over nodes."""

from __future__ import annotations

import pytest
import reports
from hosts import Hosts
from mpis import MPI


@pytest.mark.parametrize(
    ("mpi", "layout"), [("openmpi", "1 and 1"), ("mpich", "2 and 2")], indirect=["mpi"]
)
def test_strided_tensors_are_right(mpi: MPI, hosts: Hosts, layout: str) -> None:
    found = reports.of_all(mpi, hosts, layout, "ranks_strided.py")
    assert [r["wrong"] for r in found] == [[] for _ in found]
    assert all(r["tried"] == 14 for r in found)
