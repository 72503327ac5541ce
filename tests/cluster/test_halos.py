"""Halos over nodes have the right values, and what differs between ranks is an error."""

from __future__ import annotations

import pytest
import reports
from hosts import Hosts
from mpis import MPI


@pytest.mark.parametrize(
    ("mpi", "layout"), [("openmpi", "1 and 1"), ("mpich", "2 and 2")], indirect=["mpi"]
)
def test_halos_are_right(mpi: MPI, hosts: Hosts, layout: str) -> None:
    found = reports.of_all(mpi, hosts, layout, "ranks_halo.py")
    assert [r["wrong"] for r in found] == [[] for _ in found]
    assert all(r["tried"] == 96 for r in found)
