"""`pytest --mpi` with ranks on two hosts: the ranks' pytests meet over TCP."""

from __future__ import annotations

import reports
from hosts import Hosts
from mpis import MPI

SOURCE = """
import time
def test_fine(mpi_world): pass
def test_fails(mpi_world): assert mpi_world.rank != 3, "far away"
def test_hangs(mpi_world): time.sleep(1000 * (mpi_world.rank == 2))
"""


def test_a_failure_and_a_hang_on_the_other_host_are_reported(mpi: MPI, hosts: Hosts) -> None:
    with reports.directory(hosts) as place:
        (place / "test_it.py").write_text(SOURCE)
        options = ["--color=no", "--mpi", "--mpi-ranks=4", "--mpi-timeout=8"]
        program = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
        program += [*options, place]
        result = mpi.run(hosts, (("h1", 2), ("h2", 2)), program, timeout=60)
    assert result.code != 0 and not result.timed_out, str(result)
    assert "[rank 3] AssertionError: far away" in result.out, str(result)
    assert "rank 2 did not finish within the deadline of 8 s (ranks 0, 1, 3 waited)" in result.out
    assert "stacks of rank 2, which hangs" in result.out
    assert "2 failed, 1 passed" in result.out
