"""``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` ... for training loops that read them before init.

They come from the launcher's variables, which :mod:`paddlempi_autoload` reads. Needs no torch.
"""

from __future__ import annotations

import os
import re
import socket

import paddlempi_autoload
from paddlempi_autoload import FILLED, Launcher, is_ours, own

__all__ = ["contradiction", "fill", "is_ours", "is_set", "publish", "told_size", "torchrun_size"]


def fill() -> None:
    """Set torchrun's variables from the launcher's, where they are not set.

    More than ``import torch`` does: also in a job of one rank, and ``MASTER_ADDR`` of a job on
    several nodes. Outside a launcher nothing is set.
    """
    started = paddlempi_autoload.launcher()
    address = "" if started is None else _address(started)
    paddlempi_autoload.fill(started, tell=True, address=address)


def is_set(name: str) -> bool:
    """Whether the variable is set at all, and not empty."""
    return bool(os.environ.get(name))


def contradiction(rank: int, size: int) -> str | None:
    """Hold ``RANK`` and ``WORLD_SIZE`` against MPI, now that it runs.

    Those that were set here become what MPI says.

    Returns:
        What is wrong with one that the user set; None where all is well.
    """
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        text = os.environ.get(name)
        if text is None or text == str(value):
            continue
        if is_ours(name):
            own(name, value)
            continue
        return f"{name}={text} in the environment of MPI's rank {rank} of {size}"
    return None


def publish(host: str, port: int) -> None:
    """Let ``MASTER_ADDR`` and ``MASTER_PORT`` be where the store is, unless the user set them."""
    for name, value in (("MASTER_ADDR", host), ("MASTER_PORT", port)):
        if is_ours(name) or (FILLED in os.environ and not is_set(name)):
            own(name, value)


def told_size() -> int:
    """The ``WORLD_SIZE`` that the user or a tool has set; 0: none."""
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() and not is_ours("WORLD_SIZE") else 0


def torchrun_size() -> int:
    """How many processes torchrun started, where it is what started this one; else 0.

    It is not where an MPI's launcher started as many processes, for that decides.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0
    size, started = told_size(), paddlempi_autoload.launcher()
    return 0 if started is not None and started.size == size else size


def _address(started: Launcher) -> str:
    """A host that ranks can agree on without talking: this one, or the launcher's.

    Where nothing tells, this host's name, which is another on each.
    """
    if started.size == started.local_size:
        return "127.0.0.1"
    nodes = os.environ.get("SLURM_STEP_NODELIST", "")
    if started.mpi == "Slurm" and nodes:
        return _first_node(nodes)
    for pattern in (r"prterun-(.+)-\d+@\d+", r"(.+):\d+"):  # Open MPI 5, MPICH
        found = re.fullmatch(pattern, started.job)
        if found:
            return found[1]
    uri = os.environ.get("OMPI_MCA_orte_hnp_uri", "")  # noqa: SIM112 (Open MPI 4)
    found = re.search(r"tcp://([^:,]+)", uri)
    return found[1] if found else socket.gethostname()


def _first_node(nodes: str) -> str:
    """The first host of Slurm's ``a[03-05,7],b``."""
    found = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes
