"""Find this process's rank from the launcher's variables, before any MPI is loaded."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from dataclasses import dataclass
from types import ModuleType

import pytest
from paddlempi_bootstrap import mpi_launcher, starters


@dataclass(frozen=True)
class Place:
    """What the launcher says of this process: its rank and the number of ranks.

    ``job`` identifies the job: it is the same string on all ranks of one job. It is None if some
    ranks run on other hosts, or if the launcher does not say so.
    """

    rank: int
    size: int
    launcher: str
    job: str | None


ALONE = Place(0, 1, "none", None)


def find() -> Place:
    """Return this process's place: rank 0 of 1 if there is no launcher."""
    starter = starters.nearest()[1]
    if starter is not None:
        return _started(starter)
    found = _launcher()
    if found is None:
        return ALONE
    on_this_host = found.local_size == found.size and found.job
    return Place(found.rank, found.size, found.kind, on_this_host or None)


def _started(starter: starters.Starter) -> Place:
    """Return the place of a rank that no MPI's launcher has started."""
    rank, size = int(os.environ[starter.rank]), int(os.environ[starter.size])
    here = os.environ.get("LOCAL_WORLD_SIZE") == os.environ[starter.size]
    # A sign may be the same in two jobs. The port is not, while both run.
    names = (starter.sign, *starter.address, *starter.endpoints, "MASTER_PORT")
    words = [os.environ.get(name, "") for name in names]
    return Place(rank, size, starter.name, "/".join(words) if here else None)


def launcher_stderr() -> int:
    """Return a descriptor of the stderr of this host's mpirun, else of this process's stderr.

    When Open MPI's mpirun kills its ranks, it drops what they wrote last. Its stderr can take
    more lines if it is a terminal, a pipe or a file that was opened to append.
    """
    with contextlib.suppress(OSError, StopIteration):
        found = _launcher()
        if found is not None and found.mpirun:
            stderr = f"/proc/{found.pid}/fd/2"
            mode = os.stat(stderr).st_mode
            with open(f"/proc/{found.pid}/fdinfo/2", encoding="ascii") as file:
                flags = next(int(line.split()[1], 8) for line in file if line.startswith("flags:"))
            if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or flags & os.O_APPEND:
                return os.open(stderr, os.O_WRONLY | os.O_APPEND | os.O_NOCTTY)
    return os.dup(2)


def initialise(place: Place) -> ModuleType:
    """Initialise paddlempi's world if it is not yet, and return the paddlempi module.

    Raises pytest.UsageError if MPI's rank or size is not the launcher's. An MPI that does not
    belong to the launcher makes N worlds of one rank. Without this check the tests would pass N
    times on one rank.
    """
    import paddlempi as dist

    if not dist.is_initialized():
        dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) != (place.rank, place.size):
        raise pytest.UsageError(
            f"the world says rank {rank} of {size}, but the launcher ({place.launcher}) says rank "
            f"{place.rank} of {place.size}: use the mpirun of this MPI, and pytest --mpi"
        )
    return dist


@functools.cache
def _launcher() -> mpi_launcher.Place | None:
    # hidden: a container may hide the launcher's process, so that only the variables tell of it.
    # Otherwise every rank would believe that it is the only one, and print a report of its own.
    return mpi_launcher.find(hidden=True)
