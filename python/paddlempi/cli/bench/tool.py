"""What the tools of ``python -m paddlempi bench`` share: options, checks, and how one begins."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from paddlempi_bootstrap import mpi_launcher

from ... import group
from ...errors import ArgumentError, Error
from .. import options
from . import contenders
from .collectives import WrongResultError, of_all_ranks

__all__ = [
    "add_against",
    "add_plot",
    "add_rounds",
    "add_sizes",
    "add_table",
    "check_folders",
    "complete",
    "measured",
    "names",
    "natural",
    "numbers",
    "one_of",
    "positive",
    "runs",
    "svg",
    "write",
]

_NO_OPTIONS = ("run", "command", "parser", "tool")  # in what the parser returns


def complete(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int],
    check: Callable[[argparse.Namespace], None] = lambda chosen: None,
) -> None:
    """Add the options that every tool has, and say how it runs.

    Args:
        run: measures, and returns the exit status: 0, or 1 after an error.
        check: completes the options; raises ArgumentError, on every rank alike, if they do not go
            together. The exit status is 2 then, and nothing was begun.
    """
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="how long an operation waits for the other ranks; 120",
    )
    runs(parser, run, check)


def runs(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int],
    check: Callable[[argparse.Namespace], None],
) -> None:
    """Say how a tool runs that has its own options only; see :func:`complete`."""
    parser.set_defaults(run=partial(_run, run, check), parser=parser)


def _run(
    run: Callable[[argparse.Namespace], int],
    check: Callable[[argparse.Namespace], None],
    chosen: argparse.Namespace,
) -> int:
    try:
        if importlib.util.find_spec("numpy") is None:
            raise ArgumentError(f"bench: {options.NO_NUMPY}")
        if chosen.tool and any(name.startswith("calibrate") for name in vars(chosen)):
            raise ArgumentError(
                f"bench: --calibrate and its --seconds go without TOOL, which is {chosen.tool}"
            )
        check(chosen)
        missing = "" if mpi_launcher.find() else _no_folder(chosen)  # else rank 0's host counts
        if missing:
            raise ArgumentError(missing)
    except ArgumentError as error:
        print(error, file=sys.stderr, flush=True)
        return 2
    return run(chosen)


def measured(measure: Callable[[argparse.Namespace], None], chosen: argparse.Namespace) -> int:
    """Make the default group and measure. Return the exit status, 0 or 1."""
    rank = 0
    try:
        group.init_process_group(timeout=chosen.timeout)
        rank = group.get_rank()
        gc.disable()  # a collection would count as the time of some call
        try:
            check_folders(chosen)
            measure(chosen)
        finally:
            gc.enable()
            contenders.stop()
    except (ArgumentError, WrongResultError) as error:  # all ranks raise it alike
        if rank == 0:
            print(error, file=sys.stderr, flush=True)
        return 1
    except Error as error:
        print(f"bench: rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def check_folders(chosen: argparse.Namespace) -> None:
    """Raise ArgumentError on all ranks if rank 0 cannot write a file. Collective over the world."""
    if not group.is_initialized():  # what is measured is this process
        of_ranks = [_no_folder(chosen)]
    else:
        of_ranks = of_all_ranks(_no_folder(chosen) if group.get_rank() == 0 else "")
    for reason in filter(None, of_ranks):
        raise ArgumentError(reason)


def _no_folder(chosen: argparse.Namespace) -> str:
    """Say which file cannot be written here, because its folder is missing; "" if all can."""
    for file in (getattr(chosen, option, None) for option in ("json", "plot", "calibrate")):
        if file and not Path(file).parent.is_dir():
            return f"bench: {file}: there is no folder {Path(file).parent}"
    return ""


def write(chosen: argparse.Namespace, record: dict[str, Any]) -> None:
    """Write a record, with the options, if rank 0 is asked for one."""
    if chosen.json and group.get_rank() == 0:
        given = {name: value for name, value in vars(chosen).items() if name not in _NO_OPTIONS}
        Path(chosen.json).write_text(json.dumps({**record, "options": given}, indent=1))


# Options of some of the tools


def add_against(
    parser: argparse.ArgumentParser, known: Sequence[str], default: str, meaning: str
) -> None:
    """Add the contenders; :func:`_against` reads them."""
    parser.add_argument(
        "--against",
        type=_against(known),
        metavar="NAME,...",
        help=f"{meaning}; none (the default, but on several nodes {default})",
    )


def add_plot(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add a picture."""
    parser.add_argument("--plot", type=svg, metavar="FILE.svg", help=f"draw {meaning}")


def add_rounds(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add how often something is measured."""
    parser.add_argument("--rounds", type=positive, default=200, metavar="N", help=f"{meaning}; 200")


def add_sizes(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Add the bytes that are measured."""
    parser.add_argument("--sizes", type=options.sizes, metavar="BYTES,...", help=meaning)


def add_table(parser: argparse.ArgumentParser) -> None:
    """Add the table at the end."""
    parser.add_argument(
        "--table", action="store_true", help="print one table of everything at the end instead"
    )


# Types of arguments


def _seconds(text: str) -> float:
    return options.seconds(text, 0.001)


def natural(text: str) -> int:
    """Read a number."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return int(text)


def positive(text: str) -> int:
    """Read a number above 0."""
    if natural(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return int(text)


def numbers(text: str) -> list[int]:
    """Read several numbers above 0."""
    return [positive(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    """Read several names."""
    return list(dict.fromkeys(text.split(",")))


def svg(text: str) -> str:
    """Read the name of a picture."""
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .svg, the only format")
    return text


def one_of(known: Sequence[str]) -> Callable[[str], str]:
    """Return what reads one of some names: ``choices``, but for ``nargs="*"`` in Python 3.10."""

    def read(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")
        return text

    return read


def _against(known: Sequence[str]) -> Callable[[str], list[str]]:
    read = one_of((*known, "none"))

    def against(text: str) -> list[str]:
        found = [read(name) for name in names(text)]
        if "none" in found and len(found) > 1:
            raise argparse.ArgumentTypeError(f"{text!r}: none stands alone")
        return [] if found == ["none"] else found

    return against
