"""Arrays of what a timeline says: times of every operation, who came late, what a step is.

All of it wants a timeline on one clock (``clock.align``). Times are nanoseconds.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from . import matching
from .model import ASYNC, MESSAGE, Timeline

__all__ = ["ARRIVAL", "TIMES", "Period", "arrivals", "period", "times"]

_Ints = npt.NDArray[Any]

TIMES = np.dtype(
    [
        ("total", "i8"),  # from the submission to the end; 0 for all of these: it has not ended
        ("waited", "i8"),  # for other members: from the announcement until all had announced
        ("stalled", "i8"),  # of waited, while the caller did nothing but wait
        ("moved", "i8"),  # after that, and after the collective before it in its group
        ("exposed", "i8"),  # of moved, while the caller did nothing but wait
        ("alone", "i8"),  # what moving takes at best: see times
        ("known", "?"),  # whether stalled and exposed are: it was recorded when callers waited
    ]
)

ARRIVAL = np.dtype(
    [
        ("group", "i4"),
        ("seq", "i8"),
        ("row", "i8"),  # in Timeline.operations: of the member that came last
        ("rank", "i4"),  # that member's rank of the world
        ("first", "i8"),  # when the first member came
        ("middle", "i8"),  # when the middle one of the others came
        ("last", "i8"),  # when the last one came
        ("late", "i8"),  # last - middle, 0 where that is not known
        ("told", "?"),  # whether it is known who came last
        ("cost", "i8"),  # what the others have been stalled, all together
        ("is_async", "?"),
    ]
)

LEAST_LONGER = 100_000  # ns of waiting: less is the way of an announcement to another host
FEW = 8  # calls for which a caller waited, of which the median says something
BEST = 0.05  # where there are none: what so few calls take at most is what all can do with
MOST_OF_PERIOD = 4096  # calls that are looked at for a period
LEAST_PAUSE = 100_000  # ns between two steps of equal calls
LIKE = 0.98  # so many of the calls have to be what they were a period before


def times(timeline: Timeline) -> _Ints:
    """Return the times of every row of ``timeline.operations``, as TIMES.

    A collective moves data from when all members have announced it, and the one before it in its
    group has ended. While it is asynchronous that may take long, because nobody takes it further or
    the caller computes on the same CPU; or no time at all, because other ranks have done the part
    of this one. So ``alone`` is what its bytes take at the rate of the collectives of its operation
    and group for which all callers waited all the time, from the last announcement to the last end.
    """
    o = timeline.operations
    made = np.zeros(len(o), TIMES)
    over = (o["ended"] > 0) & (o["submitted"] > 0)
    is_async = o["flags"] & ASYNC != 0
    known = np.zeros(max(timeline.ranks, default=0) + 1, bool)
    known[o["rank"][(o["waited"] > 0) & is_async]] = True
    begun = np.maximum(np.where(o["begun"] > 0, o["begun"], o["submitted"]), _before(timeline))
    came = np.clip(np.maximum(o["arrived"], begun), o["submitted"], np.maximum(o["ended"], 0))
    blocked = np.where(is_async, np.where(o["waited"] > 0, o["waited"], o["ended"]), o["submitted"])
    made["total"] = o["ended"] - o["submitted"]
    made["waited"] = np.where(o["arrived"] > 0, o["arrived"] - o["begun"], 0)
    stalled = o["arrived"] - np.maximum(begun, blocked)
    made["stalled"] = np.where(o["arrived"] > 0, np.maximum(stalled, 0), 0)
    made["moved"] = o["ended"] - came
    made["exposed"] = np.maximum(o["ended"] - np.maximum(came, blocked), 0)
    made["known"] = ~is_async | known[o["rank"]]
    made[~over] = np.zeros((), TIMES)
    took, awaited = _together(timeline, begun, blocked, made["moved"])
    made["alone"] = _alone(timeline, took, awaited, over)
    return made


def _together(
    timeline: Timeline, begun: _Ints, blocked: _Ints, moved: _Ints
) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    """How long the members of each row's collective took from the last begin to the last end.

    Returns:
        That, or ``moved`` where not all members are recorded; and whether all callers did nothing
        but wait for it. A rank whose caller computes may take a while to do its part.
    """
    o, calls = timeline.operations, matching.collectives(timeline)
    took, awaited = moved.copy(), blocked <= o["ended"] - moved
    if len(calls.rows):
        last = np.maximum.reduceat(begun[calls.rows], calls.first)
        end = np.maximum.reduceat(o["ended"][calls.rows], calls.first)
        waits = np.maximum.reduceat(blocked[calls.rows], calls.first) <= last + (end - last) // 10
        use, each = (calls.whole & (end > last))[calls.each()], calls.each()
        took[calls.rows] = np.where(use, (end - last)[each], moved[calls.rows])
        awaited[calls.rows] = np.where(use, waits[each], awaited[calls.rows])
    return took, awaited


def _before(timeline: Timeline) -> _Ints:
    """When the collective before each in its group and rank ended, 0 where there is none."""
    o = timeline.operations
    found = np.zeros(len(o), np.int64)
    rows = np.flatnonzero((o["seq"] >= 0) & (o["group"] >= 0) & (o["flags"] & MESSAGE == 0))
    rows = rows[np.lexsort((o["seq"][rows], o["group"][rows], o["rank"][rows]))]
    same = (o["rank"][rows][1:] == o["rank"][rows][:-1]) & (
        o["group"][rows][1:] == o["group"][rows][:-1]
    )
    found[rows[1:]] = np.where(same, o["ended"][rows][:-1], 0)
    return found


def _alone(
    timeline: Timeline,
    took: _Ints,
    awaited: npt.NDArray[np.bool_],
    over: npt.NDArray[np.bool_],
) -> _Ints:
    """What the bytes of each row take at the rate of calls of its operation and group."""
    o = timeline.operations
    alone = np.where(over, took, 0)
    size = np.maximum(o["nbytes"], 1)
    of = o["group"].astype(np.int64) << 32 | o["name"].astype(np.int64)
    for key in np.unique(of[over]):
        rows = over & (of == key)
        large = rows & (size >= size[rows].max() // 4)  # small ones tell of latencies
        usual = large & awaited
        if np.sum(usual) >= FEW:
            rate = np.median(took[usual] / size[usual])
        else:
            rate = np.quantile(took[large] / size[large], BEST)
        alone[rows] = size[rows] * float(rate)
    return alone


def arrivals(timeline: Timeline) -> _Ints:
    """Return who came last to each collective whose members are all recorded, as ARRIVAL.

    They are in the order of groups and numbers. Where the clocks of two hosts do not tell
    exactly, a synchronous call does: who came last has waited least, the others that much longer.
    """
    calls = matching.collectives(timeline)
    o = timeline.operations
    if len(calls.rows) == 0:
        return np.zeros(0, ARRIVAL)
    begun = o["begun"]
    waited = np.where(o["arrived"] > 0, o["arrived"] - begun, 0)
    use = calls.whole & (calls.size > 1) & (np.minimum.reduceat(begun[calls.rows], calls.first) > 0)
    made = np.zeros(int(use.sum()), ARRIVAL)
    if len(made) == 0:
        return made
    first, last, middle = _sorted(calls, use, begun)
    made["group"], made["seq"], made["first"] = o["group"][last], o["seq"][last], begun[first]
    late = begun[last] - begun[middle]
    apart = _apart(timeline, last, middle)
    told = late > apart
    _, least, usual = _sorted(calls, use, -waited)
    longer = waited[usual] - waited[least]
    by_wait = (apart > LEAST_LONGER) & (longer > LEAST_LONGER)
    by_wait &= o["flags"][least] & ASYNC == 0
    made["row"] = np.where(by_wait, least, last)
    made["late"] = np.where(by_wait, longer, np.where(told, late, 0))
    made["rank"] = o["rank"][made["row"]]
    made["last"] = begun[made["row"]]
    made["middle"] = np.where(by_wait, made["last"] - longer, begun[middle])
    made["told"] = told | by_wait
    stalled = times(timeline)["stalled"]
    sums = np.add.reduceat(stalled[calls.rows], calls.first)[use]
    made["cost"] = sums - stalled[made["row"]]
    made["is_async"] = o["flags"][made["row"]] & ASYNC != 0
    return made


def _sorted(calls: matching.Calls, use: _Ints, by: _Ints) -> tuple[_Ints, _Ints, _Ints]:
    """The rows of the first, the last, and the middle one of the others, by a value of rows."""
    rows = calls.rows[np.lexsort((by[calls.rows], calls.each()))]
    first, size = calls.first[use], calls.size[use]
    return rows[first], rows[first + size - 1], rows[first + (size - 2) // 2]


def _apart(timeline: Timeline, rows: _Ints, others: _Ints) -> npt.NDArray[np.float64]:
    """How far the begins of two rows must lie apart to be ordered."""
    o, clocks = timeline.operations, timeline.clocks
    found = np.zeros(len(rows))
    if clocks is None or len(clocks.hosts) < 2:
        return found
    host = np.zeros(max(timeline.ranks, default=0) + 1, np.int64)
    host[list(clocks.of_rank)] = list(clocks.of_rank.values())
    two = host[o["rank"][rows]] != host[o["rank"][others]]
    for these in (rows, others):
        for number, clock in enumerate(clocks.hosts):
            at = two & (host[o["rank"][these]] == number)
            found[at] += clock.shift.error_at(o["begun"][these[at]])
    return found


@dataclasses.dataclass(frozen=True)
class Period:
    """A sequence of calls of a group that repeats: a step.

    Attributes:
        group: place in ``Timeline.groups``.
        calls: of the group in a step.
        first: the number of the first call of the first step.
        steps: how many were recorded, by the calls of one rank.
        time: the median from one step's begin to the next one's, in nanoseconds.
    """

    group: int
    calls: int
    first: int
    steps: int
    time: int

    def of(self, seq: _Ints) -> _Ints:
        """Return in which step calls of these numbers are, from 0; -1: before the first."""
        step: _Ints = (seq - self.first) // self.calls
        return np.maximum(step, -1, dtype=np.int64)


def period(timeline: Timeline, group: int) -> Period | None:
    """Find what repeats in the calls of a group; None if nothing does three times.

    The calls are looked at from their middle on: programs begin with something else. If all calls
    are alike, the pauses before them may repeat. A step begins after the longest pause.
    """
    o = timeline.operations
    rows = np.flatnonzero((o["group"] == group) & (o["seq"] >= 0) & (o["flags"] & MESSAGE == 0))
    if len(rows) < 3:
        return None
    ranks, counts = np.unique(o["rank"][rows], return_counts=True)
    rows = rows[o["rank"][rows] == ranks[counts.argmax()]]
    rows = rows[np.argsort(o["seq"][rows])]
    seq, begin = o["seq"][rows], o["submitted"][rows]
    what = ["name", "dtype", "count", "reduce", "root"]
    _, kind = np.unique(o[what][rows], return_inverse=True)
    tail = slice(max(len(rows) // 2, len(rows) - MOST_OF_PERIOD), None)
    length = _length(kind[tail])
    before = np.maximum.accumulate(np.maximum(begin, o["ended"][rows]))
    pause = np.maximum(begin[1:] - before[:-1], 0)
    if length == 1:
        length = _rhythm(pause[tail])
    if length is None or len(rows) < 3 * length:
        return None
    phases = [
        float(np.median(pause[np.flatnonzero((seq[1:] - seq[0]) % length == phase)]))
        if np.any((seq[1:] - seq[0]) % length == phase)
        else 0.0
        for phase in range(length)
    ]
    phase = int(np.argmax(phases)) if length > 1 else 0
    first = _first(kind, seq, length, phase)
    starts = begin[(seq >= first) & ((seq - first) % length == 0)]
    if len(starts) < 3:
        return None
    steps = int(np.sum(seq >= first)) // length
    return Period(group, length, first, steps, int(np.median(np.diff(starts))))


def _length(kind: _Ints) -> int | None:
    for length in range(1, len(kind) // 2 + 1):
        if np.mean(kind[length:] == kind[:-length]) >= LIKE:
            return length
    return None


def _rhythm(pause: _Ints) -> int:
    """After how many calls a long pause comes again, if all calls are alike; 1 if it does not."""
    size = np.log(pause + 1_000.0)
    size -= size.mean()
    spread = float(np.mean(size**2))
    if spread < 1.0:  # the pauses are alike, up to e times
        return 1
    for length in range(2, min(64, len(size) // 3) + 1):
        if float(np.mean(size[length:] * size[:-length])) > 0.7 * spread:
            rows = pause[: len(pause) // length * length].reshape(-1, length)
            return length if np.median(rows, axis=0).max() >= LEAST_PAUSE else 1
    return 1


def _first(kind: _Ints, seq: _Ints, length: int, phase: int) -> int:
    """The number of the first call of a step from which on all is as a period later."""
    differs = np.flatnonzero(kind[length:] != kind[:-length])
    half = differs[differs < len(kind) // 2]
    begin = int(half[-1]) + 1 if len(half) else 0
    return int(seq[begin]) + (phase - int(seq[begin] - seq[0])) % length
