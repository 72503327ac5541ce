"""``bench --calibrate FILE``: measures a machine, for the planner of :mod:`paddlempi.planner`."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from ... import _native, collectives, group, objects
from ...errors import ArgumentError
from ...planner import here
from ...planner.machine import Collective, Compute, Machine, Range, Step
from .. import options
from . import calibrate_calls, contenders, report, tool
from .calibrate_calls import Groups, Show, spread
from .collectives import OURS, of_all_ranks
from .figures import quartiles
from .sampling import shuffled, slowest
from .steps import ALONE, SILENT

__all__ = ["add_to", "summary"]

MODEL = "mlp-16M"

_SECONDS = 120.0
_TIMEOUT = 120.0  # of an operation
_OF_COMPUTE, _OF_STEPS = 0.1, 0.25  # of the seconds; the collectives have the rest
_ROUNDS, _LEAST_ROUNDS, _WARM_ROUNDS = 40, 8, 3  # of steps


def add_to(parser: argparse.ArgumentParser, tools: Any) -> None:
    """Add the option to the parser of ``bench``, whose TOOL is not required with it."""

    class Calibrate(argparse.Action):
        def __call__(self, parser: Any, chosen: Any, value: Any, option: Any = None) -> None:
            chosen.calibrate, tools.required = value, False

    parser.add_argument(
        "--calibrate",
        action=Calibrate,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="instead of a TOOL: measure the machine for the planner, and write it to FILE",
    )
    parser.add_argument(
        "--seconds",
        dest="calibrate_seconds",
        type=lambda text: options.seconds(text, 0.001),
        default=argparse.SUPPRESS,
        metavar="SECONDS",
        help="about the most that --calibrate takes; 120",
    )
    tool.runs(parser, _run, _check)


def _check(chosen: argparse.Namespace) -> None:
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError(
            "bench: --calibrate: torch is not installed, whose steps are measured: "
            "pip install torch"
        )


def _run(chosen: argparse.Namespace) -> int:
    chosen.timeout = _TIMEOUT
    return tool.measured(_measure, chosen)


# Computation


def _compute(torch: Any, seconds: float, show: Show) -> tuple[Compute, Compute]:
    """Return what rank 0 computes alone, and a rank while all do. Collective over the world."""
    found = []
    for together in (False, True):
        rates: list[Range] = []
        for what, measure, work in (
            ("products", torch.products, torch.FLOPS),
            ("copies", torch.copies, torch.COPY),
            ("steps", torch.steps, 1),
        ):
            name = f"{what}{' of all ranks' if together else ''}"
            show(name, (3 * together + len(rates)) / 6)
            rates.append(_rate(measure, work, seconds / 6, together))
        found.append(Compute(*rates))
    return found[0], found[1]


def _rate(
    measure: Callable[[float], list[float]], work: float, seconds: float, together: bool
) -> Range:
    """Return the work that the slowest rank does in a second. Collective over the world.

    Args:
        measure: computes for some seconds, and returns those of each piece.
        work: of a piece.
        together: all ranks compute; else rank 0 while the others sleep.
    """
    collectives.barrier()
    mine = [-math.inf] * 3
    if together or group.get_rank() == 0:
        mine = [-work / took for took in quartiles(measure(seconds))]
    else:
        time.sleep(seconds)  # who waits for others polls, which takes a CPU
    high, middle, low = slowest(mine)
    return Range(-middle, -low, -high)


# Steps


def _step(torch: Any, kind: str, shape: tuple[int, int], seconds: float, show: Show) -> Step:
    """Measure the steps of one kind. Collective over the world."""
    name = f"{kind} {MODEL}"
    show(name, 0)
    steps = torch.CutSteps(kind, MODEL)
    names = ("plain", SILENT, OURS, ALONE)
    taken: dict[str, list[float]] = {what: [] for what in names}
    began = time.monotonic()
    for round_ in range(-_WARM_ROUNDS, _ROUNDS):
        for what in shuffled(names, round_ + _WARM_ROUNDS):
            call = steps.calls[what]
            collectives.barrier()
            begun = time.perf_counter()
            call()
            if round_ >= 0:
                taken[what].append(time.perf_counter() - begun)
        show(name, (round_ + 1 + _WARM_ROUNDS) / (_ROUNDS + _WARM_ROUNDS))
        if slowest([time.monotonic() - began])[0] > seconds and round_ + 1 >= _LEAST_ROUNDS:
            break
    plain, silent, step, alone = (spread(slowest(taken[what])) for what in names)
    gc.collect()
    sent = steps.units, steps.bytes
    return Step(kind, MODEL, *shape, *sent, plain, silent, step, alone)


# The machine


def _limits() -> Iterator[int]:
    """Yield the bytes that this node has, and those that the cgroups of this process allow."""
    found = re.search(r"^MemTotal: *(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
    if found:
        yield int(found[1]) << 10
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        root, file = Path("/sys/fs/cgroup"), "memory.max"
        if controllers:
            root, file = root / "memory", "memory.limit_in_bytes"
        if not controllers or "memory" in controllers.split(","):
            folder = root / path.lstrip("/")
            for place in (folder, *folder.parents):
                try:
                    text = (place / file).read_text().strip()
                except OSError:  # also above the root
                    continue
                if text.isdecimal():  # else "max"
                    yield int(text)


def _of_nodes() -> tuple[int, int]:
    """Return the CPUs and the memory of the node with the fewest. Collective over the world."""
    core = _native.control("info")
    node, quota = core["node"], core["helper"]["quota"] or math.inf
    of_ranks: list[Any] = [None] * len(node)
    mine = sorted(os.sched_getaffinity(0)), quota, min(_limits(), default=0)
    objects.all_gather_object(of_ranks, mine)
    cpus = {number: set[int]() for number in node}
    for number, (of_rank, _, _) in zip(node, of_ranks, strict=True):
        cpus[number].update(of_rank)
    least = min(*map(len, cpus.values()), *(quota for _, quota, _ in of_ranks))
    return max(1, int(least)), min(memory for _, _, memory in of_ranks)


def _part(bar: report.Bar, begin: float, length: float) -> Show:
    """Return what shows how far a part is that begins there, when all is as long as 1."""
    return lambda what, part: bar.show(what, begin + length * part)


def _measure(chosen: argparse.Namespace) -> None:
    """Measure, and write the file. Collective over the world."""
    began = time.monotonic()
    seconds = getattr(chosen, "calibrate_seconds", _SECONDS)
    if group.get_world_size() == 1:
        raise ArgumentError(
            f"bench: --calibrate {chosen.calibrate}: one rank has no others to communicate with; "
            "start it with mpirun -np 2 or more"
        )
    front = contenders.front("torch")
    torch: Any = import_module("paddlempi.torch.bench_calibrate")
    rss = int(slowest([here.resident()])[0])
    by_node = front.by_node()
    shape = len(by_node), len(by_node[0])
    kinds = ["ddp", "fsdp2", *["hsdp"] * (min(shape) > 1), "tp"]
    bar = report.Bar(1)
    found = report.environment()
    bar.say(report.headline(found))
    cpus, memory = _of_nodes()

    alone, together = _compute(torch, seconds * _OF_COMPUTE, _part(bar, 0, _OF_COMPUTE))
    of_kind, steps = _OF_STEPS / len(kinds), []
    for at, kind in enumerate(kinds):
        show = _part(bar, _OF_COMPUTE + at * of_kind, of_kind)
        steps.append(_step(torch, kind, shape, seconds * of_kind, show))
    groups = calibrate_calls.make(front)
    todo = list(calibrate_calls.tasks(front.calls, groups, by_node))
    before = _OF_COMPUTE + _OF_STEPS
    show = _part(bar, before, 1 - before)
    rows = tuple(calibrate_calls.measure(todo, began + seconds, show))
    machine = Machine(
        made=found["date"],
        version=found["paddlempi"],
        processor=found["processor"],
        cpus=cpus,
        memory=memory,
        mpi=here.mpi_name(found["mpi"]),
        nodes=shape[0],
        ranks=shape[1],
        threads=torch.threads(),
        rss=rss,
        alone=alone,
        together=together,
        collectives=rows,
        steps=tuple(steps),
        tuned=_tuned(groups[-1]),
    )
    _write(machine, chosen.calibrate)
    bar.say(*summary(machine), f"{time.monotonic() - began:.0f} s: {chosen.calibrate}")


def _tuned(world: Groups) -> tuple[dict[str, Any], ...]:
    """Return what the core has chosen in a group of all ranks, as ``tune`` writes it."""
    keys = ("operation", "half", "from", "best", "ways", "times")
    rows = _native.control("group_info", group=world.of._core._id)["tuned"]
    return tuple({key: row[key] for key in keys} for row in rows if row["tuned"])


def _write(machine: Machine, file: str) -> None:
    """Write the file on rank 0; all ranks raise its error. Collective over the world."""
    reason = ""
    if group.get_rank() == 0:
        try:
            machine.write(file)
        except OSError as error:
            reason = f"bench: --calibrate {file}: {error.strerror}"
    for told in filter(None, of_all_ranks(reason)):
        raise ArgumentError(told)


def summary(machine: Machine) -> list[str]:
    """Return what is printed of a machine."""
    lines = []
    of_shape: dict[tuple[int, int], list[Collective]] = {}
    for row in machine.collectives:
        if row.operation == "all_reduce":
            of_shape.setdefault((row.nodes, row.ranks), []).append(row)
    for (nodes, ranks), rows in of_shape.items():
        where = "a node" if nodes == 1 else "the network" if ranks == 1 else "the world"
        least, most = rows[0], rows[-1]
        lines.append(
            f"{where} ({nodes}x{ranks}): all_reduce {1e6 * least.seconds.middle:.1f} us of "
            f"{least.bytes} bytes, {most.bytes / most.seconds.middle / 1e9:.2f} GB/s of "
            f"{most.bytes >> 20} MiB"
        )
    for name, one in (("alone", machine.alone), ("all ranks", machine.together)):
        lines.append(
            f"a rank computes, {name}: {one.flops.middle / 1e9:.1f} GFLOP/s, copies "
            f"{one.bytes.middle / 1e9:.1f} GB/s, a step of {MODEL} in "
            f"{1e3 / one.steps.middle:.1f} ms"
        )
    for step in machine.steps:
        shown = step.step.middle - step.silent.middle
        hidden = min(1.0, max(0.0, 1 - shown / step.alone.middle))
        lines.append(
            f"{step.kind} {step.model}: {1e3 * step.step.middle:.1f} ms a step, of the unwrapped "
            f"model {1e3 * step.plain.middle:.1f}; {100 * hidden:.0f} % of "
            f"{1e3 * step.alone.middle:.1f} ms of {step.units} collectives hide"
        )
    return lines
