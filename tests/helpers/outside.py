"""The variables of a process that no launcher has started."""

from __future__ import annotations

import os

_OF_JOBS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "MASTER_",
    "PADDLE_",
    "TORCHELASTIC",
    "OMPI_",
    "PMI",
    "PRTE",
)


def environment() -> dict[str, str]:
    """Return this process's variables without those that launchers set for a rank."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_JOBS)}
