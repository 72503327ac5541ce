"""The library that jaxlib loads as its MPI, ``libpaddlempi_trampoline.so``.

jaxlib's wheel has a client of MPItrampoline. When it is loaded, it loads the library that the
variable ``MPITRAMPOLINE_LIB`` names; without the variable its functions of MPI end the process.
:mod:`._late` is for jaxlib that was loaded before.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

from .. import _native
from ..errors import NotInitializedError
from . import _late

__all__ = ["announce", "find", "start"]

VARIABLE = "MPITRAMPOLINE_LIB"
LIBRARY = str(Path(__file__).resolve().parents[1] / "libpaddlempi_trampoline.so")


def announce() -> None:
    """Set the variable, so that jaxlib finds the library, unless jaxlib is loaded or it is set."""
    if "jaxlib" not in sys.modules:
        os.environ.setdefault(VARIABLE, LIBRARY)


def find() -> str:
    """Make sure that jaxlib has found the library. Return why it has not; "" if it has."""
    given = os.environ.get(VARIABLE)
    if given is None:
        os.environ[VARIABLE] = LIBRARY
        if _late.look_again():
            return ""
        del os.environ[VARIABLE]
        return (
            "jax was imported before paddlempi.jax: import paddlempi.jax first, or start the "
            f"program with {VARIABLE}={LIBRARY}"
        )
    if given != LIBRARY:
        return f"{VARIABLE} is {given}, another library than this package's {LIBRARY}: unset it"
    return ""


_COUNT = ctypes.CFUNCTYPE(ctypes.c_int)
_kept: list[object] = []  # what the library calls


def start(rank: int, size: int, seconds: float, devices: Callable[[], int]) -> None:
    """Give the library the core's functions. All ranks call it.

    Args:
        rank, size: of the world.
        seconds: how long the first collective of a mesh waits for all processes.
        devices: returns how many CPU devices this process has. Threads of XLA call it when they
            come to the first collective of a mesh.
    """
    library = ctypes.CDLL(LIBRARY)
    count = _COUNT(devices)
    _kept.append(count)
    library.paddlempi_trampoline_devices(count)
    begin = library.paddlempi_trampoline_start
    begin.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_double]
    if begin(_native.core().functions(), rank, size, seconds):
        raise NotInitializedError("initialize: the library for XLA's collectives cannot start")


announce()  # when it is imported, which is before jaxlib is
