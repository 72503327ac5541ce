"""What pictures of a timeline draw: slices of operations in lanes, who is waited for, messages.

A lane holds slices that do not overlap. Those of a rank's callers come first: calls that wait
inside, and waits for asynchronous operations. The lanes below have the asynchronous operations.
"""

from __future__ import annotations

import dataclasses
import heapq
from typing import Any

import numpy as np
import numpy.typing as npt

from .._ops import Op
from .matching import collectives
from .model import ASYNC, MESSAGE, Timeline

__all__ = [
    "FAMILIES",
    "SLICE",
    "Late",
    "Slices",
    "families",
    "family",
    "messages",
    "notes",
    "slices",
]

_Ints = npt.NDArray[np.int64]

SLICE = np.dtype(
    [
        ("operation", "i8"),  # place in Timeline.operations
        ("rank", "i4"),
        ("lane", "i4"),  # of the rank, from 0
        ("caller", "?"),  # the caller waits here for an asynchronous operation
        ("begin", "i8"),
        ("end", "i8"),  # above begin; of what is under way, when the recording of the rank ended
        ("wait", "i8"),  # from when to when the rank waited for others; twice the same: it did not
        ("waited", "i8"),
    ]
)

FAMILIES = ("reduce", "spread", "exchange", "barrier", "message", "other")
"""Kinds of calls, which have a colour each."""

_TRAITS = {op.name.lower(): op.trait for op in Op}
_EXCHANGES = ("all_to_all", "halo_exchange", "neighbor_all_to_all")

LATE_NS = 1_000_000
"""A rank is late if all others of a collective came so much earlier."""

MOST_LATE = 2_000
"""So many late arrivals get a mark: the latest ones."""


@dataclasses.dataclass(frozen=True)
class Late:
    """A rank that came to a collective when all others had.

    Attributes:
        operation: that of the late rank, as a place in Timeline.operations.
        by: nanoseconds after the last one of the others.
    """

    operation: int
    by: int


@dataclasses.dataclass(frozen=True)
class Slices:
    """The slices of a timeline.

    Attributes:
        list: rows of SLICE, by rank, and in a rank by begin.
        lanes: for every rank, how many lanes its callers have, and how many all have.
        awaited: for every operation the world rank that came last to its collective, or that has
            not come; -1 where that is not known, also because the clocks do not tell.
        late: in the order of time.
    """

    list: npt.NDArray[Any]
    lanes: dict[int, tuple[int, int]]
    awaited: npt.NDArray[np.int32]
    late: tuple[Late, ...]


def notes(timeline: Timeline) -> list[str]:
    """Return what a reader of a picture must know: how exact the clocks are, what is missing."""
    clocks = [] if timeline.clocks is None else timeline.clocks.sentences()
    return [*clocks, *timeline.warnings]


def family(name: str, flags: int = 0) -> str:
    """Return the kind of an operation, one of FAMILIES."""
    trait = _TRAITS.get(name)
    if trait is not None and trait.collective:
        if trait.reduces or name == "barrier":
            return "reduce" if trait.reduces else name
        return "exchange" if name in _EXCHANGES else "spread"
    return "message" if flags & MESSAGE and not name.startswith("Window.") else "other"


