"""`pytest --mpi` when a rank hangs or dies: the report must survive under every launcher."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest
from paddlempi.testing import Result, run

pytestmark = pytest.mark.launcher("pytest runs in every rank")

# Without the other plugins that are installed, which take every rank a second to load.
PYTEST = [sys.executable, "-m", "pytest", "-p", "paddlempi.testing.plugin", "--mpi", "--color=no"]
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def ranks(directory: Path, body: str, *options: str) -> Result:
    source = f"""
        import os, time
        def test_before(): pass
        def test_it(mpi_place):
            {body}
        def test_after(): pass
        """
    (directory / "test_it.py").write_text(textwrap.dedent(source), encoding="utf-8")
    command = [*PYTEST, "test_it.py", *options]
    return run(2, command, cwd=directory, timeout=60, env=ALONE)


def test_failure_on_one_rank(tmp_path: Path) -> None:
    result = ranks(tmp_path, "assert mpi_place.rank == 0")
    assert result.returncode != 0
    assert "1 failed, 2 passed" in result.stdout
    assert "rank 1 of 2" in result.stdout


@pytest.mark.parametrize("rank", [0, 1])
def test_hang(tmp_path: Path, rank: int) -> None:
    body = f"time.sleep(1000 * (mpi_place.rank == {rank}))"
    result = ranks(tmp_path, body, "--mpi-timeout=4")
    assert not result.timed_out
    assert result.returncode != 0
    assert "1 failed, 1 passed, 1 not run" in result.stdout
    assert f"rank {rank} did not finish within the deadline of 4 s" in result.stdout


@pytest.mark.parametrize("rank", [0, 1])
def test_failure_on_one_rank_makes_the_other_hang(tmp_path: Path, rank: int) -> None:
    """The failure is told: it is the reason why the other rank waits."""
    body = f"assert mpi_place.rank != {rank}, 'because' + ' of this'; time.sleep(1000)"
    result = ranks(tmp_path, body, "--mpi-timeout=4")
    assert f"rank {1 - rank} did not finish within the deadline of 4 s" in result.stdout
    assert f"(rank {rank} failed)" in result.stdout
    assert f"failure of rank {rank}, before the others came" in result.stdout
    assert "AssertionError: because of this" in result.stdout


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(0)"])
def test_death(tmp_path: Path, rank: int, end: str) -> None:
    result = ranks(tmp_path, f"mpi_place.rank == {rank} and {end}")
    assert not result.timed_out
    assert result.returncode != 0
    # If the launcher kills rank 0 before it can report, the hub names the test.
    assert re.search(r"rank [01] ended while test_it.py::test_it ran", result.output)
    assert "test_after PASSED" not in result.output


def test_ranks_of_several_hosts_meet_over_tcp(tmp_path: Path) -> None:
    """The variables say one rank per host, so the ranks meet through paddlempi itself."""
    (tmp_path / "test_it.py").write_text(
        "def test_it(mpi_world): assert mpi_world.rank != 1, 'over TCP'\n", encoding="utf-8"
    )
    apart = ["env", "MPI_LOCALNRANKS=1", "OMPI_COMM_WORLD_LOCAL_SIZE=1"]
    result = run(2, [*apart, *PYTEST, "test_it.py"], cwd=tmp_path, timeout=60, env=ALONE)
    assert result.returncode != 0
    assert "1 failed" in result.stdout
    assert "[rank 1] AssertionError: over TCP" in result.stdout
