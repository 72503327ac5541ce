"""Fixtures of JAX's tests that run in every rank: ``pytest --mpi tests/ranks/jax``."""

from __future__ import annotations

from types import ModuleType

import pytest
from paddlempi.testing import World

pytest.importorskip("jax", reason="jax is not installed")


@pytest.fixture(scope="session")
def dist(mpi_world: World) -> ModuleType:
    """``paddlempi``, whose world the plugin has begun."""
    import paddlempi

    assert paddlempi.get_rank() == mpi_world.rank
    return paddlempi
