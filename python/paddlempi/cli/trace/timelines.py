"""``trace report`` and ``trace merge``: what a recording of all ranks says, and one file of it."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

from .. import options

__all__ = ["add_to"]

NEAR = 50_000  # ns: so near torch's spans of our operations are to ours


def add_to(actions: Any) -> None:
    """Add the actions to the parser of ``trace``."""
    report = actions.add_parser(
        "report",
        help="who makes others wait, and what the time goes to",
        description="Says of a recording how often each kind of call was made, how long it waited "
        "for other ranks, moved data, and was hidden behind computation; who came late; and what "
        "to do. What cannot be read is named, and the rest is used; the exit status is 1 if "
        "nothing can be.",
    )
    _add_parts(report)
    report.add_argument("--json", action="store_true", help="print one JSON object")
    report.set_defaults(run=_report, parser=report)
    merge = actions.add_parser(
        "merge",
        help="make one file of the recordings of several hosts, or of torch's profiler",
        description="Makes one file of the recordings of several hosts. With --torch it shifts the "
        "files of torch's profiler onto the clock of all hosts and adds what the ranks called: one "
        "file for Perfetto, or a folder with a file for each rank for Holistic Trace Analysis.",
    )
    _add_parts(merge)
    merge.add_argument("--torch", metavar="DIR", type=Path, help="the folder of torch's files")
    merge.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        required=True,
        help="what is written; with --torch a file .json or .json.gz, or a folder",
    )
    merge.set_defaults(run=_merge, parser=merge)


def _add_parts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "part", nargs="+", metavar="PART", help="a file of trace record, or a folder of trace dump"
    )
    parser.add_argument("--job", metavar="JOB", help="which job, if the recordings are of several")


def _no_numpy(action: str) -> bool:
    missing = importlib.util.find_spec("numpy") is None
    if missing:
        print(f"trace {action}: {options.NO_NUMPY}", file=sys.stderr)
    return missing


def _report(chosen: argparse.Namespace) -> int:
    if _no_numpy("report"):
        return 2
    from ...trace import reading, report, report_text

    try:
        made = report.make(reading.read(chosen.part, job=chosen.job))
    except (reading.LoadError, OSError) as error:
        print(f"trace report: {error}", file=sys.stderr)
        return 1
    print(report_text.as_json(made) if chosen.json else report_text.as_text(made))
    return 0


def _merge(chosen: argparse.Namespace) -> int:
    if _no_numpy("merge"):
        return 2
    if chosen.output.resolve() in {Path(part).resolve() for part in chosen.part}:
        print(f"trace merge: {chosen.output} is a part itself: name another -o", file=sys.stderr)
        return 2
    from ...trace import merge, reading

    try:
        if chosen.torch is not None:
            return _merge_torch(chosen)
        told = merge.write(chosen.part, chosen.output)
    except (reading.LoadError, OSError) as error:
        print(f"trace merge: {error}", file=sys.stderr)
        return 1
    for note in told:
        print(note, file=sys.stderr)
    print(f"{chosen.output}: {chosen.output.stat().st_size:,} bytes")
    return 0


def _merge_torch(chosen: argparse.Namespace) -> int:
    from ...trace import clock, kineto, reading

    timeline = clock.align(reading.read(chosen.part, job=chosen.job))
    traces, left = kineto.read_folder(chosen.torch, timeline)
    for note in (*timeline.clocks.sentences(), *timeline.warnings, *left):
        print(note, file=sys.stderr)
    if not traces:
        print(
            f"trace merge: --torch {chosen.torch}: no file of torch's profiler of this job is "
            "there, as export_chrome_trace and tensorboard_trace_handler write them",
            file=sys.stderr,
        )
        return 1
    for trace in traces:
        found = kineto.agreement(timeline, trace)
        print(
            f"rank {trace.rank}: {trace.path}: {len(trace.events):,} events; the clocks agree to "
            f"{found.clocks / 1e3:.0f} us; of {found.spans:,} calls that it has too, "
            f"{found.within(NEAR):.1%} are within {NEAR // 1000} us"
        )
    for path in kineto.write(timeline, traces, chosen.output):
        print(f"{path}: {path.stat().st_size:,} bytes")
    return 0
