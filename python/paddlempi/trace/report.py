"""What a timeline says about a job: each kind of call, each rank, and who makes others wait.

``make`` returns everything as dataclasses; ``measure`` has the arrays behind them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .._rank_names import name_group
from . import clock, measure
from .model import MESSAGE, Timeline

__all__ = ["Death", "Kind", "Late", "Part", "RankTimes", "Report", "Step", "deaths", "make"]

_Ints = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Part:
    """What a rank has of a kind of call, or of all kinds: sums in nanoseconds.

    Attributes:
        calls: how many of its calls have ended.
        nbytes: of their tensors: count x bytes of an element.
        waited: for the other members to announce the same call.
        stalled: of ``waited``, while the caller did nothing but wait; None: not recorded.
        moved: after that.
        exposed: of ``moved``, while the caller did nothing but wait; None: not recorded.
        alone: what moving takes at best (``measure.times``).
        total: from the submissions to the ends.
    """

    rank: int
    calls: int
    nbytes: int
    waited: int
    stalled: int | None
    moved: int
    exposed: int | None
    alone: int
    total: int

    @property
    def hidden(self) -> float | None:
        """The share of moving during which the caller computed, 0 to 1."""
        if self.exposed is None or self.alone <= 0:
            return None
        return max(0.0, 1.0 - self.exposed / self.alone)


@dataclasses.dataclass(frozen=True)
class Kind:
    """Calls of one operation, dtype and class of size in one group.

    Attributes:
        group: the place of the group in ``Timeline.groups``.
        dtype: "" if it has none.
        least, most: bytes of the smallest and the largest; -1: their counts are not recorded.
        calls: how many there are; of a message, on all ranks together.
        is_message, is_async: of most of them.
        imbalance: how much more bytes the rank with most has than the ranks on average, 0 = none.
        parts: by rank.
    """

    group: int
    operation: str
    dtype: str
    least: int
    most: int
    calls: int
    is_message: bool
    is_async: bool
    imbalance: float
    parts: tuple[Part, ...]

    def mean(self, what: str) -> float:
        """Return the mean of a field of the parts."""
        values = [float(getattr(part, what) or 0) for part in self.parts]
        return sum(values) / max(len(values), 1)

    @property
    def hidden(self) -> float | None:
        """The share of moving during which callers computed, over all ranks."""
        return _hidden(self.parts)

    @property
    def rate(self) -> float | None:
        """Bytes a nanosecond (GB/s) of a rank's tensor while they move; None: too few to say."""
        nbytes, moved = self.mean("nbytes"), self.mean("moved")
        return nbytes / moved if nbytes > 0 and moved > 0 else None


@dataclasses.dataclass(frozen=True)
class Late:
    """How late a rank comes to the calls of a group, with what others wait then.

    Attributes:
        calls: to how many it came last, by more than the clocks' errors.
        of: how many calls there are.
        median: ns a step, or, where no step was found, a call to which it came last.
        share: of the steps, or of the calls, in which it was late as it usually is then, but for
            what it is late everywhere.
        usual: ns in these.
        total: ns of all steps.
        cost: ns that the callers on other ranks were stalled by it, all together.
    """

    group: int
    rank: int
    calls: int
    of: int
    median: int
    share: float
    usual: int
    total: int
    cost: int


@dataclasses.dataclass(frozen=True)
class Step:
    """What repeats in a group; see ``measure.Period``."""

    group: int
    calls: int
    steps: int
    time: int


@dataclasses.dataclass(frozen=True)
class RankTimes:
    """A rank in all groups: its ``part``, and what its recording lacks.

    Attributes:
        late: ns by which it made the others wait: the sum of ``Late.total``.
        cost: ns that the callers on other ranks were stalled by it, all together.
        lost: operations that the recording missed.
        under_way: operations that had not ended when the recording did.
    """

    rank: int
    host: str
    part: Part
    late: int
    cost: int
    lost: int
    under_way: int


@dataclasses.dataclass(frozen=True)
class Death:
    """A process that ended in the middle of operations, or of which others say that it has died."""

    rank: int
    host: str
    pid: int
    at: int  # 0: not known
    told_by: tuple[int, ...]
    doing: str


