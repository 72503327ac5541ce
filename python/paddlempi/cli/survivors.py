"""A launcher's option that leaves the other ranks alone when one dies.

Training with ``ps.init(mode="async")`` goes on without a trainer that has died; in other programs
the survivors learn who it was. Without the option the launcher ends them first.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

__all__ = ["keeping"]

_OPTIONS = {
    # What ``--version`` says, and the option. It works within one node.
    "open mpi": "--continuous",
    "openrte": "--continuous",
    "intel(r) mpi": "-disable-auto-cleanup",
    "hydra": "-disable-auto-cleanup",
}


def keeping(command: Sequence[str]) -> list[str]:
    """Return a launcher's command with the option, unless it has it already.

    Raises:
        ValueError: it is none of the launchers that have such an option.
        OSError: the launcher cannot be started.
    """
    launcher, *words = command
    answer = subprocess.run(
        [launcher, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    said = (answer.stdout + answer.stderr).lower()
    option = next((option for sign, option in _OPTIONS.items() if sign in said), None)
    if option is None:
        raise ValueError(
            f"--keep-survivors: {launcher} is the mpirun of neither Open MPI, MPICH nor Intel MPI: "
            "give its own option in COMMAND"
        )
    return [launcher, *([] if option in words else [option]), *words]
