"""The place of this process in its job: launcher, rank and size.

:func:`find` reads them from the variables of an MPI's launcher, for all Python code. Other ways to
be launched belong here too. The core finds the launcher by the same table
(gocore/mpi/launcher.go), but loading the core starts Go's runtime, which ``import torch`` must not
do. This module is at the top level, so that importing it does not import ``paddlempi``.

:func:`fill` sets the variables in which torchrun tells frameworks their ranks.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paddlempi_launchers import BY_PROCESS, KINDS, SIGNS, Kind

__all__ = ["FILLED", "Place", "fill", "find", "forget", "is_ours", "parents", "set_ours"]


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


# The variables that torchrun would set, with values from the launcher's variables. PADDLEMPI_FILLED
# says which of them were set here, to which values, and in which job. Child processes inherit all
# of them. PADDLEMPI_FILLED lets a child that is a rank of another job tell them from variables that
# the user has set. If a variable has another value than PADDLEMPI_FILLED says, the user or a
# torchrun has set it since.

FILLED = "PADDLEMPI_FILLED"

# Ports below the range from which Linux gives ports to programs that ask for any.
_FIRST_PORT, _PORTS = 10_000, 20_000


def fill(started: Place | None, tell: bool, address: str = "") -> None:
    """Set those of torchrun's variables that are not set. Unset those of another job.

    ``MASTER_ADDR`` and ``MASTER_PORT`` are set in a job on one node, or with an ``address``.

    Args:
        started: the launcher of this process; None: there is none.
        tell: whether to set variables.
        address: the host of rank 0; "": unknown.
    """
    job, ours = _filled()
    if started is None or started.job != job:
        for name in ours:
            if is_ours(name):
                del os.environ[name]
        os.environ.pop(FILLED, None)
        ours = {}
    if started is None or not tell:
        return
    values = {
        "RANK": started.rank,
        "WORLD_SIZE": started.size,
        "LOCAL_RANK": started.local_rank,
        "LOCAL_WORLD_SIZE": started.local_size,
    }
    # GROUP_RANK is the number of the node, if all nodes have as many ranks and consecutive ones.
    # Lightning computes the global rank from it and the local rank.
    first, per_node = started.rank - started.local_rank, started.local_size
    even = per_node > 0 and first % per_node == started.size % per_node == 0
    if started.local_rank >= 0 and even:
        values["GROUP_RANK"] = first // per_node
    texts = {name: str(value) for name, value in values.items() if value >= 0}
    if started.size == started.local_size:
        address = "127.0.0.1"
    if address:
        texts["MASTER_ADDR"] = address
        texts["MASTER_PORT"] = str(_FIRST_PORT + zlib.crc32(started.job.encode()) % _PORTS)
    for name, text in texts.items():
        # If a variable was set here before and is gone, the program has unset it on purpose.
        if name not in ours and name not in os.environ:
            os.environ[name] = ours[name] = text
    _record(started.job, ours)


def forget() -> None:
    """Count the variables as those of another program, also where it has set the same values.

    torchrun sets its own in a rank of an MPI's launcher.
    """
    os.environ.pop(FILLED, None)


def is_ours(name: str) -> bool:
    """Whether the variable was set here, or by a parent process, and not by the user."""
    text = os.environ.get(name)
    return text is not None and _filled()[1].get(name) == text


def set_ours(name: str, value: object) -> None:
    """Set a variable, and note that it was set here."""
    job, ours = _filled()
    os.environ[name] = ours[name] = str(value)
    _record(job, ours)


def _filled() -> tuple[str, dict[str, str]]:
    """Return the job for which variables were set, and the values that they were set to."""
    job, _, texts = os.environ.get(FILLED, "").rpartition("|")
    return job, dict(text.split("=", 1) for text in texts.split() if "=" in text)


def _record(job: str, ours: dict[str, str]) -> None:
    os.environ[FILLED] = f"{job}|{' '.join(f'{name}={text}' for name, text in ours.items())}"
