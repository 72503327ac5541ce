"""``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` ... for training loops that read them before init.

They come from the launcher's variables; which launcher's count, the core decides. Needs no torch.

``PADDLEMPI_FILLED`` tells which of them were set here, and in which job: programs that are started
from here inherit them, and those of a launcher below this one must not take them for the user's.
"""

from __future__ import annotations

import os
import re
import socket
import zlib
from typing import Any

from .. import _native
from ..errors import Error

__all__ = ["contradiction", "fill", "is_ours", "is_set", "publish", "torchrun_size"]

FILLED = "PADDLEMPI_FILLED"

# No launcher that we know starts a process without one of them; asking the core loads it.
_SIGNS = ("PMIX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")

# Ports below those that Linux gives to whoever asks for any.
_FIRST_PORT, _PORTS = 10_000, 20_000


def fill() -> None:
    """Set torchrun's variables from the launcher's, where they are not set.

    Outside a launcher nothing is set. Starts no MPI and never raises: where the core cannot
    be loaded, init tells why.
    """
    if not any(sign in os.environ for sign in _SIGNS):
        return
    try:
        launcher = _native.control("launcher")
    except Error:
        return
    rank, size = launcher["rank"], launcher["size"]
    if rank < 0 or size < 1:
        return
    job, ours = _filled()
    if job == launcher["job"] and ours:
        return  # inherited from another process of this rank
    values = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": launcher["local_rank"],
        "LOCAL_WORLD_SIZE": launcher["local_size"],
        "MASTER_ADDR": _address(launcher),
        "MASTER_PORT": _FIRST_PORT + zlib.crc32(launcher["job"].encode()) % _PORTS,
    }
    for name in ours:
        os.environ.pop(name, None)
    wanted = [name for name in values if name not in os.environ and values[name] != -1]
    for name in wanted:
        os.environ[name] = str(values[name])
    os.environ[FILLED] = f"{launcher['job']}|{' '.join(wanted)}"


def is_ours(name: str) -> bool:
    """Whether the variable was set here and not by the user."""
    return name in _filled()[1]


def is_set(name: str) -> bool:
    """Whether the variable is set at all, and not empty."""
    return bool(os.environ.get(name))


def contradiction(rank: int, size: int) -> str | None:
    """Hold ``RANK`` and ``WORLD_SIZE`` against MPI, now that it runs.

    Those that were set here become what MPI says.

    Returns:
        What is wrong with one that the user set; None where all is well.
    """
    ours = _filled()[1]
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        text = os.environ.get(name)
        if text is None or text == str(value):
            continue
        if name in ours:
            os.environ[name] = str(value)
            continue
        return f"{name}={text} in the environment of MPI's rank {rank} of {size}"
    return None


def publish(host: str, port: int) -> None:
    """Let ``MASTER_ADDR`` and ``MASTER_PORT`` be where the store is, unless the user set them."""
    ours = _filled()[1]
    for name, value in (("MASTER_ADDR", host), ("MASTER_PORT", str(port))):
        if name in ours:
            os.environ[name] = value


def torchrun_size() -> int:
    """How many processes torchrun started, where it is what started this one; else 0.

    It is not where an MPI's launcher started this process, for that decides.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return 0
    size = os.environ.get("WORLD_SIZE", "")
    if not size.isdecimal() or _native.control("launcher")["size"] > 1:
        return 0
    return int(size)


def _filled() -> tuple[str, list[str]]:
    """The job in which variables were set here, and their names."""
    job, _, names = os.environ.get(FILLED, "").rpartition("|")
    return job, names.split()


def _address(launcher: dict[str, Any]) -> str:
    """A host that ranks can agree on without talking: this one, or the launcher's.

    Where nothing tells, this host's name, which is another on each.
    """
    if launcher["size"] == launcher["local_size"]:
        return "127.0.0.1"
    nodes = os.environ.get("SLURM_STEP_NODELIST", "")
    if launcher["mpi"] == "Slurm" and nodes:
        return _first_node(nodes)
    job = launcher["job"]
    for pattern in (r"prterun-(.+)-\d+@\d+", r"(.+):\d+"):  # Open MPI 5, MPICH
        found = re.fullmatch(pattern, job)
        if found:
            return found[1]
    uri = os.environ.get("OMPI_MCA_orte_hnp_uri", "")  # noqa: SIM112 (Open MPI 4)
    found = re.search(r"tcp://([^:,]+)", uri)
    return found[1] if found else socket.gethostname()


def _first_node(nodes: str) -> str:
    """The first host of Slurm's ``a[03-05,7],b``."""
    found = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes
