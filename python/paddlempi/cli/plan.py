"""``python -m paddlempi plan train.py``: what a step would cost on a job, before it is queued."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._progress import Line
from .._units import amount
from ..errors import ArgumentError
from ..planner import machine as machines
from ..planner.machine import Machine
from ..planner.plans import Plan, Plans
from .bench import picture, tool

__all__ = ["add_to", "lines", "run"]


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "plan",
        help="say what a training step would cost on more nodes, for each way to cut the model",
        description="Runs a PyTorch script in one process up to its call of paddlempi.torch.apply, "
        "or the first forward of its DistributedDataParallel, and says from what `bench "
        "--calibrate` has measured how long a step takes under each way to cut the model. The exit "
        "status is 1 if none can be taken, 2 if the command is wrong.",
    )
    parser.add_argument("script", metavar="SCRIPT", help="as mpirun starts it: train.py")
    parser.add_argument(
        "--arguments",
        default="",
        metavar="WORDS",
        help="the script's own: --arguments='--width 512'",
    )
    parser.add_argument(
        "--nodes",
        type=tool.numbers,
        required=True,
        metavar="N,...",
        help="on how many nodes: 64; or several: 1,2,4",
    )
    parser.add_argument(
        "--ranks", type=tool.positive, default=1, metavar="N", help="ranks on each node; 1"
    )
    parser.add_argument(
        "--machine",
        required=True,
        metavar="FILE",
        help="what python -m paddlempi bench --calibrate FILE has written",
    )
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    parser.add_argument(
        "--plot",
        type=tool.svg,
        metavar="FILE.svg",
        help="draw the time of a step over the nodes, 1, 2, 4 ... where --nodes is one number",
    )
    parser.set_defaults(run=run, parser=parser)


def run(chosen: argparse.Namespace) -> int:
    """Plan, and print the tables.

    Returns:
        0; 1 if no plan can be taken; 2 if the command is wrong.
    """
    if importlib.util.find_spec("torch") is None:
        print("plan: PyTorch is not installed, whose models it plans", file=sys.stderr)
        return 2
    line = Line()
    try:
        for file in filter(None, (chosen.json, chosen.plot)):
            if not Path(file).absolute().parent.is_dir():
                raise ArgumentError(f"plan: {file}: there is no folder {Path(file).parent}")
        machine = machines.read(chosen.machine)
        found = {}
        counts = _counts(chosen)
        for at, nodes in enumerate(counts):
            line.show(f"plan: {nodes} nodes x {chosen.ranks}", at / len(counts))
            found[nodes] = _of(chosen, nodes, machine)
    except ArgumentError as error:
        line.clear()
        print(error, file=sys.stderr)
        return 2
    line.clear()
    for nodes in chosen.nodes:
        print(*lines(found[nodes], nodes, chosen.ranks, machine), sep="\n")
    if chosen.json:
        text = {str(nodes): json.loads(plans.json()) for nodes, plans in found.items()}
        Path(chosen.json).write_text(json.dumps(text, indent=1))
    if chosen.plot:
        Path(chosen.plot).write_text(_drawn(found, chosen))
    return 0 if all(found[nodes].possible for nodes in chosen.nodes) else 1


def _counts(chosen: argparse.Namespace) -> list[int]:
    """Return the numbers of nodes that are planned for: a picture has smaller ones, too."""
    asked: list[int] = chosen.nodes
    if not chosen.plot or len(asked) > 1:
        return asked
    return [1 << power for power in range((asked[0] - 1).bit_length())] + asked


def _of(chosen: argparse.Namespace, nodes: int, machine: Machine) -> Plans:
    predict = importlib.import_module("paddlempi.torch.planner.predict")
    scripts = importlib.import_module("paddlempi.torch.planner.scripts")
    path = os.path.abspath(chosen.script)
    ranks = chosen.ranks
    trained = scripts.of_script(path, shlex.split(chosen.arguments), ranks, nodes * ranks)
    plans: Plans = predict.plan(
        trained.model,
        trained.example,
        nodes=nodes,
        ranks=ranks,
        machine=machine,
        optimizer=trained.optimizer,
        loss=trained.loss,
    )
    return plans


_HEAD = (
    f"{'plan':<28} {'step, ms':>9} {'range':>16} {'compute':>8} {'Python':>8} {'network':>8} "
    f"{'memory':>10} {'sent':>10} {'calls':>5}  mostly"
)


def lines(plans: Plans, nodes: int, ranks: int, machine: Machine) -> Iterator[str]:
    """Yield the table of a job, and the reasons of what was refused."""
    job = f"{nodes} {'nodes' if nodes > 1 else 'node'} x {ranks}"
    yield (
        f"# {job}, as predicted from {machine.nodes} x {machine.ranks} of {machine.made[:10]} "
        f"({machine.processor or 'an unknown processor'}, {machine.mpi or 'without MPI'})"
    )
    if plans.possible:
        yield _HEAD
    for plan in plans.possible:
        yield _line(plan)
    for plan in plans.possible:
        if plan.notes:
            yield f"{plan.name}: the range is wider: {'; '.join(plan.notes)}"
    for plan in plans:
        if plan.refused:
            yield f"{plan.name}: not possible: {plan.refused}"


def _line(plan: Plan) -> str:
    assert plan.seconds is not None
    ms = [1e3 * part for part in plan.seconds]
    spread = f"{ms[1]:.1f} to {ms[2]:.1f}"
    parts = "".join(
        f" {1e3 * part:>8.1f}" for part in (plan.compute, plan.overhead, plan.communication)
    )
    memory = amount(plan.memory.total) if plan.memory else "-"
    return (
        f"{plan.name:<28} {ms[0]:>9.1f} {spread:>16}{parts} {memory:>10} {amount(plan.wire):>10} "
        f"{plan.collectives:>5}  {plan.dominates}"
    )


def _drawn(found: dict[int, Plans], chosen: argparse.Namespace) -> str:
    """Draw the milliseconds of each kind's fastest plan over the nodes."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for nodes, plans in sorted(found.items()):
        fastest: dict[str, float] = {}
        for plan in plans.possible:
            assert plan.seconds is not None
            fastest.setdefault(plan.kind, 1e3 * plan.seconds.middle)
        for kind, ms in fastest.items():
            curves.setdefault(kind, []).append((nodes, ms))
    title = f"{Path(chosen.script).name}: ms a step, over the nodes"
    return picture.curves(title, [(f"{chosen.ranks} ranks a node", curves)])
