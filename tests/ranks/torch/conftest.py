"""Fixtures of torch's tests that run in every rank: ``pytest --mpi tests/ranks/torch``.

All tests share one default process group. A test that needs another default group, or that ends
it, is a job of its own in tests/jobs/torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from paddlempi.testing import World

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="session")
def dist(mpi_world: World) -> Iterator[ModuleType]:
    """``torch.distributed`` with a default group over MPI."""
    import paddlempi.torch  # noqa: F401 (the entry point does this if the package is installed)
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    assert dist.get_rank() == mpi_world.rank
    yield dist
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def teams(dist: ModuleType, mpi_world: World) -> list[Any]:
    """The groups of ``tensors.make_teams`` that this rank belongs to."""
    from tensors import make_teams

    return make_teams(dist, mpi_world.rank, mpi_world.size)


@pytest.fixture
def reversed_group(dist: ModuleType, size: int) -> Iterator[Any]:
    """A group of all ranks from a list in reverse order, which torch sorts."""
    group = dist.new_group(list(range(size - 1, -1, -1)))
    yield group
    dist.destroy_process_group(group)
