"""Roles for tests on several ranks, and the parameter server of a test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from contract import world_size
from paddlempi.testing import World

ONE_SERVER = "trainer:*,pserver:1"
ONE_TRAINER = "pserver:*,trainer:1"
BOTH = "trainer+pserver:*"
MIXED = "trainer+pserver,trainer,pserver"


def layouts(config: pytest.Config) -> list[str]:
    """Return the roles for the ranks of this run: one trainer, or server, and several."""
    return [ONE_SERVER, ONE_TRAINER, BOTH, *([MIXED] if world_size(config) == 3 else [])]


@pytest.fixture
def begin(mpi_world: World) -> Iterator[Callable[..., bool]]:
    """A function that calls ps.init and returns whether this rank trains.

    Its parameter server ends with the test. Servers that do not train do nothing in a test: they
    answer until the trainers come to its end.
    """
    from paddlempi import ps

    def call(roles: str, **arguments: Any) -> bool:
        ps.init(roles, **{"timeout": 30, **arguments})
        return ps.is_trainer()

    yield call
    ps.shutdown()


@pytest.fixture
def folder(rank: int, dist: ModuleType) -> Any:
    """A folder that all ranks see, for the time of a test."""
    made = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(made)
    yield Path(made[0])
    dist.barrier()
    if rank == 0:
        shutil.rmtree(made[0])
