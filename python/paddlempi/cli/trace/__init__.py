"""``python -m paddlempi trace``: what the ranks of a job were doing (docs/my-job-hangs.md).

``trace dump`` writes the flight recorders of processes of this host into files, without their help.
``trace show`` merges the files of all ranks, and says which rank is behind. ``trace record`` writes
down all operations of the ranks of this host while they run, and ``trace draw`` draws that.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ... import _native
from ...trace import rings
from ...trace.replacing import replacing
from .. import options
from . import draw, for_torch, judge, record, report, stacks, timelines

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "trace",
        help="what the ranks of a job were doing, and which one is behind",
        description="Every rank records its last operations. dump writes what the processes of "
        "this host have recorded; show merges the files of all ranks. record writes down what they "
        "do from now on; draw shows it on one clock.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    dump = actions.add_parser(
        "dump",
        help="write the traces of processes of this host",
        description="Writes a file rank-N.json for every process. The processes go on, or stay "
        "stopped: they take no part. The exit status is 1 if one has no trace that can be read.",
    )
    dump.add_argument(
        "pid", nargs="*", type=options.pid, metavar="PID", help="the process of a rank"
    )
    dump.add_argument(
        "--all", action="store_true", help="all processes of this host that have a trace"
    )
    dump.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        default="paddlempi-trace",
        help="the folder, which is made if need be (default: paddlempi-trace)",
    )
    dump.set_defaults(run=_dump, parser=dump)
    show = actions.add_parser(
        "show",
        help="say which rank is behind",
        description="Merges the files of all ranks and says which rank is behind, in which "
        "operation, and how long others have waited for each rank.",
    )
    show.add_argument("folder", metavar="DIR", type=Path, help="the folder with rank-N.json")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.add_argument(
        "--torch",
        metavar="PREFIX",
        help="also write a file PREFIX<rank> for every rank, which "
        "torch.distributed.flight_recorder.fr_trace reads",
    )
    show.set_defaults(run=_show, parser=show)
    record.add_to(actions)
    draw.add_to(actions)
    timelines.add_to(actions)


def _dump(chosen: argparse.Namespace) -> int:
    if bool(chosen.pid) == chosen.all:
        print("trace dump: give process ids, or --all", file=sys.stderr)
        return 2
    pids = None if chosen.all else chosen.pid
    done = _native.control("trace_dump", pids=pids, folder=chosen.output)["processes"]
    for process in done:
        if process["error"]:
            print(f"process {process['pid']}: {process['error']}", file=sys.stderr)
        else:
            print(
                f"rank {process['rank']}: {process['file']} "
                f"(process {process['pid']}, {process['state']})"
            )
    _add_stacks([one for one in done if not one["error"] and one["state"] != "ended"])
    if not done:
        print("no process of this host has a trace that this user can read", file=sys.stderr)
    return int(not done or any(process["error"] for process in done))


def _add_stacks(processes: Sequence[dict[str, Any]]) -> None:
    """Add to the traces of processes what their Python threads do, where that can be read."""
    found = stacks.of(process["pid"] for process in processes)
    for process in processes:
        python = found[process["pid"]]
        if isinstance(python, str):
            told = f"rank {process['rank']}: its Python stack is not read: {python}"
            print(told, file=sys.stderr)
            continue
        path = Path(process["file"])
        data = json.loads(path.read_bytes())
        with replacing(path) as staged:
            staged.write_text(json.dumps({**data, "python": python}) + "\n", encoding="utf-8")


def _show(chosen: argparse.Namespace) -> int:
    try:
        read = rings.read_folder(chosen.folder)
        if chosen.torch is not None:
            for_torch.write_pickles(read, chosen.torch)
    except (rings.TraceError, OSError) as error:
        print(f"trace show: {error}", file=sys.stderr)
        return 1
    found = judge.judge(read)
    print(report.as_json(found) if chosen.json else report.as_text(found))
    return 0
