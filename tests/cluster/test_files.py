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

LAYOUTS = {"1 and 1": (("h1", 1), ("h2", 1)), "2 and 2": (("h1", 2), ("h2", 2))}


@pytest.mark.parametrize(
    ("mpi", "layout"), [("openmpi", "1 and 1"), ("mpich", "2 and 2")], indirect=["mpi"]
)
def test_a_file_of_several_hosts(mpi: MPI, hosts: Hosts, layout: str) -> None:
    with reports.directory(hosts) as place:
        program = [reports.HERE / "ranks_files.py", place]
        result = mpi.run(hosts, LAYOUTS[layout], program, timeout=120)
        found = reports.read(place)
    assert len(found) == sum(ranks for _, ranks in LAYOUTS[layout]), str(result)
    whole = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    tensors = {"rows": whole, "columns": whole + 1, "copies": whole + 2}
    wanted = hashlib.md5(safetensors.numpy.save(tensors, {"format": "pt"})).hexdigest()
    assert [r["digest"] for r in found] == [wanted] * len(found)
    assert all(r["right"] for r in found)
    assert all("a file system that all hosts share" in r["refused"] for r in found)
    assert result.code == 0 and not result.timed_out, str(result)
