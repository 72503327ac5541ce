"""Fixtures for tests that every rank runs.

Puts tests/helpers and tools/cluster on the import path of all tests.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "helpers"), str(HERE.parent / "tools" / "cluster")]

if TYPE_CHECKING:  # tests/build runs where the package is not installed
    from paddlempi.testing import World


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note why a test fails: of a first try pytest-rerunfailures leaves nothing in the report."""
    report = yield
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash else str(report.longrepr)
        said = ("first_failure", "\n".join(text.splitlines()[:60]))
        item.user_properties.append(said)
        report.user_properties.append(said)
    return report


@pytest.fixture
def rank(mpi_world: World) -> int:
    """This rank of the world."""
    return mpi_world.rank


@pytest.fixture
def size(mpi_world: World) -> int:
    """The number of ranks of the world."""
    return mpi_world.size


@pytest.fixture
def here(dist: ModuleType, rank: int) -> Iterator[Path]:
    """A folder that all ranks see. ``dist`` is that of the front whose tests these are."""
    paths = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(paths, 0)
    yield Path(paths[0])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(paths[0])
