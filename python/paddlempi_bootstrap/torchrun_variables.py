"""The variables in which torchrun tells frameworks their ranks, with what an MPI's launcher knows.

:func:`fill` sets them. ``PADDLEMPI_FILLED`` says which of them were set here, to which values, and
in which job. Child processes inherit all of them. ``PADDLEMPI_FILLED`` lets a child that is a rank
of another job tell them from variables that the user has set. If a variable has another value than
``PADDLEMPI_FILLED`` says, the user or a torchrun has set it since.
"""

from __future__ import annotations

import os
import zlib

from .mpi_launcher import Place

__all__ = ["FILLED", "fill", "forget", "is_ours", "set_ours"]

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
