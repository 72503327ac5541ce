"""The stages that a mutant goes through, the cheap ones first."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from mutants.changes import Mutant

JOBS = str(min((os.cpu_count() or 1) + 1, 8))
CORE = ("",)
ALL = ("", "torch", "paddle", "jax")


class Stage(NamedTuple):
    """Tests that Python runs. ``of``: the mutants that they are for, by front (see ``front``)."""

    tests: str
    of: tuple[str, ...] = CORE
    environment: str = "openmpi"
    ranks: int = 0  # a pytest in one process, whose tests may start jobs
    mpi: str = ""  # "node": the ranks are started without MPI
    languages: tuple[str, ...] = ("Go", "C", "Python")


# Go's tests are those of the packages that a mutant is compiled into, and of their importers.
GO = "go"
STAGES = {
    "unit": Stage("tests/unit/core", ALL, languages=("Python",)),
    GO: None,
    "torch-unit": Stage("tests/unit/torch", ("torch",), languages=("Python",)),
    "node-2": Stage("tests/ranks/core", ranks=2, mpi="node"),
    "mpich-3": Stage("tests/ranks/core", environment="mpich", ranks=3),
    "cuda-2": Stage("tests/ranks/cuda", ranks=2),
    "torch-2": Stage("tests/ranks/torch", ("", "torch"), ranks=2),
    "paddle-2": Stage("tests/ranks/paddle", ("paddle",), ranks=2),
    "jax-2": Stage("tests/ranks/jax", ("jax",), environment="jax", ranks=2),
    "jobs": Stage("tests/jobs/core"),
    "cuda-jobs": Stage("tests/jobs/cuda"),
    "torch-jobs": Stage("tests/jobs/torch", ("torch",)),
    "paddle-jobs": Stage("tests/jobs/paddle", ("paddle",)),
    "jax-jobs": Stage("tests/jobs/jax", ("jax",), environment="jax"),
}


def front(mutant: Mutant) -> str:
    """Return the front whose tests a mutant is for; "" if it is a part of the core."""
    found = re.match(r"python/paddlempi/(torch|paddle|jax)/", mutant.file)
    if found:
        return found[1]
    if mutant.file.startswith("python/paddlempi_bootstrap/"):  # what torch loads by itself
        return "torch"
    return "jax" if mutant.file.startswith("capi/trampoline/") else ""


def applies(name: str, mutant: Mutant) -> bool:
    """Tell whether a mutant goes through a stage."""
    stage = STAGES[name]
    if stage is None:
        return mutant.language != "Python"
    return mutant.language in stage.languages and front(mutant) in stage.of


def python(environments: Path, stage: Stage) -> Path:
    """Return the Python of a stage."""
    return environments / f".venv-{stage.environment}" / "bin" / "python"


def command(environments: Path, stage: Stage) -> list[str]:
    """Return the command of a stage of Python. The first failure ends it."""
    run = [str(python(environments, stage)), "-m"]
    pytest = ["pytest", "-q", "-x", "--color=no", stage.tests]
    if not stage.ranks:
        return [*run, *pytest, "--numprocesses", JOBS, "--reruns", "1"]
    launch = ["paddlempi.testing.launch", *(["--mpi", stage.mpi] if stage.mpi else [])]
    launch += ["-np", str(stage.ranks), "--", "python", "-m"]
    return [*run, *launch, *pytest, "--mpi", "--mpi-ranks", str(stage.ranks)]
