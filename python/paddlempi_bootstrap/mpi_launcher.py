"""The MPI's launcher that started this process as a rank, and its place in the job.

:func:`find` reads them from the launcher's variables, for all Python code. The core finds the
launcher by the same table (gocore/mpi/launcher.go), but loading the core starts Go's runtime, which
``import torch`` must not do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .known_launchers import BY_PROCESS, KINDS, SIGNS, Kind

__all__ = ["Place", "find", "parents"]


class Place(NamedTuple):
    """An MPI's launcher, and the place of this process in its job. Unknown numbers are -1.

    The fields are those of the core's control method ``launcher`` (docs/control.md).
    """

    mpi: str  # "Open MPI", "MPICH or Intel MPI", "Slurm"
    size: int
    rank: int
    local_rank: int
    local_size: int
    job: str  # an identifier of the job, the same on all its ranks
    host: str = ""  # a host that all ranks know by this name; "": the launcher names none
    kind: str = ""  # "openmpi", "hydra", "slurm"
    name: str = ""  # of the launcher's process above this one
    path: str = ""  # its executable; "": it may not be read
    pid: int = 0
    mpirun: bool = False  # whether it is the mpirun that the user called, on this host


_PROC = "/proc"
_MAX_PARENTS = 256


def find(hidden: bool = False) -> Place | None:
    """Find the launcher that started this process as a rank.

    It is the nearest launcher among the processes above this one. The result is None if there is
    none, or if it does not say the rank and the number of ranks.

    Args:
        hidden: also find a launcher that is not among these processes, by its variables alone: a
            container may hide it. A process that is no rank may have inherited the variables.
    """
    if not any(sign in os.environ for sign in SIGNS):
        return None
    for pid, name, path in parents():
        if name in BY_PROCESS:
            return _place(BY_PROCESS[name], pid, name, path)
    return next(filter(None, (_place(kind, 0, "", "") for kind in KINDS if hidden)), None)


def _place(kind: Kind, pid: int, name: str, path: str) -> Place | None:
    """Return what a launcher's variables tell. ``pid``, ``name`` and ``path`` are its process's."""
    if kind.task and kind.task not in os.environ:
        return None  # a batch script, which the launcher starts once for the whole job
    size, rank = _first(kind.size), _first(kind.rank)
    if rank < 0 or size < 1:
        return None
    job = _job(kind, pid)
    return Place(
        mpi=kind.mpi,
        size=size,
        rank=rank,
        local_rank=_first(kind.local_rank),
        local_size=_tasks_of_this_node(kind) if kind.tasks_per_node else _first(kind.local_size),
        job=job,
        host=_head(kind, job),
        kind=kind.name,
        name=name,
        path=path,
        pid=pid,
        mpirun=name in kind.mpirun,
    )


def parents() -> Iterator[tuple[int, str, str]]:
    """Yield pid, name and executable of the processes above this one, the nearest first.

    The name is that of the executable if it is a launcher's, else the process's own.
    """
    pid = os.getppid()
    for _ in range(_MAX_PARENTS):
        try:
            with open(f"{_PROC}/{pid}/stat", errors="replace") as stat:
                # pid (name) state parent ...: the name may hold spaces and parentheses.
                head, _, tail = stat.read().rpartition(")")
        except OSError:
            return
        name = head.partition("(")[2]
        try:
            path = os.readlink(f"{_PROC}/{pid}/exe").removesuffix(" (deleted)")
        except OSError:  # a process of another user, such as slurmstepd
            path = ""
        file = os.path.basename(path)
        yield pid, file if file in BY_PROCESS else name, path
        pid = int(tail.split()[1])
        if pid <= 0:
            return


def _number(name: str) -> int:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() else -1


def _first(names: Sequence[str]) -> int:
    return next((number for number in map(_number, names) if number >= 0), -1)


def _job(kind: Kind, pid: int) -> str:
    parts = [os.environ[name] for name in kind.job if os.environ.get(name)]
    if not parts and kind.job_option:
        try:
            with open(f"{_PROC}/{pid}/cmdline", errors="replace") as line:
                words = line.read().split("\0")
        except OSError:
            words = []
        if kind.job_option in words[:-1]:
            parts = [words[words.index(kind.job_option) + 1]]
    return ".".join(parts)


def _head(kind: Kind, job: str) -> str:
    for variable, pattern in kind.head:
        text = os.environ.get(variable, "") if variable else job
        found = re.search(pattern, text, re.ASCII)
        if found is not None:
            return "".join(found.groups(""))
    return ""


def _tasks_of_this_node(kind: Kind) -> int:
    """Return the number of ranks on this node, from a list for all nodes such as ``2(x3),1``."""
    node = _number(kind.node)
    for part in os.environ.get(kind.tasks_per_node, "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None or node < 0:
            return -1
        node -= int(found[2] or 1)
        if node < 0:
            return int(found[1])
    return -1
