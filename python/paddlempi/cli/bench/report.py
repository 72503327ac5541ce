"""What the benchmark prints: tables, and a progress bar on a terminal."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from typing import Any, TextIO

from ... import __version__, _native, group
from ..._progress import Line
from ...planner import machine
from . import traffic
from .collectives import AGAIN, OURS, Row
from .steps import ALONE, BARRIER, SILENT, StepRow

__all__ = [
    "Bar",
    "by",
    "counted",
    "environment",
    "headline",
    "heads",
    "operation_lines",
    "step_lines",
]

_COLUMNS = (
    f"{'bytes':>11}  {'contender':<15} {'p50 us':>11} {'p99 us':>11} {'algbw GB/s':>10} "
    f"{'busbw GB/s':>10}  "
)
_TRAFFIC, _PATH = f"{'traffic':>7}  ", f"{'path':<11}"


def environment() -> dict[str, Any]:
    """Return what the figures depend on, as plain data."""
    core = _native.control("info")
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "paddlempi": __version__,
        "python": platform.python_version(),
        "mpi": core["mpi"],
        "ranks": group.get_world_size(),
        "nodes": len(set(core["node"])),
        "shape": traffic.shape(core["node"]),
        "cpus": core["cpus"],
        "machine": platform.machine(),
        "processor": machine.processor(),
        "kernels": core["kernels"],
        "versions": _versions("numpy", "mpi4py", "torch", "paddlepaddle"),
        "load": list(os.getloadavg()),
    }


def _versions(*packages: str) -> dict[str, str]:
    """Return the versions of those of the packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def by(found: dict[str, Any]) -> str:
    """Return the name of the MPI."""
    return str(found["mpi"]["name"]) if found["mpi"] else "without MPI"


def headline(found: dict[str, Any]) -> str:
    """Return the first lines of the output."""
    ranks, nodes, cpus = counted(found["ranks"], "rank"), found["nodes"], found["cpus"]
    by_node = f" ({found['shape']})" if nodes > 1 else ""
    line = (
        f"# paddlempi {found['paddlempi']}, {by(found)}, {ranks} on "
        f"{counted(nodes, 'node')}{by_node}, {counted(cpus, 'CPU')} for rank 0"
    )
    if found["ranks"] == 1:
        line += (
            "\n# one rank sends nothing: these are the times of the calls alone; for transfers "
            "start it with mpirun -np 2 or more"
        )
    return line


def counted(number: int, what: str) -> str:
    """Spell a number of things: ``1 rank``, ``2 ranks``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def heads(
    operation: str, tensors: str, dtype: str, compared: bool, several_nodes: bool
) -> list[str]:
    """Return the lines above the table of an operation."""
    more = "  time : paddlempi's (quartiles)" if compared else ""
    columns = _COLUMNS + (_TRAFFIC if several_nodes else "") + _PATH + more
    return [f"# {operation}, {tensors} {dtype}", columns.rstrip()]


def _traffic(row: Row) -> str:
    """Show the bytes that leave a node : the fewest possible."""
    if not row.counted:
        return "-"
    return "?" if row.traffic is None else f"{row.traffic:.2f}"


def operation_lines(rows: Sequence[Row], several_nodes: bool) -> list[str]:
    """Return the lines of one size."""
    lines = []
    for row in rows:
        size = row.bytes if row.contender == OURS else ""
        text = f"{size:>11}  {row.contender:<15} {row.p50_us:>11.2f} {row.p99_us:>11.2f} "
        if row.bytes == 0:
            text += f"{'':>10} {'':>10}  "
        elif row.algorithm_gbps is None:
            text += f"{'-':>10} {'-':>10}  "
        else:
            text += f"{row.algorithm_gbps:>10.3f} {row.bus_gbps:>10.3f}  "
        if several_nodes:
            text += f"{_traffic(row):>7}  "
        text += f"{row.path or '-':<11}"
        if row.ratio is not None:
            text += f"  {row.ratio.show()}"
        if row.contender == AGAIN:
            text += "  the control"
        elif row.differs is False:
            text += "  no difference"
        lines.append(text.rstrip())
    return lines


def step_lines(row: StepRow) -> list[str]:
    """Return the lines of the steps of one model."""
    lines = [
        f"# {row.kind} {row.model}: {row.what}; {row.rounds} rounds, ms, medians",
        f"{'':<19} {'step':>9}  above no communication (quartiles)",
    ]
    for name in [SILENT, BARRIER, *(n for n in row.ms if n not in (SILENT, BARRIER, ALONE, AGAIN))]:
        tanc = row.tanc_ms.get(name)
        text = f"{name:<19} {row.ms[name]:>9.3f}"
        if tanc is not None:
            text += f"  {tanc.show(3)}"
        if name in row.others:
            text += f"  {_other(row, name)}"
        lines.append(text)
    apart = f"{row.control_ms.show(3)} from paddlempi: what is no further apart does not differ"
    lines.append(f"{AGAIN:<19} {row.ms[AGAIN]:>9.3f}  {apart}")
    lines.append(f"{ALONE:<19} {row.ms[ALONE]:>9.3f}  {_shown(row)}")
    lines += [f"not measured: {name}: {reason}" for name, reason in row.absent.items()]
    return lines


def _other(row: StepRow, name: str) -> str:
    """Say how another contender's time above no communication compares with paddlempi's."""
    ratio = row.others[name]
    if ratio is None:
        near_zero = [n for n in (OURS, name) if row.tanc_ms[n].low <= 0]
        return f"no ratio: {near_zero[0]} adds too little to tell" if near_zero else "no difference"
    text = f"{ratio:.2f} times paddlempi's"
    if name in row.spread:
        low, high = row.spread[name]
        text += f" ({low:.2f} to {high:.2f})"
    return f"{text}: {'more' if ratio > 1 else 'less'} than paddlempi"


def _shown(row: StepRow) -> str:
    """Say how much of the time of the collectives a step shows, and what that means."""
    if row.tanc_ms[OURS].low <= row.tanc_ms[BARRIER].high:
        return "a step over paddlempi shows no more of it than a barrier takes"
    share = f"{100 * row.above_barrier:.0f} %"
    if row.above_barrier < 1:
        return f"of it a step shows {share} beyond a barrier: the backward hides the rest"
    return f"a step shows {share} of it beyond a barrier: the backward hides nothing"


class Bar:
    """A progress bar on one line of rank 0's terminal, nothing on other ranks."""

    _WIDTH = 30

    def __init__(self, tasks: int, stream: TextIO | None = None) -> None:
        self._tasks, self._done = tasks, 0
        # Every benchmark runs under a launcher, where stderr is a pipe and minutes are silent.
        self._line = Line(group.get_rank() == 0, piped=True, stream=stream)

    def show(self, what: str, part: float) -> None:
        """Show what is measured, and which part of the present task is done, from 0 to 1."""
        done = (self._done + part) / self._tasks
        bar = "#" * int(self._WIDTH * done)
        self._line.show(f"[{bar:<{self._WIDTH}}] {what}", done, at_once=part in (0, 1))

    def next(self) -> None:
        """Go on to the next task."""
        self._done += 1

    def clear(self) -> None:
        """Erase the bar, so that a line can be printed in its place."""
        self._line.clear()

    def say(self, *lines: str) -> None:
        """Print lines on rank 0, in the place of the bar."""
        self.clear()
        if group.get_rank() == 0:
            print(*lines, sep="\n", flush=True)