def families(timeline: Timeline, rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the kinds of rows of operations, as places in FAMILIES."""
    codes = np.array(
        [
            [FAMILIES.index(family(name, flags)) for name in timeline.names.operations]
            for flags in (0, MESSAGE)
        ],
        np.uint8,
    )
    found: npt.NDArray[np.uint8] = codes[
        (rows["flags"] & MESSAGE != 0).astype(np.int64), rows["name"]
    ]
    return found


def slices(timeline: Timeline) -> Slices:
    """Return the slices of a timeline, whose times are on one clock."""
    awaited, late = _awaited(timeline)
    table = _table(timeline)
    lanes = {}
    for rank in timeline.ranks:
        part = table[slice(*np.searchsorted(table["rank"], [rank, rank + 1]))]
        flags = timeline.operations["flags"][part["operation"]]
        of_callers = part["caller"] | (flags & ASYNC == 0)
        callers = _assign(part, np.flatnonzero(of_callers), 0)
        lanes[rank] = callers, _assign(part, np.flatnonzero(~of_callers), callers)
    return Slices(table, lanes, awaited, late)


def _table(timeline: Timeline) -> npt.NDArray[Any]:
    """Return the slices without their lanes."""
    operations = timeline.operations
    known = np.isin(operations["rank"], list(timeline.ranks))
    kept = np.flatnonzero(known & (operations["submitted"] > 0))
    whole = np.zeros(len(kept), SLICE)
    whole["operation"], whole["rank"] = kept, operations["rank"][kept]
    of = operations[kept]
    whole["begin"] = of["submitted"]
    whole["end"] = np.maximum(_ends(timeline, of), of["submitted"] + 1)
    failed = (of["outcome"] != 0) & (of["arrived"] == 0) & (of["flags"] & MESSAGE == 0)
    waits = (of["begun"] > 0) & ((of["arrived"] > 0) | failed)
    until = np.where(of["arrived"] > 0, of["arrived"], whole["end"])
    whole["wait"] = np.where(waits, np.clip(of["begun"], whole["begin"], whole["end"]), 0)
    whole["waited"] = np.where(waits, np.clip(until, whole["wait"], whole["end"]), 0)
    # The caller's part in what is asynchronous.
    waiting = np.flatnonzero((of["waited"] > 0) & (of["waited"] < whole["end"]))
    part = whole[waiting]
    part["caller"], part["begin"] = True, np.maximum(of["waited"][waiting], part["begin"])
    part["wait"] = part["waited"] = 0
    part = part[(part["end"] > part["begin"]) & (of["flags"][waiting] & ASYNC != 0)]
    table = np.concatenate([whole, part])
    ordered: npt.NDArray[Any] = table[np.lexsort((table["begin"], table["rank"]))]
    return ordered


def _ends(timeline: Timeline, operations: npt.NDArray[Any]) -> _Ints:
    """Return when operations ended; of those under way, when their rank was last seen."""
    most = max(timeline.ranks, default=0) + 1
    seen = np.zeros(most, np.int64)
    for rank in timeline.ranks.values():
        seen[rank.rank] = rank.ended or rank.taken
    ends: _Ints = np.where(operations["ended"] > 0, operations["ended"], seen[operations["rank"]])
    return ends


def _assign(part: npt.NDArray[Any], chosen: npt.NDArray[np.intp], first: int) -> int:
    """Give slices of a rank, which are ordered by begin, the lowest lanes that are free.

    Returns:
        The number of lanes that are taken then, with the ``first`` ones.
    """
    if not len(chosen):
        return first
    begins, ends = part["begin"][chosen], part["end"][chosen]
    before = np.maximum.accumulate(ends)
    alone = np.ones(len(chosen), bool)  # nothing else is under way where it begins or ends
    alone[1:] = begins[1:] >= before[:-1]
    alone[:-1] &= alone[1:]
    lanes = np.full(len(chosen), first, np.int32)
    free: list[int] = []
    taken: list[tuple[int, int]] = []  # until when, lane
    count = first + 1
    heapq.heappush(free, first)
    for i in np.flatnonzero(~alone):
        begin = int(begins[i])
        while taken and taken[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(taken)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, count = count, count + 1
        lanes[i] = lane
        heapq.heappush(taken, (int(ends[i]), lane))
    part["lane"][chosen] = lanes
    return count


def _awaited(timeline: Timeline) -> tuple[npt.NDArray[np.int32], tuple[Late, ...]]:
    """Return who was last to come to the collective of each operation, and who was late."""
    operations = timeline.operations
    awaited = np.full(len(operations), -1, np.int32)
    calls = collectives(timeline)
    if not len(calls.rows):
        return awaited, ()
    rows, count = calls.rows, calls.size
    came = np.where(operations["begun"] > 0, operations["begun"], operations["submitted"])[rows]
    order = np.lexsort((came, calls.each()))
    rows, came = rows[order], came[order]
    last = calls.first + count - 1
    before = np.maximum(last - 1, calls.first)
    by = came[last] - came[before]
    known = calls.whole & (count > 1) & (by >= _apart(timeline, rows, came, last, before))
    who = np.where(known, operations["rank"][rows[last]], -1)
    for i in np.flatnonzero(~calls.whole & (operations["ended"][rows[last]] == 0)):
        who[i] = _never_came(timeline, rows[calls.first[i] : last[i] + 1])
    awaited[rows] = np.repeat(who, count)
    late = np.flatnonzero(known & (by >= LATE_NS))
    latest = late[np.argsort(-by[late], kind="stable")[:MOST_LATE]]
    marks = latest[np.argsort(came[last[latest]], kind="stable")]
    return awaited, tuple(Late(int(rows[last[i]]), int(by[i])) for i in marks)


def _apart(timeline: Timeline, rows: _Ints, came: _Ints, one: _Ints, other: _Ints) -> Any:
    """Return by how much two arrivals must differ for the clocks to tell which was first."""
    apart = np.zeros(len(one))
    clocks = timeline.clocks
    if clocks is None:
        return apart
    ranks = timeline.operations["rank"][rows]
    hosts = np.array([clocks.of_rank.get(rank, -1) for rank in range(int(ranks.max()) + 1)])
    for side in (one, other):
        for rank in np.unique(ranks[side]).tolist():
            mine = ranks[side] == rank
            apart[mine] += clocks.errors(rank, came[side][mine])
    return np.where(hosts[ranks[one]] == hosts[ranks[other]], 0.0, apart)


def _never_came(timeline: Timeline, members: npt.NDArray[np.intp]) -> int:
    """Return a rank that has not come to a collective that is under way, -1 if none is known."""
    operations = timeline.operations
    if (operations["arrived"][members] > 0).any():
        return -1  # it came, and the recording has missed that
    group = timeline.groups[int(operations["group"][members[0]])]
    here = set(operations["rank"][members].tolist())
    absent = [r for r in group.ranks if r not in here]
    recorded = [r for r in absent if r in timeline.ranks and not timeline.ranks[r].problem]
    return recorded[0] if recorded else absent[0] if len(absent) == 1 else -1


def messages(timeline: Timeline) -> list[tuple[int, int]]:
    """Return pairs of places in Timeline.operations: a message's send, and its receive.

    Unlike ``matching.messages``, which must be sure, this also pairs those of recordings that began
    in the middle of a job.

    They are matched by group, source, destination and tag, in their order. A receive that ended
    before the next send began belongs to one that was not recorded. Receives from any rank, and
    those of any tag, name no message.
    """
    operations, names = timeline.operations, timeline.names.operations
    sends: dict[tuple[int, ...], list[int]] = {}
    receives: dict[tuple[int, ...], list[int]] = {}
    whole = np.flatnonzero((operations["flags"] & MESSAGE != 0) & (operations["group"] >= 0))
    for i in whole[np.argsort(operations["submitted"][whole], kind="stable")].tolist():
        row = operations[i]
        name, group = names[row["name"]], timeline.groups[row["group"]]
        if row["rank"] not in group.ranks:
            continue
        here = group.ranks.index(row["rank"])
        peers, tags = row["peers"].tolist(), row["tags"].tolist()
        if name.startswith("Window."):
            continue
        if name.startswith("send") and peers[0] >= 0:
            sends.setdefault((int(row["group"]), here, peers[0], tags[0]), []).append(i)
        if name == "sendrecv":
            peers, tags = peers[1:], tags[1:]
        if name in ("recv", "sendrecv") and peers[0] >= 0 and row["ended"] > 0:
            receives.setdefault((int(row["group"]), peers[0], here, tags[0]), []).append(i)
    pairs = []
    for key, sent in sends.items():
        waiting = iter(receives.get(key, ()))
        for i in sent:
            for j in waiting:
                if operations["ended"][j] >= operations["submitted"][i]:
                    pairs.append((i, j))
                    break
    return pairs
