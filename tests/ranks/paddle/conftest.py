"""Fixtures of Paddle's tests that run in every rank: ``pytest --mpi tests/ranks/paddle``."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
from paddlempi.testing import World

pytest.importorskip("paddle", reason="paddle is not installed")


@pytest.fixture(scope="session")
def dist(mpi_world: World) -> Iterator[ModuleType]:
    """``paddle.distributed`` with a default group over MPI."""
    import paddle.distributed as dist
    import paddlempi.paddle

    paddlempi.paddle.init()
    assert dist.get_rank() == mpi_world.rank
    yield dist
    dist.destroy_process_group()
