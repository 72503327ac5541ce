"""The commands of ``python -m paddlempi``; a module of this package for each."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import doctor, info, run

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m paddlempi",
        description="MPI for the stock wheels of deep-learning frameworks.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info.add_to(commands)
    doctor.add_to(commands)
    run.add_to(commands)
    chosen = parser.parse_args(arguments)
    status: int = chosen.run(chosen)
    return status
