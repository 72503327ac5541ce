"""``python -m paddlempi top``: once a second, what every rank of this host does.

The core reads the flight recorders of the processes (``trace_now``), which take no part. Who waits
for whom is judged as by ``trace show``. Words of other processes are shown without characters that
change a terminal.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import _native
from .._units import amount
from ..trace import rings
from . import options
from .trace import judge

__all__ = ["add_to"]

_WIDTH, _LINES = 80, 24  # of a terminal that does not say it
_MOST_PIDS = 4096


@dataclasses.dataclass(frozen=True)
class _Row:
    """What one rank does.

    Attributes:
        call: what is under way for longest; "" if nothing is.
        since: for how many seconds, or since its last call ended.
        bytes_per_s, calls_per_s: of the calls that ended in the last second.
        waiting: the share of that second in which it waited for others.
        waits_for: the ranks that keep it.
        rss: bytes of memory, 0 if that is not known.
    """

    rank: int
    pid: int
    host: str
    state: str
    call: str
    since: float
    bytes_per_s: float
    calls_per_s: float
    waiting: float
    waits_for: tuple[int, ...]
    rss: int


@dataclasses.dataclass(frozen=True)
class _Job:
    job: str
    size: int
    rows: list[_Row]


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "top",
        help="what every rank of this host does, once a second",
        description="Shows of every rank: the call it is in and since when, MB/s, the share of the "
        "last second in which it waited for others, for which rank it waits now, and its memory. "
        "The processes take no part. Ctrl-C ends it. The exit status is 1 if there is no rank.",
    )
    parser.add_argument(
        "pid", nargs="*", type=options.pid, metavar="PID", help="the process of a rank; else all"
    )
    parser.add_argument(
        "--all", action="store_true", help="all processes of this host that have a trace (default)"
    )
    parser.add_argument("--once", action="store_true", help="show it once")
    parser.add_argument(
        "--json", action="store_true", help="print a JSON object a second, each in one line"
    )
    parser.add_argument(
        "--every",
        type=lambda text: options.seconds(text, 0.1, 3600),
        default=1.0,
        metavar="SECONDS",
        help="how often; 1",
    )
    parser.set_defaults(run=_run, parser=parser)


def _run(chosen: argparse.Namespace) -> int:
    if (chosen.pid and chosen.all) or len(chosen.pid) > _MOST_PIDS:
        print(f"top: give process ids, {_MOST_PIDS} at most, or --all", file=sys.stderr)
        return 2
    watch = _Watch(chosen.pid or None)
    screen = sys.stdout.isatty() and not chosen.json and not chosen.once
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            began = time.monotonic()
            jobs, errors = watch.look()
            if chosen.json:
                print(_as_json(jobs, errors), flush=True)
            else:
                _show(list(_lines(jobs, errors)), screen)
            if chosen.once or (chosen.pid and not watch.living):
                break
            time.sleep(max(0.0, chosen.every - (time.monotonic() - began)))
    return 0 if watch.found else 1


class _Watch:
    """The ranks that are looked at, and those that were there before."""

    def __init__(self, pids: Sequence[int] | None) -> None:
        self._pids = pids
        self.seen: dict[str, dict[int, _Row]] = {}  # by job and rank
        self.found = False
        self.living = 0
        self._sizes: dict[str, int] = {}

    def look(self) -> tuple[list[_Job], list[str]]:
        """Return the jobs, and what could not be read."""
        found: dict[str, dict[int, tuple[rings.Ring, dict[str, Any]]]] = {}
        errors, self.living = [], 0
        for answer in _native.control("trace_now", pids=self._pids)["processes"]:
            try:
                if answer["error"]:
                    raise rings.TraceError(answer["error"])
                ring = rings.checked(answer["trace"], f"process {answer['pid']}")
            except rings.TraceError as error:
                errors.append(f"process {answer['pid']}: {error}")
                continue
            self.living += ring.state != "ended"
            self.found = True
            of_job = found.setdefault(f"{ring.job}.{ring.generation}", {})
            if ring.rank not in of_job:
                of_job[ring.rank] = ring, answer
        jobs = []
        for job in [*found, *(job for job in self.seen if job not in found)]:
            rows = {row.rank: row for row in _rows(found.get(job, {}))}
            for rank, row in self.seen.get(job, {}).items():
                if rank not in rows:  # its process is gone
                    rows[rank] = _gone(row)
            if job in found:
                self._sizes[job] = next(iter(found[job].values()))[0].size
            self.seen[job] = rows
            if all(row.state == "ended" for row in rows.values()) and self._pids is None:
                del self.seen[job]  # others begin; this one has been shown while it ran
            jobs.append(_Job(job, self._sizes[job], [rows[rank] for rank in sorted(rows)]))
        known = {row.pid for job in jobs for row in job.rows}
        gone = [error for error in errors if int(error.split(":")[0].split()[1]) not in known]
        return jobs, gone


def _gone(row: _Row) -> _Row:
    return dataclasses.replace(
        row, state="ended", bytes_per_s=0.0, calls_per_s=0.0, waiting=0.0, waits_for=(), rss=0
    )


def _rows(found: dict[int, tuple[rings.Ring, dict[str, Any]]]) -> Iterator[_Row]:
    if not found:
        return
    judged = judge.judge({rank: ring for rank, (ring, _) in found.items()})
    for rank, (ring, answer) in found.items():
        under_way = sorted(ring.under_way(), key=lambda one: one.begun or one.submitted)
        ends = [one.ended for one in ring.operations if one.ended is not None]
        call, since = "", max(ends, default=ring.began)
        if under_way:
            call = judge.describe(under_way[0])
            since = under_way[0].begun or under_way[0].submitted
        behind = {
            other
            for finding in judged.findings
            if not finding.over and rank in finding.waiting
            for other in finding.behind
        }
        seconds = max(answer["window"], 1) / 1e9
        yield _Row(
            rank=rank,
            pid=answer["pid"],
            host=_plain(ring.host),
            state=ring.state,
            call=_plain(call),
            since=max(ring.taken - since, 0) / 1e9,
            bytes_per_s=answer["bytes"] / seconds,
            calls_per_s=answer["calls"] / seconds,
            waiting=min(answer["waited"] / max(answer["window"], 1), 1.0),
            waits_for=tuple(sorted(behind)),
            rss=_rss(answer["pid"]),
        )


def _rss(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    except (OSError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def _as_json(jobs: Sequence[_Job], errors: Sequence[str]) -> str:
    made = {
        "time": time.time_ns(),
        "jobs": [
            {
                "job": job.job,
                "size": job.size,
                "ranks": [dataclasses.asdict(row) for row in job.rows],
            }
            for job in jobs
        ],
        "errors": list(errors),
    }
    return json.dumps(made)


def _show(lines: list[str], screen: bool) -> None:
    """Print a block, or write it over the one before on a terminal."""
    if not screen:
        print("\n".join(lines), flush=True)
        return
    width, height = shutil.get_terminal_size((_WIDTH, _LINES))
    if len(lines) >= height:
        lines = [*lines[: height - 2], f"... and {len(lines) - height + 2} more lines (--once)"]
    text = "".join(f"{line[: width - 1]}\x1b[K\n" for line in lines)
    sys.stdout.write(f"\x1b[H{text}\x1b[J")
    sys.stdout.flush()


def _lines(jobs: Sequence[_Job], errors: Sequence[str]) -> Iterator[str]:
    now = time.strftime("%H:%M:%S")
    if not jobs:
        yield f"{now}  no process of this host has a trace that this user can read"
    for job in jobs:
        hosts = len({row.host for row in job.rows})
        yield f"{now}  {len(job.rows)} of {job.size} ranks are on " + (
            "this host" if hosts == 1 else f"{hosts} hosts of this kernel"
        )
        width = max(shutil.get_terminal_size((_WIDTH, _LINES)).columns, _WIDTH) - 53
        yield (
            f"{'rank':>4} {'process':>8} {'call':<{width}} {'since':>7} {'MB/s':>6} {'wait':>4} "
            f"{'for rank':<8} {'memory':>8}"
        )
        for row in job.rows:
            yield _line(row, width)
    yield from errors


def _line(row: _Row, width: int) -> str:
    call = row.call or "-"
    if row.state != "running":
        call = f"{row.state.upper()}, {row.call}" if row.call else row.state.upper()
    rate = row.bytes_per_s / 1e6
    shown = f"{rate:.0f}" if rate >= 100 else f"{rate:.1f}"
    awaited = ",".join(map(str, row.waits_for))
    if len(awaited) > 8:
        awaited = f"{row.waits_for[0]} +{len(row.waits_for) - 1}"
    if row.state == "ended":
        return f"{row.rank:>4} {row.pid:>8} {call[:width]:<{width}}".rstrip()
    memory = amount(row.rss).replace(" ", "").replace("iB", "")
    return (
        f"{row.rank:>4} {row.pid:>8} {call[:width]:<{width}} {_since(row.since):>7} {shown:>6} "
        f"{row.waiting:>4.0%} {awaited:<8} {memory:>8}"
    )


def _since(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
    if seconds < 1000:
        return f"{seconds:.1f} s"
    return f"{seconds / 3600:.1f} h" if seconds >= 36_000 else f"{seconds / 60:.0f} min"


def _plain(text: str) -> str:
    """Return a text without characters that change a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)
