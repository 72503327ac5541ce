"""Checks of the arguments that make worlds and groups, before the core sees them."""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from .errors import ArgumentError, DtypeError, UnsupportedError

__all__ = ["FOREVER", "check_backend", "checked_ranks", "comm_handle", "front_of", "to_seconds"]

FOREVER = 100 * 365 * 86400.0
"""The longest deadline, in seconds. Clocks overflow beyond it, and JSON has no infinity."""


def to_seconds(timeout: timedelta | float, what: str, name: str = "timeout") -> float:
    """Return a ``timeout`` argument in seconds, :data:`FOREVER` at most.

    Args:
        timeout: the argument.
        what: the name of the function that took it, for error messages.
        name: that of the argument.

    Raises:
        ArgumentError: it is not above 0.
        DtypeError: it is neither a timedelta nor a number.
    """
    if isinstance(timeout, timedelta):
        seconds = timeout.total_seconds()
    elif isinstance(timeout, (int, float)) and not isinstance(timeout, bool):
        seconds = float(timeout)
    else:
        raise DtypeError(
            f"{what}: {name} is a {type(timeout).__name__}, it must be a timedelta or seconds"
        )
    if not seconds > 0:
        raise ArgumentError(f"{what}: {name}={seconds} s must be above 0")
    return min(seconds, FOREVER)


_FRONTS = ("paddle", "torch")


def front_of(framework: str) -> Any:
    """Import the front of a framework, a module with ``init(timeout)``, and return it."""
    if framework not in _FRONTS:
        raise ArgumentError(
            f"init_process_group: framework={framework!r}: it must be one of {', '.join(_FRONTS)}, "
            "or None"
        )
    try:
        return importlib.import_module(f"{__package__}.{framework}")
    except ModuleNotFoundError as error:
        if error.name != framework:
            raise
        raise ArgumentError(
            f"init_process_group: framework={framework!r} is not installed in {sys.prefix}"
        ) from error


def check_backend(backend: object) -> None:
    """Raise ArgumentError unless it is "mpi"."""
    if not isinstance(backend, str) or backend.lower() != "mpi":
        raise ArgumentError(f"backend={backend!r}: the only one is 'mpi'")


def checked_ranks(ranks: Sequence[int], size: int) -> list[int]:
    """Return the ranks of a new group in a world of ``size`` ranks.

    Raises:
        ArgumentError: there are none; one is out of range, or is given twice.
        DtypeError: they are no sequence of integers.
    """
    try:
        chosen = [operator.index(rank) for rank in ranks]
    except TypeError as error:
        raise DtypeError(
            f"new_group: ranks={ranks!r} must be a sequence of ranks: {error}"
        ) from None
    if not chosen:
        raise ArgumentError("new_group: ranks is empty, a group has at least one member")
    for rank in chosen:
        if not 0 <= rank < size:
            raise ArgumentError(
                f"new_group: ranks={chosen}: {rank} is out of range, the world has {size}"
            )
    if len(set(chosen)) != len(chosen):
        raise ArgumentError(f"new_group: ranks={chosen}: a rank is given twice")
    return chosen


def comm_handle(comm: Any) -> int:
    """Return MPI's handle of an mpi4py communicator, as an unsigned 64-bit number."""
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or not isinstance(comm, mpi4py.Comm):
        raise DtypeError(
            f"init_process_group: comm is a {type(comm).__name__}, it must be mpi4py's communicator"
        )
    if not isinstance(comm, mpi4py.Intracomm) or comm == mpi4py.COMM_NULL:
        raise ArgumentError(
            "init_process_group: comm must be an intracommunicator and not COMM_NULL"
        )
    if not hasattr(mpi4py, "_handleof"):
        raise UnsupportedError("init_process_group: comm needs mpi4py 3.0 or newer")
    return int(mpi4py._handleof(comm)) & 0xFFFF_FFFF_FFFF_FFFF  # MPICH's handle may be negative
