"""The commands of ``python -m paddlempi``. Every command is a module of this package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import bench, doctor, info, ps_status, run, trace

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the words after ``python -m paddlempi``."""
    whole = argparse.ArgumentParser(
        prog="python -m paddlempi",
        description="MPI for the stock wheels of deep-learning frameworks.",
    )
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info.add_to(commands)
    doctor.add_to(commands)
    run.add_to(commands)
    bench.add_to(commands)
    trace.add_to(commands)
    ps_status.add_to(commands)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    Args:
        arguments: the words after ``python -m paddlempi``; None: those of this process.
    """
    chosen = parser().parse_args(arguments)
    status: int = chosen.run(chosen)
    return status
