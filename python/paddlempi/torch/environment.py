"""``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` ... for training loops that read them before init.

They come from the launcher's variables as :mod:`paddlempi_autoload` reads them, so that what
``import torch`` told stays true; a host for several nodes comes from the core. Needs no torch.
"""

from __future__ import annotations

import os
import socket

import paddlempi_autoload
from paddlempi_autoload import FILLED, Launcher, is_ours, own

from .. import launcher

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
    """A host that ranks can agree on without talking: this one, or what the launcher names.

    Where nothing tells, this host's name, which is another on each.
    """
    if started.size == started.local_size:
        return "127.0.0.1"
    found = launcher.find()
    return (found and found["host"]) or socket.gethostname()
