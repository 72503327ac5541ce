"""Fixtures of torch's tests that run in every rank: ``pytest --mpi tests/ranks/torch``.

One default process group serves them all: a test that needs another, or that ends one,
is a job of its own in tests/jobs/torch.
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
    """``torch.distributed``, its default group over MPI."""
    import paddlempi.torch  # noqa: F401 (what the entry point does where the package is installed)
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("mpi")
    assert dist.get_rank() == mpi_world.rank
    yield dist
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def teams(dist: ModuleType, mpi_world: World) -> list[Any]:
    """The groups of tensors.py that this rank belongs to."""
    from tensors import make_teams

    return make_teams(dist, mpi_world.rank, mpi_world.size)


@pytest.fixture
def reversed_group(dist: ModuleType, size: int) -> Iterator[Any]:
    """A group of all ranks made from a list that is not sorted (torch sorts it)."""
    group = dist.new_group(list(range(size - 1, -1, -1)))
    yield group
    dist.destroy_process_group(group)
