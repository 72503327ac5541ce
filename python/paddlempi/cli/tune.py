"""``python -m paddlempi tune``: finds the fastest ways over nodes, and writes them into a table.

Under a launcher (``srun python -m paddlempi tune``) all ranks call the operations until the core
has measured all of their ways, in one new group after the other: a way that is the fastest twice is
confirmed. Rank 0 writes the table. Later jobs with as many ranks on such nodes begin with it
(docs/algorithms.md, Tuning).
"""

from __future__ import annotations

import argparse
import array
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import _native, collectives, group
from ..errors import ArgumentError, Error
from ..startup import way_tables
from . import options
from .bench import report
from .bench.collectives import of_all_ranks
from .bench.contenders import Framework
from .bench.picture import readable

__all__ = ["Kind", "add_to", "combine", "lines", "write"]

_SIZES = tuple(1 << k for k in range(14, 27))  # 16 KiB to 64 MiB
_PASSES = 3
_MOST_CALLS = 100  # after which the core has chosen, whatever disturbs it

_Row = dict[str, Any]


class Kind(NamedTuple):
    """Calls for which one way is chosen: of ``bytes`` to twice as many."""

    operation: str
    half: bool
    bytes: int


_OPERATIONS = (
    ("all_reduce", False),
    ("reduce_scatter", False),
    ("all_gather", False),
    ("broadcast", False),
    ("reduce", False),
    ("all_reduce", True),
    ("reduce_scatter", True),
)


def add_to(commands: Any) -> None:
    """Add the command to the parser of ``python -m paddlempi``."""
    parser = commands.add_parser(
        "tune",
        help="find the fastest ways between nodes, for later jobs",
        description="Measures the ways of the collectives on all ranks, on several nodes, and "
        "writes a table with which later jobs of the same shape begin. Start it as the job itself: "
        "srun python -m paddlempi tune. The exit status is 1 after an error, else 0.",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="where the table goes; else where PADDLEMPI_TUNED says, else into the user's cache",
    )
    parser.add_argument(
        "--seconds",
        type=lambda text: options.seconds(text, 0.001),
        default=120.0,
        metavar="SECONDS",
        help="after so long nothing more is begun; 120",
    )
    parser.add_argument(
        "--sizes",
        type=options.sizes,
        default=_SIZES,
        metavar="BYTES,...",
        help="powers of two, from 16K on; each stands for lengths up to twice as many bytes; "
        "16K,32K,...,64M by default",
    )
    parser.set_defaults(run=run, parser=parser)


