"""One set of hosts, and one Slurm on them, for all cluster tests."""

from __future__ import annotations

from collections.abc import Iterator

import mpis
import pytest
import requirements
from hosts import Hosts
from slurm import Slurm


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """Two hosts, h1 and h2."""
    reason = requirements.hosts_missing()
    if reason:
        pytest.skip(reason)
    with Hosts(2) as up:
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
    found = mpis.MPI(request.param, mpis.ROOT / f".venv-{request.param}")
    reason = requirements.venv_missing(found.python)
    if reason:
        pytest.skip(reason)
    return found
