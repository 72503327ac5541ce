"""A rank that dies while the others are inside MPI.

The launcher is told to leave the other ranks alone when a rank dies. Other deaths are in the matrix
(``tests/jobs/faults``).
"""

from __future__ import annotations

import job
import pytest


def killed_inside_mpi() -> None:
    """Rank 2 is killed in a long all_reduce, which all ranks have begun."""
    import os
    import signal
    import subprocess
    import sys

    import numpy as np
    from ranks_tools import dist, start

    rank = start()
    tensor = np.zeros(48 << 20)
    dist.barrier()
    if rank == 2:
        end = f"import os, time; time.sleep(0.2); os.kill({os.getpid()}, {signal.SIGKILL})"
        subprocess.Popen([sys.executable, "-S", "-c", end])
    dist.all_reduce(tensor)
    print("went on", flush=True)


@pytest.mark.one_mpi
def test_killed_inside_mpi() -> None:
    """The others end, with one line about it. The matrix has the ranks that ask for an error."""
    ended = job.run(
        3,
        killed_inside_mpi,
        env={"PADDLEMPI_ALGO": "all_reduce:mpi"},
        options=("--continuous",),
    )
    assert ended.output.count("paddlempi: rank 0: rank(s) [2] died on") == 1, ended.output
    assert ended.output.count("paddlempi: rank") == 1, ended.output
    assert "went on" not in ended.output
    assert ended.returncode == 1, ended.output
