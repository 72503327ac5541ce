"""``trace record`` and ``run --timeline``: write down all operations of the ranks of this host.

A collector (gocore/trace/collect.go) reads their rings again and again; the ranks take no part.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from ... import _native
from ..._progress import Line
from ...errors import Error
from .. import options

__all__ = ["add_to", "beside"]

_TURN = 0.25
"""For so many seconds the core records before this module looks whether the end has come."""


def _seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: it must be a number of seconds above 0")
    return value


def add_to(actions: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi trace``."""
    parser = actions.add_parser(
        "record",
        help="write down all operations of the ranks of this host while they run",
        description="Records for some seconds, or until Ctrl-C or the end of all its ranks, and "
        "writes one file. The ranks take no part. Run it on each host of the job. The exit status "
        "is 1 if no rank was recorded.",
    )
    parser.add_argument(
        "pid",
        nargs="*",
        type=options.pid,
        metavar="PID",
        help="the process of a rank; default: --all",
    )
    parser.add_argument("--all", action="store_true", help="all ranks of this host, of all jobs")
    parser.add_argument("--job", metavar="ID", default="", help="the ranks of one job of several")
    # What ``run --timeline`` gives: the ranks below a process, until stdin is closed.
    parser.add_argument(
        "--under", type=options.pid, metavar="PID", default=0, help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--for",
        dest="seconds",
        type=_seconds,
        metavar="SECONDS",
        help="how long (default: until Ctrl-C, or until all ranks have ended)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("timeline.json"),
        help="the file (default: timeline.json)",
    )
    parser.set_defaults(run=_run, parser=parser)


class _End:
    """Whether a recording is to end: its time is over, or somebody says so."""

    def __init__(self, seconds: float | None, closed: int | None) -> None:
        self._seconds = seconds
        self._until = None if seconds is None else time.monotonic() + seconds
        self._closed = closed
        self._asked = False

    def ask(self, _number: int, _frame: FrameType | None) -> None:
        """End it; the handler of a signal."""
        self._asked = True

    def left(self) -> float | None:
        """The seconds that are left, None if nobody knows."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def part(self) -> float:
        """The part of the time that is over, 0 if nobody knows."""
        left = self.left()
        return 0.0 if left is None or self._seconds is None else 1 - left / self._seconds

    def has_come(self, counts: dict[str, Any]) -> bool:
        if self._closed is not None:
            return bool(select.select([self._closed], [], [], 0)[0])
        if self._asked or self.left() == 0:
            return True
        return self._until is None and counts["ranks"] > 0 and counts["living"] == 0


def _run(chosen: argparse.Namespace) -> int:
    if sum((bool(chosen.pid), chosen.all, bool(chosen.job))) > 1:
        chosen.parser.error("give process ids, or --all, or --job ID")
    try:
        return _record(chosen)
    except Error as error:
        print(f"trace record: {error}", file=sys.stderr)
        return 1


def _record(chosen: argparse.Namespace) -> int:
    end = _End(chosen.seconds, sys.stdin.fileno() if chosen.under else None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end.ask)
    output = chosen.output.absolute()
    begun = _native.control(
        "trace_record",
        pids=chosen.pid or None,
        ancestor=chosen.under,
        job=chosen.job,
        folder=str(output.parent),
    )
    handle, counts = begun["handle"], begun["counts"]
    jobs = counts["jobs"]
    if len(jobs) > 1 and not (chosen.pid or chosen.all or chosen.under):
        _native.control("trace_write", handle=handle, path="")
        print(
            f"trace record: this host has ranks of {len(jobs)} jobs: give --all, or --job with "
            f"one of {' '.join(jobs)}",
            file=sys.stderr,
        )
        return 2
    for problem in begun["problems"]:
        print(f"trace record: {problem['error']}", file=sys.stderr)
    if chosen.under:
        print("recording", flush=True)  # the ranks may start
    line = Line()
    while not end.has_come(counts):
        left = end.left()
        turn = _TURN if left is None else min(_TURN, left)
        counts = _native.control("trace_recorded", handle=handle, seconds=turn)["counts"]
        ranks, operations = counts["ranks"], counts["operations"]
        line.show(f"recording {ranks} ranks, {operations:,} operations", end.part())
    line.clear()
    written = _native.control("trace_write", handle=handle, path=str(output))
    told = {problem["error"] for problem in begun["problems"]}
    for problem in written["problems"]:
        if problem["error"] not in told:
            print(f"trace record: {problem['error']}", file=sys.stderr)
    _tell(chosen.output, written, sys.stderr if chosen.under else sys.stdout)
    return int(written["ranks"] == 0)


def _tell(output: Path, written: dict[str, Any], stream: Any) -> None:
    """Say what was recorded, in one line and one for each note."""
    ranks = written["ranks"]
    text = f"{output}: {ranks} rank{'s' * (ranks != 1)}, {written['operations']:,} operations"
    text += f", {written['lost']:,} lost" if written["lost"] else ", none lost"
    text += f", {written['bytes'] / 1e6:.1f} MB, "
    text += f"{written['cpu']:.2f} s of CPU, and {written['write_cpu']:.1f} s for the file"
    print("\n".join([text, *written["notes"]]), file=stream)


@contextlib.contextmanager
def beside(output: str) -> Iterator[None]:
    """Record what ranks do that this process starts meanwhile, by a process beside them.

    Args:
        output: the file, which is there when the block has ended. Nothing is done if it is "".

    Raises:
        OSError: the recording cannot begin; stderr says why.
    """
    if not output:
        yield
        return
    command = [sys.executable, "-m", "paddlempi", "trace", "record"]
    command += ["--under", str(os.getpid()), "-o", output]
    # A session of its own: Ctrl-C is for the ranks, whose end it records.
    recorder = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    with recorder:
        assert recorder.stdin is not None and recorder.stdout is not None
        if not recorder.stdout.readline():
            raise OSError(f"--timeline {output}: the recording did not begin")
        os.environ["PADDLEMPI_TIMELINE"] = "1"
        try:
            yield
        finally:
            recorder.stdin.close()
            recorder.wait()
