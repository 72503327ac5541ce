"""Run jobs for tests: a function, a script or a command becomes the program of every rank.

A job starts warm and without an MPI (``docs/testing.md``), unless the running test is for an MPI's
launcher. ``tests/jobs/conftest.py`` sets LAUNCHER, COLD and WARM before each test.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract import MPI
from paddlempi.testing import launch

HERE = str(Path(__file__).resolve().parent)

LAUNCHER = True
"""Whether jobs start by the mpirun of this environment."""
COLD = False
"""Whether jobs without a launcher start cold, as by ``python -m paddlempi run -np``."""
WARM: tuple[str, ...] = ("numpy", "pytest")
"""What a warm server has imported for the jobs."""

PADDLEMPI = [sys.executable, f"{HERE}/run_paddlempi.py"]
"""``python -m paddlempi`` as a command that can start warm."""

# What a process reads when it starts, or a framework while it is imported.
_READ_EARLY = ("FLAGS_", "GLIBC_", "LD_", "MALLOC_", "MKL_", "PYTHONHASHSEED", "TORCH", "XLA_")


@dataclass(frozen=True)
class Ended:
    """How a job ended, and the time of its end (``time.time()``)."""

    result: launch.Result
    at: float
    stamps: str

    @property
    def returncode(self) -> int:
        return self.result.returncode

    @property
    def output(self) -> str:
        return self.result.output

    def stamp(self, name: str) -> float:
        """Return the time of the first ``ranks_tools.stamp(name)`` of a rank."""
        for line in self.stamps.splitlines():
            label, at = line.split()
            if label == name:
                return float(at)
        raise AssertionError(f"no rank left the stamp {name}:\n{self.output}")


def run(
    np: int,
    program: launch.Target,
    *,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    path: str = "",
    warm: bool = True,
) -> Ended:
    """Run ``program`` as ``np`` ranks, which may import ``ranks_tools``. Fail if the job hangs.

    Args:
        options: further options of the mpirun, by which the job starts then.
        path: a folder with modules that the program may import, too.
        warm: False: the job starts cold where it would start warm.
    """
    launcher = LAUNCHER or bool(options)
    folders = os.pathsep.join([HERE, *filter(None, [path, os.environ.get("PYTHONPATH")])])
    ours = {"PYTHONPATH": folders, "FAULTS_NP": str(np), "FAULTS_MPI": MPI if launcher else "node"}
    early = any(name.startswith(_READ_EARLY) for name in env or ())
    modules = WARM if warm and not launcher and not COLD and not early else False
    with tempfile.NamedTemporaryFile("r") as stamps:
        ours["FAULTS_STAMPS"] = stamps.name
        result = launch.run(
            np,
            program,
            mpi=None if launcher else "node",
            timeout=timeout,
            env={**(env or {}), **ours},
            options=options,
            warm=modules,
        )
        at = time.time()
        assert not result.timed_out, f"hung for {timeout} s:\n{result.output}"
        return Ended(result, at, stamps.read())


def succeed(
    np: int,
    program: launch.Target,
    *,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    path: str = "",
    warm: bool = True,
) -> Ended:
    """Run ``program`` as :func:`run` does. Fail unless every rank calls ``ranks_tools.done()``."""
    ended = run(np, program, timeout=timeout, env=env, path=path, warm=warm)
    assert ended.returncode == 0, ended.output
    assert ended.result.stdout.count("done\n") == np, ended.output
    return ended
