"""``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` ... for programs that read them before init.

Their values come from the launcher's variables, read by :mod:`paddlempi_bootstrap.mpi_launcher`, as
in ``import torch``. This module does not need torch.
"""

from __future__ import annotations

import os
import socket

from paddlempi_bootstrap import starters, torchrun_variables
from paddlempi_bootstrap.mpi_launcher import Place
from paddlempi_bootstrap.torchrun_variables import FILLED, is_ours, set_ours

__all__ = ["contradiction", "fill", "is_ours", "is_set", "place", "publish", "told_size"]


def fill() -> None:
    """Set those of torchrun's variables that are not set from the launcher's.

    Unlike ``import torch`` it sets them in a job of one rank too, and ``MASTER_ADDR`` in a job on
    several nodes. Without a launcher it sets nothing.
    """
    started, starter = starters.nearest()
    if starter is not None:
        torchrun_variables.forget()
        return
    address = "" if started is None else _address(started)
    torchrun_variables.fill(started, tell=True, address=address)


def is_set(name: str) -> bool:
    """Whether a variable is set and not empty."""
    return bool(os.environ.get(name))


def contradiction(rank: int, size: int) -> str | None:
    """Compare ``RANK`` and ``WORLD_SIZE`` with MPI's, and correct them if they were set here.

    Args:
        rank, size: MPI's.

    Returns:
        The words for an error if the user has set one of them to another value; else None.
    """
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        text = os.environ.get(name)
        if text is None or text == str(value):
            continue
        if is_ours(name):
            set_ours(name, value)
            continue
        return f"{name}={text} in the environment of MPI's rank {rank} of {size}"
    return None


def publish(host: str, port: int) -> None:
    """Set ``MASTER_ADDR`` and ``MASTER_PORT`` to the store's, unless the user has set them."""
    for name, value in (("MASTER_ADDR", host), ("MASTER_PORT", port)):
        if is_ours(name) or (FILLED in os.environ and not is_set(name)):
            set_ours(name, value)


def told_size() -> int:
    """Return the ``WORLD_SIZE`` that the user or a tool has set; 0: none."""
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() and not is_ours("WORLD_SIZE") else 0


def place() -> tuple[int, int]:
    """Return ``RANK`` and ``WORLD_SIZE``; -1 for what is not set."""
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return (int(rank) if rank.isdecimal() else -1, int(size) if size.isdecimal() else -1)


def _address(started: Place) -> str:
    """Return a host that all ranks name alike without communication, for ``MASTER_ADDR``.

    That is 127.0.0.1 in a job on one node, else the host that the launcher names. If it names none,
    the result is the name of this host, which differs between nodes.
    """
    if started.size == started.local_size:
        return "127.0.0.1"
    return started.host or socket.gethostname()
