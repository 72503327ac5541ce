"""The core on aarch64, in jobs of two ranks that qemu runs. `make test-aarch64` has more of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from paddlempi.testing import launch

HERE = Path(__file__).resolve().parent
ENVIRONMENT = HERE.parents[1] / ".venv-aarch64"
PYTHON = str(ENVIRONMENT / "bin" / "python")

# Rank 1 dies while rank 0 waits for it. arguments: the report
DEATH = """
import os, signal, sys
import numpy as np
import paddlempi as dist
from paddlempi.errors import PeerDiedError

dist.init_process_group(timeout=60)
dist.all_reduce(np.ones(4))
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    dist.all_reduce(np.ones(100_000))
except PeerDiedError as error:
    with open(sys.argv[1], "a") as file:
        file.write('{"ranks": %s}\\n' % list(error.ranks))
os._exit(0)
"""


def reported(path: Path) -> list[dict[str, object]]:
    """Return what the ranks have written into their report."""
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(map(json.loads, lines), key=str)


# The size of a page of other kernels; and an old processor, without the atomic instructions of 8.1.
@pytest.mark.parametrize(
    ("mpi", "flags"),
    [("mpich", "-cpu cortex-a53"), ("node", "-p 65536"), ("node", "-p 16384")],
    ids=["mpich, armv8.0", "node, 64 KiB", "node, 16 KiB"],
)
def test_all_operations(tmp_path: Path, mpi: str, flags: str) -> None:
    report = tmp_path / "report"
    argv = [PYTHON, str(HERE / "program.py"), str(report)]
    job = run(argv, mpi, flags)
    assert job.returncode == 0, job.output
    assert reported(report) == [{"rank": 0}, {"rank": 1}]


def test_a_death_is_seen(tmp_path: Path) -> None:
    report = tmp_path / "report"
    code = "import sys; from paddlempi.cli.local_ranks import run; run(2, sys.argv[1:], keep=True)"
    command = [sys.executable, "-c", code, PYTHON, "-c", DEATH, str(report)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert reported(report) == [{"ranks": [1]}], told.stdout + told.stderr


def run(argv: list[str], mpi: str, flags: str) -> launch.Result:
    """Run a job of two ranks of aarch64."""
    env = {**os.environ, "QEMU_FLAGS": flags}
    prefix = str(ENVIRONMENT) if mpi != "node" else None
    return launch.run(2, argv, mpi=mpi, prefix=prefix, env=env, timeout=120)
