"""The commands of ``python -m paddlempi``, or ``paddlempi``. Each is a module of this package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import __version__
from . import bench, completion, doctor, info, plan, ps_status, report, run, top, trace, tune

__all__ = ["main", "parser"]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the words after ``python -m paddlempi``."""
    installed = Path(sys.argv[0]).name == "paddlempi"
    whole = argparse.ArgumentParser(
        prog="paddlempi" if installed else "python -m paddlempi",
        description="MPI for the stock wheels of deep-learning frameworks.",
    )
    whole.add_argument("--version", action="version", version=f"paddlempi {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info.add_to(commands)
    doctor.add_to(commands)
    run.add_to(commands)
    bench.add_to(commands)
    tune.add_to(commands)
    plan.add_to(commands)
    trace.add_to(commands)
    top.add_to(commands)
    ps_status.add_to(commands)
    report.add_to(commands)
    completion.add_to(commands, parser)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    Args:
        arguments: the words after ``python -m paddlempi``; None: those of this process.
    """
    chosen, unknown = parser().parse_known_args(arguments)
    if unknown:  # with the usage of the command, and not that of this parser
        chosen.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        status: int = chosen.run(chosen)
        if chosen.command != "run":
            sys.stdout.flush()
    except BrokenPipeError:
        if chosen.command == "run":  # it is the script's
            raise
        # `| head` has read enough. What is left to flush at exit goes nowhere.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        status = 141  # as after SIGPIPE
    return status
