"""Fixtures of all tests that run in every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # tests/build runs where the package is not installed
    from paddlempi.testing import World


@pytest.fixture
def rank(mpi_world: World) -> int:
    """This rank of the world."""
    return mpi_world.rank


@pytest.fixture
def size(mpi_world: World) -> int:
    """The number of ranks of the world."""
    return mpi_world.size