def run(chosen: argparse.Namespace) -> int:
    """Measure, write the table and print it, on rank 0.

    Returns:
        0; 1 after an error; 2 if the command is wrong, and nothing was begun.
    """
    if importlib.util.find_spec("numpy") is None:
        print(f"tune: {options.NO_NUMPY}", file=sys.stderr)
        return 2
    for size in chosen.sizes:
        if size < _SIZES[0] or size & (size - 1):
            print(f"tune: --sizes: {size} is no power of two from 16K on", file=sys.stderr)
            return 2
    named = os.environ.get(way_tables.VARIABLE, "")
    # The world begins without a table, and measures.
    os.environ[way_tables.VARIABLE], os.environ["PADDLEMPI_TUNE"] = way_tables.NONE, "once"
    rank = 0
    try:
        group.init_process_group()
        rank = group.get_rank()
        try:
            _tune(chosen, "" if named == way_tables.NONE else named)
        finally:
            group.destroy_process_group()
    except ArgumentError as error:  # all ranks raise it alike
        if rank == 0:
            print(error, file=sys.stderr, flush=True)
        return 1
    except Error as error:
        print(f"tune: rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _tune(chosen: argparse.Namespace, named: str) -> None:
    """Measure, write the table and print it. Collective over the world."""
    tuning = _native.control("info")["tuning"]
    first = group.get_rank() == 0
    if tuning is None:
        if first:
            print("tune: all ranks are on one node: there is nothing to tune")
        return
    file = chosen.output or named or os.path.join(way_tables.cache(), tuning["name"])
    _together(lambda: Path(file).absolute().parent.mkdir(parents=True, exist_ok=True))
    kinds = [
        Kind(operation, half, size)
        for size in sorted(set(chosen.sizes))
        for operation, half in _OPERATIONS
    ]
    found = _passes(kinds, chosen.seconds)
    rows = [combine(of_kind) for of_kind in found.values()]
    if not rows:
        raise ArgumentError("tune: nothing was measured in time; give it more --seconds")
    table = {"format": tuning["format"], "for": tuning["for"], "rows": rows}
    _together(lambda: write(file, table))
    if first:
        print(*lines(rows, found), f"{len(rows)} rows: {file}", sep="\n", flush=True)


def _together(act: Callable[[], None]) -> None:
    """Do something with a file on rank 0; all ranks raise its error. Collective over the world."""
    reason = ""
    if group.get_rank() == 0:
        try:
            act()
        except OSError as error:
            reason = f"tune: {error}"
    for told in filter(None, of_all_ranks(reason)):
        raise ArgumentError(told)


def _passes(kinds: Sequence[Kind], seconds: float) -> dict[Kind, list[_Row]]:
    """Measure each kind in two groups, and in a third one where these two have not found the same.

    Returns:
        What each group has found, of the kinds that have several ways. Rank 0's clock says when it
        is over.
    """
    end = time.monotonic() + seconds
    half = "float16"  # the ways of both are the same
    if all(of_all_ranks("x" if importlib.util.find_spec("ml_dtypes") else "")):
        half = "bfloat16"
    tensors = {False: Framework("numpy", "float32"), True: Framework("numpy", half)}
    bar = report.Bar(_PASSES)
    found: dict[Kind, list[_Row]] = {}
    for number in range(_PASSES):
        members = group.new_group(range(group.get_world_size()))
        todo = list(kinds)
        if number == _PASSES - 1:
            todo = [kind for kind, rows in found.items() if rows[0]["best"] != rows[-1]["best"]]
        for at, kind in enumerate(todo):
            if _over(end):
                bar.clear()
                return found
            bar.show(f"{kind.operation}, {readable(kind.bytes)}B", at / len(todo))
            row = _measure(kind, tensors[kind.half], members)
            if row is not None:
                found.setdefault(kind, []).append(row)
        group.destroy_process_group(members)
        bar.next()
    bar.clear()
    return found


def _over(end: float) -> bool:
    """Tell whether the time is over on rank 0. Collective over the world."""
    word = array.array("i", [time.monotonic() > end])
    collectives.broadcast(word, 0)
    return bool(word[0])


def _measure(kind: Kind, tensors: Framework, members: Any) -> _Row | None:
    """Call an operation until the core has tried all of its ways.

    Returns:
        What it has found; None if there is nothing to choose. All ranks find the same.
    """
    call = _bound(kind, tensors, members)
    for _ in range(_MOST_CALLS):
        call()
        row = next(_known(kind, members), None)
        if row is None:
            return None
        if row["tuned"]:
            return row
    return None


def _bound(kind: Kind, tensors: Framework, members: Any) -> Callable[[], Any]:
    """Return a call of a kind. Its tensors are zeros, as sums of them stay what they are."""
    ranks = group.get_world_size()

    def zeros(count: int) -> Any:
        made = tensors.empty(count)
        made.array[:] = 0
        return made.tensor

    itemsize = 2 if kind.half else 4
    share = -(-kind.bytes // (ranks * itemsize))  # all shares together have at least as many bytes
    if kind.operation == "all_gather":
        whole, part = zeros(share * ranks), zeros(share)
        return lambda: collectives.all_gather_into_tensor(whole, part, group=members)
    if kind.operation == "reduce_scatter":
        whole, part = zeros(share * ranks), zeros(share)
        return lambda: collectives.reduce_scatter_tensor(part, whole, group=members)
    tensor = zeros(kind.bytes // itemsize)
    if kind.operation == "all_reduce":
        return lambda: collectives.all_reduce(tensor, group=members)
    if kind.operation == "broadcast":
        return lambda: collectives.broadcast(tensor, 0, group=members)
    return lambda: collectives.reduce(tensor, 0, group=members)


def _known(kind: Kind, members: Any) -> Iterator[_Row]:
    """Yield what the core knows of a kind, at most one row."""
    for row in _native.control("group_info", group=members._id)["tuned"]:
        if Kind(row["operation"], row["half"], row["from"]) == kind:
            yield row


def combine(rows: Sequence[_Row]) -> _Row:
    """Return the row of the table for what several groups have found of one kind.

    A way counts that is the best in two groups, or in the only one. Otherwise it is chance, and the
    usual way, the first one, counts.
    """
    ways: list[str] = rows[0]["ways"]
    named = [row["best"] for row in rows]
    best = statistics.mode(named)
    if len(named) > 1 and named.count(best) < 2:
        best = ways[0]
    times = []
    for of_way in zip(*(row["times"] for row in rows), strict=True):
        times.append(statistics.median([t for t in of_way if t > 0] or [0.0]))
    kind = {key: rows[0][key] for key in ("operation", "half", "from")}
    return {**kind, "best": best, "ways": ways, "times": times}


def lines(rows: Sequence[_Row], found: dict[Kind, list[_Row]]) -> list[str]:
    """Return what is printed of a table: the time of the best way beside that of the usual one."""
    text = [f"{'operation':<17} {'bytes':>8}  {'us':>10}  {'usual, us':>10}  way"]
    for row in rows:
        kind = Kind(row["operation"], row["half"], row["from"])
        best = row["times"][row["ways"].index(row["best"])]
        name = kind.operation + (" 16" if kind.half else "")
        way = row["best"] + ("" if row["best"] != row["ways"][0] else " (usual)")
        if len(found[kind]) < 2:
            way += ", not confirmed: no time"
        size, usual = readable(kind.bytes) + "B", row["times"][0]
        text.append(f"{name:<17} {size:>8}  {_us(best)}  {_us(usual)}  {way}")
    return [*text, '"16": 16-bit floats are summed up'] if any(r["half"] for r in rows) else text


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:>10.1f}" if seconds else f"{'-':>10}"


def write(file: str, table: dict[str, Any]) -> None:
    """Write a table as a whole: who reads it sees the old one or the new one."""
    partial = f"{file}.{os.getpid()}"
    try:
        with open(partial, "w") as stream:
            json.dump(table, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
    except OSError:
        Path(partial).unlink(missing_ok=True)
        raise
