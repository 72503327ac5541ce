"""Run jobs for tests: a function becomes the program of every rank."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from one_mpi import MPI
from paddlempi.testing import launch

HERE = str(Path(__file__).resolve().parent)


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
    program: Callable[[], object],
    *,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
    path: str = "",
) -> Ended:
    """Run ``program`` as ``np`` ranks, which may import ``ranks_tools``. Fail if the job hangs.

    ``options`` are further options of the mpirun. ``path`` is a folder with modules that the
    program may import, too.
    """
    folders = os.pathsep.join([HERE, *filter(None, [path, os.environ.get("PYTHONPATH")])])
    ours = {"PYTHONPATH": folders, "FAULTS_NP": str(np), "FAULTS_MPI": MPI}
    with tempfile.NamedTemporaryFile("r") as stamps:
        ours["FAULTS_STAMPS"] = stamps.name
        result = launch.run(
            np, program, timeout=timeout, env={**(env or {}), **ours}, options=options
        )
        at = time.time()
        assert not result.timed_out, f"hung for {timeout} s:\n{result.output}"
        return Ended(result, at, stamps.read())


def succeed(
    np: int,
    program: Callable[[], object],
    *,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    path: str = "",
) -> Ended:
    """Run ``program`` as :func:`run` does. Fail unless every rank calls ``ranks_tools.done()``."""
    ended = run(np, program, timeout=timeout, env=env, path=path)
    assert ended.returncode == 0, ended.output
    assert ended.result.stdout.count("done\n") == np, ended.output
    return ended
