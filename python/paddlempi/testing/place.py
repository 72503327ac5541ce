"""Which rank this process is, told by the launcher's variables, before any MPI is loaded."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from .. import launcher


@dataclass(frozen=True)
class Place:
    """One rank's place in its job.

    ``job`` is the same string on all ranks of one job on one host, and on no other job's;
    it is None where the ranks do not all live on this host (or nobody can tell).
    """

    rank: int
    size: int
    launcher: str
    job: str | None


ALONE = Place(0, 1, "none", None)


def find() -> Place:
    """Return this process's place; rank 0 of 1 where no launcher is to be seen.

    Call it while this process has one thread: the core is asked in a fork, for the tests may
    import Paddle, which has to come before it.
    """
    found = _launcher()
    if found is None:
        return ALONE
    on_this_host = found["local_size"] == found["size"] and found["job"]
    return Place(found["rank"], found["size"], found["kind"], on_this_host or None)


def launcher_stderr() -> int:
    """Open the stderr of this host's mpirun, else this process's.

    Open MPI's mpirun drops what its ranks wrote last when it kills them. Its own stderr takes
    further lines where that is a terminal or a pipe, or a file opened to append.
    """
    with contextlib.suppress(OSError, StopIteration):
        found = _launcher()
        if found is not None and found["mpirun"]:
            stderr = f"/proc/{found['pid']}/fd/2"
            mode = os.stat(stderr).st_mode
            with open(f"/proc/{found['pid']}/fdinfo/2", encoding="ascii") as file:
                flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or flags & os.O_APPEND:
                return os.open(stderr, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    return os.dup(2)


def initialise(place: Place) -> ModuleType:
    """Return paddlempi with its world initialised, if MPI's is the one that the launcher says.

    An MPI that is not the launcher's makes N worlds of one rank, whose tests pass N times.
    """
    import paddlempi as dist

    if not dist.is_initialized():
        dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) != (place.rank, place.size):
        raise pytest.UsageError(
            f"MPI says rank {rank} of {size}, pytest rank {place.rank} of {place.size} "
            f"(launcher: {place.launcher}): use the mpirun of this MPI, and pytest --mpi"
        )
    return dist


@functools.cache
def _launcher() -> dict[str, Any] | None:
    # Without the parents that a container hides: a rank that takes itself for one of one would
    # report for itself alone.
    return launcher.find_in_fork(hidden=True)
