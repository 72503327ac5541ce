"""Build the interposed MPI of this folder (``interposed_mpi.c``), and read its counters.

A job uses it if ``PADDLEMPI_MPI`` is the path that :func:`build` returned and ``PADDLEMPI_CUDA``
is the path of the fake driver.
"""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "interposed_mpi.c"

_FLAGS = ("-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden")
_WARNINGS = ("-Wall", "-Wextra", "-Werror")


def libmpi() -> Path:
    """Return the path of the wheel's libmpi in this environment.

    Raises:
        FileNotFoundError: the environment has none.
    """
    for name in ("libmpi.so.40", "libmpi.so.12"):
        path = Path(sys.prefix) / "lib" / name
        if path.exists():
            return path
    raise FileNotFoundError(f"no libmpi of a wheel in {sys.prefix}/lib")


def build(folder: Path) -> Path:
    """Build the library in a folder, over the libmpi of this environment. Return its path."""
    real = libmpi()
    out = folder / f"libmpi_interposed-{real.suffix[1:]}.so"
    subprocess.run(
        [
            *os.environ.get("CC", "gcc").split(),
            *_FLAGS,
            *_WARNINGS,
            "-o",
            out,
            SOURCE,
            real,
            f"-Wl,-rpath,{real.parent}",
        ],
        check=True,
        timeout=60,
    )
    return out


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["PADDLEMPI_MPI"])
    library.interposed_violation.restype = ctypes.c_char_p
    return library


def device_calls() -> int:
    """Return how many MPI calls of this process were given device memory."""
    return int(_library().interposed_device_calls())


def violations() -> tuple[int, str]:
    """Return how many MPI calls came while their memory was in use, and the last one's name."""
    last = _library().interposed_violation()
    return int(_library().interposed_violations()), (last or b"").decode()
