"""Fixtures of torch's tests that run in every rank: ``pytest --mpi tests/ranks/torch``.

Most tests share one default process group. Those with the fixture ``no_world`` come before them:
they begin and end default groups themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from freezing import freeze, thaw
from paddlempi.testing import World

__all__ = ["freeze", "thaw"]  # fixtures of all tests here

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of ``no_world`` first, because then the shared default group does not exist."""
    items.sort(key=lambda item: "no_world" not in getattr(item, "fixturenames", ()))


@pytest.fixture
def no_world() -> Iterator[None]:
    """Neither torch nor paddlempi has a world. The environment is restored at the end."""
    import paddlempi.torch
    import torch.distributed as dist

    assert not dist.is_initialized() and not paddlempi.is_initialized()
    torch.set_num_threads(1)
    before = dict(os.environ)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
    if paddlempi.is_initialized():
        paddlempi.destroy_process_group()
    os.environ.clear()
    os.environ.update(before)


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


@pytest.fixture(scope="module")
def line(dist: ModuleType) -> Any:
    """A mesh of all ranks in one dimension."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (dist.get_world_size(),))


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
