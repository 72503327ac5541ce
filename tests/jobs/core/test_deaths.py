"""A rank that dies while the others are inside MPI.

The launcher is told to leave the other ranks alone when a rank dies. Other deaths are in the matrix
(``tests/jobs/faults``).
"""

from __future__ import annotations

from pathlib import Path

import job
import pytest

pytestmark = pytest.mark.launcher("the ranks die inside MPI", only=["openmpi"])


def killed_inside_mpi() -> None:
    """Rank 2 is killed in a long all_reduce, which all ranks have begun."""
    import os
    import signal
    import subprocess
    import sys

    import numpy as np
    from ranks_tools import dist, start

    # Open MPI's launcher may lose what a rank writes in the moment of its end, without us too.
    os.dup2(os.open(os.environ["WRITTEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    rank = start()
    tensor = np.zeros(48 << 20)
    dist.barrier()
    if rank == 2:
        end = f"import os, time; time.sleep(0.2); os.kill({os.getpid()}, {signal.SIGKILL})"
        subprocess.Popen([sys.executable, "-S", "-c", end])
    dist.all_reduce(tensor)
    print("went on", file=sys.stderr, flush=True)


def test_killed_inside_mpi(tmp_path: Path) -> None:
    """The others end, with one line about it. The matrix has the ranks that ask for an error."""
    ended = job.run(
        3,
        killed_inside_mpi,
        env={"PADDLEMPI_ALGO": "all_reduce:mpi", "WRITTEN": str(tmp_path / "written")},
        options=("--continuous",),
    )
    written = (tmp_path / "written").read_text()
    assert written.count("paddlempi: rank 0: rank(s) [2] died on") == 1, written + ended.output
    assert written.count("paddlempi: rank") == 1, written
    assert "went on" not in written
    assert ended.returncode == 1, ended.output
