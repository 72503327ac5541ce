"""The library that jaxlib loads as its MPI works over nodes."""

from __future__ import annotations

import pytest
import reports
from hosts import Hosts
from mpis import MPI


@pytest.mark.parametrize("mpi", ["mpich"], indirect=True)
def test_calls_of_xla(mpi: MPI, hosts: Hosts) -> None:
    found = reports.of_all(mpi, hosts, "2 and 2", "ranks_xla.py")
    assert [r["wrong"] for r in found] == [[] for _ in found]
