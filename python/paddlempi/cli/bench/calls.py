"""``bench call``: operations of all ranks, beside plain MPI, mpi4py and gloo."""

from __future__ import annotations

import argparse
import gc
import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

from ... import group
from ...errors import ArgumentError
from .. import options
from . import collectives, picture, report, table, threads, tool
from .collectives import AGAIN, OURS, Plan, Row
from .contenders import Framework
from .operations import DTYPES, OPERATIONS

__all__ = ["NAMES", "add_to"]

NAMES = (*OPERATIONS, "all")
"""What can be measured; each is also a name of the command: ``bench all_reduce``."""

_AGAINST = ("usual", "mpi", "mpi4py", "gloo")


def add_to(tools: Any) -> None:
    """Add the tool to the parser of ``bench``."""
    parser = tools.add_parser(
        "call",
        help="operations: all_reduce, broadcast, pingpong ...",
        description="Measures operations at several sizes, and prints a table as the OSU "
        "benchmarks do. `bench all_reduce` is short for `bench call all_reduce`.",
    )
    parser.add_argument(
        "operations",
        nargs="*",
        type=tool.one_of(NAMES),
        metavar="OPERATION",
        help=f"{', '.join(OPERATIONS)}, or all; default: all_reduce",
    )
    parser.add_argument(
        "--min", type=options.nbytes, default=8, metavar="BYTES", help="the least size; 8"
    )
    parser.add_argument(
        "--max", type=options.nbytes, default=4 << 20, metavar="BYTES", help="64K, 1G; 4M"
    )
    tool.add_sizes(parser, "instead of --min and --max: 8,1K,1M")
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="float32",
        metavar="DTYPE",
        help=f"of {', '.join(DTYPES)}; float32",
    )
    parser.add_argument(
        "--framework",
        choices=("numpy", "torch", "paddle"),
        default="numpy",
        help="whose tensors: numpy's by paddlempi's functions (the default), or those of "
        "torch.distributed or paddle.distributed by theirs",
    )
    parser.add_argument(
        "--memory",
        choices=("ordinary", "mapped"),
        default="ordinary",
        help="mapped: tensors that the ranks of a node map (paddlempi.empty)",
    )
    parser.add_argument(
        "--iterations", type=tool.positive, metavar="N", help="calls of each size that count"
    )
    parser.add_argument("--warmup", type=tool.natural, metavar="N", help="calls before them")
    parser.add_argument(
        "--seconds",
        type=lambda text: options.seconds(text, 0.001),
        metavar="SECONDS",
        help="the most time for a size, once it has had ten rounds",
    )
    parser.add_argument(
        "--same-buffer",
        action="store_true",
        help="call with one tensor, of zeros, as the OSU benchmarks do; default: several "
        "in turn, written anew before each round",
    )
    parser.add_argument(
        "--threads",
        type=tool.numbers,
        metavar="N,...",
        help="with so many threads of each rank, beside a copy by as many: 1,2,4,8",
    )
    tool.add_against(
        parser,
        _AGAINST,
        "mpi4py and gloo where installed",
        "usual (the same without tuning), mpi (the same over plain MPI), mpi4py, gloo",
    )
    tool.add_table(parser)
    tool.add_plot(parser, "the times of one operation, with that of a memcpy")
    tool.complete(parser, partial(tool.measured, _measure), _check)


def _check(chosen: argparse.Namespace) -> None:
    """Complete the operations, and raise ArgumentError if the options do not go together."""
    named = [chosen.tool] * (chosen.tool != "call") + chosen.operations or ["all_reduce"]
    chosen.operations = list(OPERATIONS) if "all" in named else list(dict.fromkeys(named))
    if chosen.max < chosen.min:
        raise ArgumentError(f"bench: --max {chosen.max} is below --min {chosen.min}")
    if chosen.plot and (len(chosen.operations) != 1 or chosen.operations == ["barrier"]):
        raise ArgumentError(
            f"bench: --plot {chosen.plot}: a picture shows one operation that moves data, not "
            f"{', '.join(chosen.operations)}"
        )

    if chosen.threads and (chosen.against or chosen.plot or chosen.table):
        raise ArgumentError("bench: --threads goes without --against, --plot and --table")


def _measure(chosen: argparse.Namespace) -> None:
    """Measure operations. Collective over the world."""
    first = group.get_rank() == 0
    bar = report.Bar(len(chosen.operations))
    found = report.environment()
    several_nodes = found["nodes"] > 1
    bar.say(report.headline(found), "# times of a call are those of its slowest rank")
    if several_nodes:
        bar.say("# traffic: bytes that leave a node : the fewest possible")
    if chosen.against is None:
        chosen.against = [] if chosen.threads or not several_nodes else _installed(chosen.framework)
    if chosen.threads:
        rows, absent = threads.measure(chosen, _plan(chosen), _tensors(chosen), bar)
    else:
        rows, absent = _operations(chosen, several_nodes, bar)
    record = {
        **found,
        "rows": [row.record() for row in rows],
        "steps": [],
        "not_measured": absent,
    }
    if chosen.table:
        bar.say(*table.lines(record))
    tool.write(chosen, record)
    if first and chosen.plot:
        title = (
            f"{rows[0].operation}, {chosen.dtype}, {report.counted(found['ranks'], 'rank')}, "
            f"{report.by(found)}: median"
        )
        Path(chosen.plot).write_text(picture.draw(title, rows))


def _installed(framework: str) -> list[str]:
    """Return which of mpi4py and gloo all ranks have installed. Collective over the world."""
    packages = {"mpi4py": "mpi4py", "gloo": "paddle" if framework == "paddle" else "torch"}
    mine = [name for name, package in packages.items() if importlib.util.find_spec(package)]
    of_ranks = [text.split() for text in collectives.of_all_ranks(" ".join(mine))]
    return [name for name in packages if all(name in of_rank for of_rank in of_ranks)]


def _plan(chosen: argparse.Namespace) -> Plan:
    return Plan(
        sorted(chosen.sizes) if chosen.sizes else collectives.sizes(chosen.min, chosen.max),
        chosen.iterations,
        chosen.warmup,
        chosen.same_buffer,
        chosen.seconds,
    )


def _tensors(chosen: argparse.Namespace) -> Framework:
    return Framework(chosen.framework, chosen.dtype, chosen.memory)


def _operations(
    chosen: argparse.Namespace, several_nodes: bool, bar: report.Bar
) -> tuple[list[Row], dict[str, str]]:
    rows: list[Row] = []
    absent: dict[str, str] = {}
    names = [
        OURS,
        *chosen.against,
        *[AGAIN] * bool(chosen.against),
        *["memcpy"] * bool(chosen.plot),
    ]
    plan, tensors = _plan(chosen), _tensors(chosen)

    def show(of_size: list[Row]) -> None:
        rows.extend(of_size)
        if not chosen.table:
            bar.say(*report.operation_lines(of_size, several_nodes))

    for name in chosen.operations:
        heads = report.heads(
            name, chosen.framework, chosen.dtype, bool(chosen.against), several_nodes
        )
        if not chosen.table:
            bar.say(*heads)
        reasons = collectives.measure(name, names, tensors, plan, show, bar.show)
        bar.next()
        gc.collect()
        for contender, reason in reasons.items():
            if not chosen.table:
                bar.say(f"not measured: {contender}: {reason}")
            absent[f"{name}, {contender}"] = reason
    return rows, absent
