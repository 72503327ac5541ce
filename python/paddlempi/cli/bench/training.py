"""``bench step``: training steps, beside the same steps over gloo and plain MPI."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...errors import ArgumentError
from . import contenders, report, steps, table, tool

__all__ = ["add_to"]

_AGAINST = ("mpi", "gloo")


def add_to(tools: Any) -> None:
    """Add the tool to the parser of ``bench``."""
    parser = tools.add_parser(
        "step",
        help="training steps: ddp, fsdp2, hsdp, paddle",
        description="Measures training steps of small models, and what communication adds to a "
        "step.",
    )
    parser.add_argument(
        "kinds",
        nargs="+",
        choices=tuple(steps.KINDS),
        metavar="KIND",
        help="ddp; fsdp2; hsdp: FSDP2 on each node, gradients averaged over the nodes; paddle: "
        "DataParallel",
    )
    parser.add_argument("--model", type=tool.names, metavar="NAME,...", help="default: all")
    tool.add_rounds(parser, "steps of each model")
    tool.add_against(parser, _AGAINST, "gloo", "gloo, mpi (ddp and fsdp2 over plain MPI)")
    tool.add_table(parser)
    tool.complete(parser, partial(tool.measured, _measure))


def _measure(chosen: argparse.Namespace) -> None:
    """Measure steps. Collective over the world."""
    models = _models(list(dict.fromkeys(chosen.kinds)), chosen.model)
    bar = report.Bar(len(models))
    found = report.environment()
    bar.say(report.headline(found), "# times of a step are those of its slowest rank")
    if chosen.against is None:
        chosen.against = ["gloo"] if found["nodes"] > 1 else []
    measured = []
    for kind, model in models:
        measured.append(steps.measure(kind, model, chosen.against, chosen.rounds, bar.show))
        bar.next()
        if not chosen.table:
            bar.say(*report.step_lines(measured[-1]))
        gc.collect()
    record = {
        **found,
        "rows": [],
        "steps": [row.record() for row in measured],
        "not_measured": {},
    }
    if chosen.table:
        bar.say(*table.lines(record))
    tool.write(chosen, record)


def _models(kinds: Sequence[str], asked: Sequence[str] | None) -> list[tuple[str, str]]:
    """Return the kinds of steps with their models: those that were asked for, or all."""
    known = [
        (kind, model) for kind in kinds for model in contenders.front(steps.KINDS[kind]).MODELS
    ]
    names = [model for _, model in known]
    for name in asked or ():
        if name not in names:
            raise ArgumentError(
                f"bench: --model {name!r} is none of {', '.join(dict.fromkeys(names))}"
            )
    return [(kind, model) for kind, model in known if not asked or model in asked]