@dataclasses.dataclass(frozen=True)
class Report:
    """Everything that ``trace report`` says.

    Attributes:
        groups: their names for people, by place.
        begin, end: of the operations, nanoseconds since 1970.
        late: the worst first.
        absent: ranks without operations, with the reason.
        unsure: collectives of which the clocks do not tell who came last.
    """

    size: int
    hosts: int
    begin: int
    end: int
    clocks: clock.Clocks
    groups: tuple[str, ...]
    steps: tuple[Step, ...]
    kinds: tuple[Kind, ...]
    late: tuple[Late, ...]
    ranks: tuple[RankTimes, ...]
    deaths: tuple[Death, ...]
    absent: Mapping[int, str]
    unsure: int
    warnings: tuple[str, ...]

    @property
    def time(self) -> int:
        """How long the recording is in nanoseconds."""
        return max(self.end - self.begin, 1)

    def step_of(self, group: int) -> Step | None:
        """Return what repeats in a group, or None."""
        return next((step for step in self.steps if step.group == group), None)


def make(timeline: Timeline) -> Report:
    """Make the report of a timeline; it is aligned first, if it is not."""
    timeline = clock.align(timeline)
    o = timeline.operations
    times = measure.times(timeline)
    came = measure.arrivals(timeline)
    periods = {
        group: found
        for group in np.unique(o["group"][o["group"] >= 0]).tolist()
        if (found := measure.period(timeline, group)) is not None
    }
    late = tuple(_late(came, periods))
    size = max((one.size for one in timeline.ranks.values()), default=0)
    absent = {rank: "it was not recorded" for rank in range(size) if rank not in timeline.ranks}
    absent |= {rank: one.problem for rank, one in timeline.ranks.items() if one.problem}
    return Report(
        size=size,
        hosts=len({one.boot for one in timeline.ranks.values()}),
        begin=int(o["submitted"].min()) if len(o) else 0,
        end=int(max(o["ended"].max(initial=0), o["submitted"].max(initial=0))),
        clocks=timeline.clocks,
        groups=tuple(_group_names(timeline, size)),
        steps=tuple(Step(p.group, p.calls, p.steps, p.time) for p in periods.values()),
        kinds=tuple(_kinds(timeline, times)),
        late=late,
        ranks=tuple(_ranks(timeline, times, late)),
        deaths=tuple(deaths(timeline)),
        absent=dict(sorted(absent.items())),
        unsure=int(np.sum(~came["told"])),
        warnings=tuple(timeline.warnings),
    )


def _hidden(parts: tuple[Part, ...]) -> float | None:
    known = [part for part in parts if part.exposed is not None and part.alone > 0]
    if not known:
        return None
    exposed = sum(part.exposed or 0 for part in known)
    return max(0.0, 1.0 - exposed / sum(part.alone for part in known))


def _part(rank: int, o: _Ints, times: _Ints) -> Part:
    known = bool(times["known"].all())
    return Part(
        rank=rank,
        calls=int(np.sum(o["ended"] > 0)),
        nbytes=int(np.maximum(o["nbytes"], 0).sum()),
        waited=int(times["waited"].sum()),
        stalled=int(times["stalled"].sum()) if known else None,
        moved=int(times["moved"].sum()),
        exposed=int(times["exposed"].sum()) if known else None,
        alone=int(times["alone"].sum()),
        total=int(times["total"].sum()),
    )


def _kinds(timeline: Timeline, times: _Ints) -> Iterator[Kind]:
    """Every kind of call, those that took longest first."""
    o, names = timeline.operations, timeline.names
    size = np.where(o["count"] < 0, -1, np.ceil(np.log2(np.maximum(o["nbytes"], 1))))
    message = o["flags"] & MESSAGE != 0
    columns = np.stack([o["group"], o["name"], o["dtype"], size.astype(np.int64), message])
    keys, of = np.unique(columns, axis=1, return_inverse=True)
    made = []
    for number, (group, name, dtype, _, is_message) in enumerate(keys.T.tolist()):
        rows = np.flatnonzero(of.ravel() == number)
        mine, spent = o[rows], times[rows]
        ranks = np.unique(mine["rank"]).tolist()
        parts = tuple(_part(r, mine[mine["rank"] == r], spent[mine["rank"] == r]) for r in ranks)
        mean = sum(part.nbytes for part in parts) / len(parts)
        sizes = mine["nbytes"][mine["count"] >= 0]
        calls = len(rows) if is_message else len(np.unique(mine["seq"]))
        kind = Kind(
            group=group,
            operation=names.operations[name] if name >= 0 else "?",
            dtype=names.dtypes[dtype] if dtype >= 0 else "",
            least=int(sizes.min(initial=np.iinfo(np.int64).max)) if len(sizes) else -1,
            most=int(sizes.max(initial=-1)),
            calls=calls,
            is_message=bool(is_message),
            is_async=bool(np.mean(mine["flags"] & 1) > 0.5),
            imbalance=max(part.nbytes for part in parts) / mean - 1 if mean > 0 else 0.0,
            parts=parts,
        )
        made.append((-int(spent["waited"].sum() + spent["moved"].sum()), number, kind))
    yield from (kind for *_, kind in sorted(made, key=lambda m: m[:2]))


