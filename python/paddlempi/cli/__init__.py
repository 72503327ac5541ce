"""The commands of ``python -m paddlempi``. Every command is a module of this package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import bench, doctor, info, ps_status, run, trace

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    Args:
        arguments: the words after ``python -m paddlempi``; None: those of this process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m paddlempi",
        description="MPI for the stock wheels of deep-learning frameworks.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info.add_to(commands)
    doctor.add_to(commands)
    run.add_to(commands)
    bench.add_to(commands)
    trace.add_to(commands)
    ps_status.add_to(commands)
    chosen = parser.parse_args(arguments)
    status: int = chosen.run(chosen)
    return status
