"""Fixtures of JAX's tests that run in every rank: ``pytest --mpi tests/ranks/jax``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from paddlempi.testing import World

jax = pytest.importorskip("jax", reason="jax is not installed")


@pytest.fixture(scope="session")
def dist(mpi_world: World) -> ModuleType:
    """``paddlempi``, whose world the plugin has begun."""
    import paddlempi

    assert paddlempi.get_rank() == mpi_world.rank
    return paddlempi


@pytest.fixture(scope="session")
def pj(dist: ModuleType) -> ModuleType:
    """``paddlempi.jax``."""
    import paddlempi.jax

    return paddlempi.jax


@pytest.fixture(params=["eager", "jit"])
def way(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """How a function of arrays is called: as it is, or compiled."""
    return jax.jit if request.param == "jit" else lambda function: function


@pytest.fixture
def wide() -> Iterator[None]:
    """JAX has dtypes of 64 bits."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def backwards(dist: ModuleType, mpi_world: World) -> Any:
    """A group of all ranks in reverse order."""
    return dist.new_group(list(range(mpi_world.size - 1, -1, -1)))
