"""The collectives of ``bench --calibrate``: of all groups that a mesh of the job has.

They are those of torch.distributed, of tensors in memory that the ranks of a node map, as DDP and
FSDP2 have them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ... import _native, collectives, group, memory
from ...planner.machine import Collective, Range
from .figures import quartiles
from .sampling import slowest

__all__ = ["OPERATIONS", "SIZES", "Groups", "Show", "Task", "make", "measure", "spread", "tasks"]

SIZES = (8, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
_LEAST, _MOST = 5, 1000  # calls of a size that count
_WARM, _TUNED = 3, 50  # calls before them, and the most that the core tunes itself in
_OF_WARMING = 0.6  # of the time of a size
_TUNES_FROM = 16 << 10  # bytes


Show = Callable[[str, float], None]
"""Shows what is measured, and which part of all of it is done, from 0 to 1."""


# The groups of a mesh


class Groups(NamedTuple):
    """The groups of one shape, which are busy at once.

    Attributes:
        nodes, ranks: the shape of each.
        of: that of this rank.
        members: its ranks.
    """

    nodes: int
    ranks: int
    of: Any
    members: Sequence[int]


def _shapes(nodes: Sequence[Sequence[int]]) -> list[Sequence[Sequence[int]]]:
    """Return the groups that a mesh of these nodes has, shape by shape, without single ranks."""
    rails = list(zip(*nodes, strict=True))
    world = [[rank for node in nodes for rank in node]]
    kinds = [nodes, rails, world]
    if len(nodes) == 1:
        kinds = [nodes]
    elif len(rails) == 1:
        kinds = [rails]
    return [lists for lists in kinds if len(lists[0]) > 1]


def _group(front: Any, lists: Sequence[Sequence[int]], node: Sequence[int]) -> Groups:
    """Make the groups of one shape. Collective over the world."""
    of = front.mine(lists, lambda ranks: front.calls.new_group(list(ranks), backend="mpi"))
    members = next(ranks for ranks in lists if group.get_rank() in ranks)
    nodes = len({node[rank] for rank in members})
    return Groups(nodes, len(members) // nodes, of, members)


def make(front: Any) -> list[Groups]:
    """Make the groups, shape by shape. The last one has all ranks. Collective over the world."""
    node = _native.control("info")["node"]
    return [_group(front, lists, node) for lists in _shapes(front.by_node())]


# Collectives


@dataclass
class _Tensors:
    """Memory of which the tensors of all calls are parts: new ones would come with new pages."""

    first: Any = field(default_factory=lambda: memory.zeros(SIZES[-1] // 4, framework="torch"))
    other: Any = field(default_factory=lambda: memory.zeros(SIZES[-1] // 4, framework="torch"))

    def pairs(self, count: int, share: int) -> list[tuple[Any, Any]]:
        """Return tensors of so many elements, up to 8 pairs, which take turns."""
        starts = [at * count for at in range(max(1, min(8, len(self.first) // count)))]
        return [(self.first[at : at + count], self.other[at : at + share]) for at in starts]


def _bound(
    dist: Any, operation: str, groups: Groups, nbytes: int, tensors: _Tensors
) -> tuple[int, list[Callable[[], Any]]]:
    """Return the bytes of the larger side, and calls, which return a work."""
    size = len(groups.members)
    count = max(1, nbytes // 4)
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        count = max(size, count // size * size)
    share = count if operation == "all_to_all" else count // size
    calls: list[Callable[[], Any]] = []
    for whole, part in tensors.pairs(count, share):
        sides, more = {
            "all_reduce": ((whole,), {}),
            "all_gather": ((whole, part), {}),
            "reduce_scatter": ((part, whole), {}),
            "broadcast": ((whole,), {"src": groups.members[0]}),
            "all_to_all": ((part, whole), {}),
        }[operation]
        function = getattr(dist, _FUNCTIONS.get(operation, operation))
        calls.append(partial(function, *sides, **more, group=groups.of, async_op=True))
    return 4 * count, calls


_FUNCTIONS = {
    "all_gather": "all_gather_into_tensor",
    "reduce_scatter": "reduce_scatter_tensor",
    "all_to_all": "all_to_all_single",
}


class _Times:
    """The times of the calls of this rank, in seconds."""

    def __init__(self) -> None:
        self.whole: list[float] = []
        self.caller: list[float] = []

    def ranges(self) -> tuple[Range, Range]:
        """Return those of the slowest rank. Collective over the world."""
        return spread(slowest(self.whole)), spread(slowest(self.caller))


def spread(values: Sequence[float]) -> Range:
    """Return the median with the quartiles."""
    low, middle, high = quartiles(values)
    return Range(middle, low, high)


def _blocks(
    call: Callable[[int], tuple[float, float]],
    block: int,
    seconds: float,
    tuned: Callable[[], bool],
) -> _Times:
    """Make calls for so long, a block of them after every barrier. Collective over the world.

    Args:
        call: gets its number; returns the seconds of the call, and those of its caller.
        tuned: whether the core has chosen its way. As long as it has not, calls do not count.
    """
    times, number, began, counts = _Times(), 0, time.monotonic(), False
    while True:
        collectives.barrier()
        for _ in range(block):
            whole, caller = call(number)
            number += 1
            if counts:
                times.whole.append(whole)
                times.caller.append(caller)
        part = 1.0 if counts else _OF_WARMING
        over = time.monotonic() - began > part * seconds
        late, untuned = map(bool, slowest([over, not tuned()]))
        if counts and (late or len(times.whole) >= _MOST) and len(times.whole) >= _LEAST:
            return times
        if not counts and number >= _WARM and (not untuned or number >= _TUNED or late):
            counts = True


def _collective(
    dist: Any, operation: str, groups: Groups, nbytes: int, tensors: _Tensors, seconds: float
) -> Collective:
    """Measure one operation of one size. Collective over the world."""
    nbytes, calls = _bound(dist, operation, groups, nbytes, tensors)
    number = groups.of._core._id
    clock = time.perf_counter

    def call(at: int) -> tuple[float, float]:
        bound = calls[at % len(calls)]
        begun = clock()
        work = bound()
        returned = clock()
        work.wait()
        return clock() - begun, returned - begun

    def tuned() -> bool:
        if groups.nodes == 1 or nbytes < _TUNES_FROM:
            return True
        rows = _native.control("group_info", group=number)["tuned"]
        return all(
            row["tuned"]
            for row in rows
            if row["operation"] == operation and not row["half"]
            if row["from"] <= nbytes < 2 * row["from"]
        )

    # The root of a broadcast would run ahead, and its messages would have come before a call.
    block = 1 if operation == "broadcast" else max(1, min(20, (1 << 20) // nbytes))
    times = _blocks(call, block, seconds, tuned)
    info = _native.control("group_info", group=number)
    way = str(info["way"] or info["algorithm"])
    shape = groups.nodes, groups.ranks
    return Collective(operation, *shape, nbytes, *times.ranges(), way)


def _send(
    dist: Any, pair: Sequence[int], nodes: int, nbytes: int, tensors: _Tensors, seconds: float
) -> Collective:
    """Measure half a round trip of a message between two ranks. Collective over the world."""
    rank, clock = group.get_rank(), time.perf_counter
    pairs = tensors.pairs(max(1, nbytes // 4), max(1, nbytes // 4))

    def call(at: int) -> tuple[float, float]:
        if rank not in pair:
            return 0.0, 0.0
        sent, received = pairs[at % len(pairs)]
        other = pair[0] if rank == pair[1] else pair[1]
        begun = clock()
        if rank == pair[1]:
            dist.recv(received, other)
        sends = clock()
        work = dist.isend(sent, other)
        returned = clock()
        work.wait()
        if rank == pair[0]:
            dist.recv(received, other)
        return (clock() - begun) / 2, returned - sends

    times = _blocks(call, max(2, min(20, (1 << 20) // nbytes)), seconds, lambda: True)
    return Collective("send", nodes, 2 // nodes, nbytes, *times.ranges())


@dataclass
class Task:
    """Something that is measured, and its part of the time."""

    name: str
    weight: float
    run: Callable[[float], Collective]


def _weight(nbytes: int) -> float:
    """Return how much time a size gets: long calls need more, and 64 MiB are 1000 times longer."""
    return (
        8.0 if nbytes > 16 << 20 else 4.0 if nbytes > 4 << 20 else 2.0 if nbytes > 64 << 10 else 1
    )


def tasks(dist: Any, kinds: Sequence[Groups], by_node: Sequence[Sequence[int]]) -> Iterator[Task]:
    tensors = _Tensors()
    for groups in kinds:
        for operation in OPERATIONS:
            for nbytes in SIZES:
                run = partial(_collective, dist, operation, groups, nbytes, tensors)
                name = f"{groups.nodes}x{groups.ranks} {operation} {nbytes}"
                yield Task(name, _weight(nbytes), run)
    pairs = {1: by_node[0][:2], 2: [node[0] for node in by_node[:2]]}
    for nodes, pair in pairs.items():
        for nbytes in SIZES if len(pair) == 2 else ():
            run = partial(_send, dist, pair, nodes, nbytes, tensors)
            yield Task(f"{nodes}x{2 // nodes} send {nbytes}", _weight(nbytes), run)


def measure(todo: Sequence[Task], end: float, show: Show) -> Iterator[Collective]:
    """Measure all, each for its part of the time that is left. Collective over the world."""
    left = total = sum(task.weight for task in todo)
    rows = set()
    for task in todo:
        show(task.name, 1 - left / total)
        seconds = max(0.0, end - time.monotonic()) * task.weight / left
        left -= task.weight
        row = task.run(seconds)
        key = row.operation, row.nodes, row.ranks, row.bytes
        if key not in rows:  # small sizes are the same in a large group
            yield row
        rows.add(key)
