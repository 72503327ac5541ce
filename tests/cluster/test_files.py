"""Ranks on several hosts write one file into a folder that they share."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import reports
import safetensors.numpy
from hosts import Hosts
from mpis import MPI
from ranks_files import COLUMNS, ROWS


@pytest.mark.parametrize(
    ("mpi", "layout"), [("openmpi", "1 and 1"), ("mpich", "2 and 2")], indirect=["mpi"]
)
def test_a_file_of_several_hosts(mpi: MPI, hosts: Hosts, layout: str) -> None:
    found = reports.of_all(mpi, hosts, layout, "ranks_files.py")
    whole = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    tensors = {"rows": whole, "columns": whole + 1, "copies": whole + 2}
    wanted = hashlib.md5(safetensors.numpy.save(tensors, {"format": "pt"})).hexdigest()
    assert [r["digest"] for r in found] == [wanted] * len(found)
    assert all(r["right"] for r in found)
    assert all("a file system that all hosts share" in r["refused"] for r in found)