def _late(came: _Ints, periods: Mapping[int, measure.Period]) -> Iterator[Late]:
    """Who is late in each group, the worst first.

    A rank that is late to several calls under way at once, or to asynchronous ones of one step, is
    late once, by the most of them.
    """
    made = []
    for group in np.unique(came["group"]).tolist():
        calls = came[came["group"] == group]
        found = periods.get(group)
        for rank in np.unique(calls["rank"][calls["late"] > 0]).tolist():
            mine = calls[(calls["rank"] == rank) & (calls["late"] > 0)]
            step = found.of(mine["seq"]) if found else mine["seq"]
            until = np.maximum.accumulate(mine["last"])
            new = np.ones(len(mine), bool)
            new[1:] = (mine["middle"][1:] > until[:-1]) & ~(
                mine["is_async"][1:] & (step[1:] == step[:-1])
            )
            first = np.flatnonzero(new)
            late = np.maximum.reduceat(mine["late"], first)
            many, each = len(calls), late
            if found:
                seen = np.unique(found.of(calls["seq"]))
                seen = seen[seen >= 0]
                inside = step[first] >= 0
                place = np.searchsorted(seen, step[first][inside])
                many, each = max(len(seen), 1), np.bincount(place, late[inside], len(seen))
            usual = each[each >= 0.5 * (each**2.0).sum() / max(each.sum(), 1)]
            made.append(
                Late(
                    group=group,
                    rank=rank,
                    calls=len(mine),
                    of=len(calls),
                    median=int(np.median(each)) if len(each) else 0,
                    share=len(usual) / many,
                    usual=int(usual.mean()) if len(usual) else 0,
                    total=int(late.sum()),
                    cost=int(mine["cost"].sum()),
                )
            )
    yield from sorted(made, key=lambda one: (-one.total, one.group, one.rank))


def _ranks(timeline: Timeline, times: _Ints, late: tuple[Late, ...]) -> Iterator[RankTimes]:
    o = timeline.operations
    for rank, one in sorted(timeline.ranks.items()):
        rows = o["rank"] == rank
        yield RankTimes(
            rank=rank,
            host=one.host,
            part=_part(rank, o[rows], times[rows]),
            late=sum(x.total for x in late if x.rank == rank),
            cost=sum(x.cost for x in late if x.rank == rank),
            lost=one.lost,
            under_way=int(np.sum(o["ended"][rows] == 0)),
        )


_DIED = ("peer_died", "proc_failed")


def deaths(timeline: Timeline) -> Iterator[Death]:
    """Yield processes that ended in the middle of a call, or while others waited for them."""
    o = timeline.operations
    codes = [i for i, name in enumerate(timeline.names.outcomes) if name in _DIED]
    told = tuple(np.unique(o["rank"][np.isin(o["outcome"], codes)]).tolist())
    awaited = _awaited(timeline)
    gone = [one for one in timeline.ranks.values() if one.state == "ended" or one.ended > 0]
    for one in sorted(gone, key=lambda one: (one.ended, one.rank)):
        open_rows = np.flatnonzero((o["rank"] == one.rank) & (o["ended"] == 0))
        by = told if one.rank not in told else ()
        if len(open_rows) or by or one.rank in awaited:
            doing = timeline.names.operations[o["name"][open_rows[0]]] if len(open_rows) else ""
            yield Death(one.rank, one.host, one.pid, one.ended, by, doing)


def _awaited(timeline: Timeline) -> set[int]:
    """The ranks that have not come to a collective in which others are."""
    o = timeline.operations
    o = o[(o["seq"] >= 0) & (o["group"] >= 0)]
    numbers, place = np.unique(o["seq"], return_inverse=True)
    call = o["group"].astype(np.int64) * len(numbers) + place
    came: dict[int, set[int]] = {}
    group = {}
    rows = np.isin(call, call[o["ended"] == 0])
    for key, row in zip(call[rows].tolist(), o[rows], strict=True):
        came.setdefault(key, set()).add(int(row["rank"]))
        group[key] = row["group"]
    members = {key: set(timeline.groups[number].ranks) for key, number in group.items()}
    return set().union(*(members[key] - came[key] for key in came))


def _group_names(timeline: Timeline, size: int) -> Iterator[str]:
    many = Counter(group.ranks for group in timeline.groups)
    seen: Counter[tuple[int, ...]] = Counter()
    for group in timeline.groups:
        seen[group.ranks] += 1
        name = name_group(group.ranks, size)
        if many[group.ranks] > 1:
            name += f" (number {seen[group.ranks]} of {many[group.ranks]})"
        yield name
