"""The interposed MPI of this folder (``interposed_mpi.c``): building it, and what it counted.

A job uses it with ``PADDLEMPI_MPI`` set to what :func:`build` returned and ``PADDLEMPI_CUDA`` to
the fake driver.
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
    """The libmpi of the wheel in this environment.

    Raises:
        FileNotFoundError: it has none.
    """
    for name in ("libmpi.so.40", "libmpi.so.12"):
        path = Path(sys.prefix) / "lib" / name
        if path.exists():
            return path
    raise FileNotFoundError(f"no libmpi of a wheel in {sys.prefix}/lib")


def build(folder: Path) -> Path:
    """Make the library in a folder, over the libmpi of this environment."""
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
    """How many calls of MPI in this process were given device memory."""
    return int(_library().interposed_device_calls())


def violations() -> tuple[int, str]:
    """How many of them came while the memory was still in use, and the function of the last one."""
    last = _library().interposed_violation()
    return int(_library().interposed_violations()), (last or b"").decode()
