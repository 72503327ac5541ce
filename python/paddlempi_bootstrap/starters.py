"""Programs that start the ranks of a job without an MPI's launcher: torchrun and the like.

:func:`nearest` tells which program started this process as a rank. ``paddlempi.startup`` makes a
world of such ranks.
"""

from __future__ import annotations

import os
import sys
from typing import NamedTuple

from . import mpi_launcher
from .mpi_launcher import Place

__all__ = ["MEET", "STARTERS", "TRANSPORT", "Starter", "nearest", "possible"]

MEET = "PADDLEMPI_MEET"
"""Where the ranks that ``python -m paddlempi run -np`` has started meet: an ``init_method``."""

TRANSPORT = "PADDLEMPI_TRANSPORT"
"""``node``: no MPI is loaded, all ranks are on one node. ``mpi``: MPI carries the messages."""


class Starter(NamedTuple):
    """A program that starts ranks, and the variables in which it tells them of their job."""

    name: str
    sign: str
    """A variable that only its ranks and their children have."""
    rank: str
    size: str
    address: tuple[str, ...]
    """Where they meet: a variable for the host and one for the port; empty: the sign says it."""
    endpoints: tuple[str, ...] = ()
    """In place of these, variables for HOST:PORT, or such addresses with commas between them. The
    first that is set counts."""


# The first whose sign is there counts, of those that have started the same process.
STARTERS = (
    Starter("python -m paddlempi run -np", MEET, "RANK", "WORLD_SIZE", ()),
    Starter(
        "torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", ("MASTER_ADDR", "MASTER_PORT")
    ),
    Starter(
        "paddle.distributed.launch",
        "PADDLE_CURRENT_ENDPOINT",
        "PADDLE_TRAINER_ID",
        "PADDLE_TRAINERS_NUM",
        (),
        ("PADDLE_MASTER", "PADDLE_TRAINER_ENDPOINTS"),
    ),
)


def nearest() -> tuple[Place | None, Starter | None]:
    """Return what started this process as a rank: an MPI's launcher, or another starter, if any.

    The nearest of the processes above this one decides: under ``srun torchrun`` it is torchrun, and
    under an mpirun that a rank of torchrun has started it is mpirun. A program of ``STARTERS`` is
    found by its sign, which the ranks have in their environment and it has not.
    """
    place = mpi_launcher.find()
    found = [starter for starter in STARTERS if os.environ.get(starter.sign) and not _ours(starter)]
    if not found:
        return place, None
    for pid, _, _ in mpi_launcher.parents():
        if place is not None and pid == place.pid:
            return place, None
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                entries = environ.read().split(b"\0")
        except OSError:  # of another user, who is no rank of this job
            entries = []
        for starter in found:
            if (
                f"{starter.sign}={os.environ[starter.sign]}".encode(errors="surrogateescape")
                not in entries
            ):
                return None, starter
    return (place, None) if place is not None else (None, found[0])


def _ours(starter: Starter) -> bool:
    """Whether this package has set the sign, from an MPI's launcher or after an init.

    ``Variables`` of ``paddlempi.startup.paddle_variables`` notes the names of what it sets.
    """
    return f"{starter.sign}:" in os.environ.get("PADDLEMPI_FILLED_PADDLE", "")


def possible(starter: Starter) -> bool:
    """Whether the ranks of a starter can be a world, as far as their variables tell.

    On one node they can. On several nodes they need an MPI that is started without its launcher:
    that of the wheels ``mpich`` and ``impi-rt``, or one that the user names.
    """
    size, local = os.environ.get(starter.size), os.environ.get("LOCAL_WORLD_SIZE")
    if starter.name != "torchrun" or size == local:
        return True
    wheel = os.path.join(sys.prefix, "lib", "libmpi.so.12")
    return bool(os.environ.get("PADDLEMPI_MPI")) or os.path.exists(wheel)
