"""``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK`` ... for training loops that read them before init."""

from __future__ import annotations

import os

from ..errors import ArgumentError

__all__ = ["fill", "rendezvous_is_ours", "verify"]

_ours: set[str] = set()


def fill() -> None:
    """Set torchrun's variables from the launcher's, where they are not set."""


def rendezvous_is_ours() -> bool:
    """Whether ``MASTER_ADDR`` and ``MASTER_PORT`` were set here and not by the user."""
    return "MASTER_PORT" in _ours or "MASTER_PORT" not in os.environ


def verify(rank: int, size: int) -> None:
    """Hold the variables against MPI, now that it runs.

    Raises:
        ArgumentError: ``RANK`` or ``WORLD_SIZE`` is not what MPI says.
    """
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        text = os.environ.get(name)
        if text is not None and name not in _ours and text != str(value):
            raise ArgumentError(
                f"init_process_group: {name}={text} in the environment, but MPI says {value}: "
                "unset it, or start the job with mpirun or srun alone"
            )
