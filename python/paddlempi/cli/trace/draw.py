"""``trace draw``: a recording as a file for Perfetto, as a page for a browser, or as a picture."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from .. import options

__all__ = ["add_to"]


def add_to(actions: Any) -> None:
    """Add the action to the parser of ``trace``."""
    draw = actions.add_parser(
        "draw",
        help="draw a recording: for Perfetto, as a page, or as a picture",
        description="Draws what all ranks did on one clock, and for whom they waited. The page "
        "needs no server and no network, the picture no program. Name the recordings of all hosts, "
        "or a folder of trace dump. What cannot be read is named on stderr, and the rest is drawn; "
        "the exit status is 1 if nothing can be.",
    )
    draw.add_argument(
        "part", nargs="+", metavar="PART", help="a file of trace record, or a folder of trace dump"
    )
    draw.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="Chrome's JSON, which https://ui.perfetto.dev and chrome://tracing open",
    )
    draw.add_argument("--html", metavar="FILE", help="a page: zoom, search, a table of the ranks")
    draw.add_argument("--svg", metavar="FILE", help="a picture: ranks are rows")
    draw.add_argument("--job", metavar="JOB", help="which job, if the recordings are of several")
    draw.set_defaults(run=_run, parser=draw)


def _run(chosen: argparse.Namespace) -> int:
    files = [name for name in (chosen.output, chosen.html, chosen.svg) if name is not None]
    if not files:
        print("trace draw: give -o, --html or --svg, each with a file", file=sys.stderr)
        return 2
    parts = {os.path.realpath(part) for part in chosen.part}
    for name in files:
        if os.path.realpath(name) in parts:
            print(f"trace draw: {name} is the recording itself: give another name", file=sys.stderr)
            return 2
    if importlib.util.find_spec("numpy") is None:
        print(f"trace draw: {options.NO_NUMPY}", file=sys.stderr)
        return 2
    from ...trace import chrome, clock, html, reading, svg

    try:
        timeline = clock.align(reading.read(chosen.part, job=chosen.job))
        told: dict[str, None] = {}
        for name, write in (
            (chosen.output, chrome.write),
            (chosen.html, html.write),
            (chosen.svg, svg.write),
        ):
            if name is not None:
                told.update(dict.fromkeys(write(timeline, name)))
                print(f"{name}: {Path(name).stat().st_size:,} bytes")
    except (reading.LoadError, OSError) as error:
        print(f"trace draw: {error}", file=sys.stderr)
        return 1
    for note in told:
        print(note, file=sys.stderr)
    return 0
