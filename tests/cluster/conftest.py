"""One set of hosts, and one Slurm on them, for all cluster tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import mpis
import pytest
import requirements
from hosts import Hosts
from slurm import Slurm

ALL = "TEST_ALL" in os.environ
"""Whether every MPI is asked everything. Otherwise each is asked what depends on it."""


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """Two hosts, h1 and h2."""
    yield from up(2)


@pytest.fixture(scope="module")
def three() -> Iterator[Hosts]:
    """The hosts h1, h2 and h3."""
    yield from up(3)


@pytest.fixture(scope="module")
def four() -> Iterator[Hosts]:
    """The hosts h1 to h4."""
    yield from up(4)


def up(count: int) -> Iterator[Hosts]:
    reason = requirements.hosts_missing()
    if reason:
        pytest.skip(reason)
    with Hosts(count) as up:
        yield up


@pytest.fixture(scope="session")
def slurm(hosts: Hosts) -> Slurm:
    """Slurm on both hosts."""
    reason = requirements.slurm_missing()
    if reason:
        pytest.skip(reason)
    return Slurm(hosts)


@pytest.fixture(scope="session", params=mpis.NAMES)
def mpi(request: pytest.FixtureRequest) -> mpis.MPI:
    """Every MPI, one after another."""
    return installed(request.param)


@pytest.fixture(scope="session")
def openmpi() -> mpis.MPI:
    """Open MPI, for what no other launcher does."""
    return installed("openmpi")


def installed(name: str) -> mpis.MPI:
    """Return an MPI; skip the test if it is not installed."""
    found = mpis.MPI(name, mpis.ROOT / f".venv-{name}")
    reason = requirements.venv_missing(found.python)
    if reason:
        pytest.skip(reason)
    return found
