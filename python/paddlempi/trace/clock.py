"""One clock for the hosts of a timeline, made of the operations themselves.

Ranks of one host share a clock. The clocks of two hosts are *offset* from each other, by seconds or
by microseconds, and *drift*: one runs faster. Nothing was measured while the job ran, and the job
may be dead; but no rank gets through a collective before all members have announced it. So

* what a member stamps when all have *arrived* is later than what any member stamps when it
  announces the collective (``begun``);
* the end of a collective whose data all members need, and give only once they have arrived, is
  later than the first arrival on each other host;
* a message is received after it was sent.

Each of these bounds the offset of two hosts from one side; collectives in which now this and now
that host comes last, or which move data, bound it from both. A line (offset and drift) that fits
between all bounds of a window of time is a point of a polygon (``_polygon``). The extent of that
polygon at a moment is what is known of the offset then: the middle is taken, and half the extent is
the *error*, a bound and no deviation of statistics.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import matching
from .bounds import Bounds, Shift, fit
from .model import Rank, Timeline

__all__ = ["Clock", "Clocks", "align", "ordered"]

_Ints = npt.NDArray[Any]

# Operations whose result needs what every other member gives, where the members' shares are alike.
_NEED_ALL = ("all_reduce", "all_reduce_coalesced", "all_gather", "reduce_scatter", "all_to_all")

# Their algorithms that give nothing away before all members have arrived (docs/algorithms.md).
_AFTER_ARRIVAL = ("doubling", "slices", "slices16", "levels", "gather16", "mpi", "mpi_uneven")

MOST_PAIRS = 8  # hosts of which every pair is compared; of more, each with the reference


@dataclasses.dataclass(frozen=True)
class Clock:
    """The clock of one host, as seen from the reference.

    Attributes:
        host, boot: its name, and the id by which ranks name it.
        shift: what is added to its own stamps, and how exactly that is known.
        drift_ppm: how much its clock loses, in microseconds a second.
        bounds: how many collectives and messages with the host before it on ``via`` bound it.
        via: the hosts over which it is compared with the reference, itself last; empty: no bound.
        problem: why the error is not known, or what is odd; "" if nothing is.
    """

    host: str
    boot: str
    shift: Shift
    drift_ppm: float = 0.0
    bounds: int = 0
    via: tuple[str, ...] = ()
    problem: str = ""

    @property
    def offset(self) -> int:
        """Nanoseconds that were added to its first stamp."""
        return self.shift.base + round(float(self.shift.offset[0]))

    @property
    def error(self) -> float:
        """The greatest error in nanoseconds; infinite where nothing bounds it."""
        return float(self.shift.error.max())

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON has it; ``error`` is null where it is not known."""
        error = self.error
        return {
            "host": self.host,
            "boot": self.boot,
            "offset_ns": self.offset,
            "drift_ppm": self.drift_ppm,
            "error_ns": error if math.isfinite(error) else None,
            "bounds": self.bounds,
            "via": list(self.via),
            "problem": self.problem,
            "shift": self.shift.as_dict(),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Clock:
        """Return what ``as_dict`` was of.

        Raises:
            KeyError, TypeError, ValueError: it was of no clock.
        """
        return Clock(
            host=str(data["host"]),
            boot=str(data["boot"]),
            shift=Shift.from_dict(data["shift"]),
            drift_ppm=float(data["drift_ppm"]),
            bounds=int(data["bounds"]),
            via=tuple(str(name) for name in data["via"]),
            problem=str(data["problem"]),
        )


@dataclasses.dataclass(frozen=True)
class Clocks:
    """The clocks of all hosts of a timeline, whose first is the reference.

    Attributes:
        hosts: by the lowest rank on each.
        of_rank: the place in ``hosts`` of every rank.
    """

    hosts: tuple[Clock, ...]
    of_rank: Mapping[int, int]

    @property
    def error(self) -> float:
        """The greatest error of any host in nanoseconds."""
        return max((clock.error for clock in self.hosts), default=0.0)

    def errors(self, rank: int, at: Any) -> npt.NDArray[np.float64]:
        """Return the error of the clock of a rank at moments of the common clock, in ns."""
        return self.hosts[self.of_rank[rank]].shift.error_at(np.asarray(at, np.int64))

    def sentences(self) -> list[str]:
        """Say for people what was done to the clock of each host but the first."""
        return [_sentence(clock) for clock in self.hosts[1:]]


def align(timeline: Timeline) -> Timeline:
    """Put the stamps of all hosts on the clock of the host of the lowest rank.

    Returns:
        A timeline with operations of its own, ``clocks`` set, and a warning for each host whose
        clock is not known, or contradicts itself. One that has ``clocks`` is returned as it is.
    """
    if timeline.clocks is not None:
        return timeline
    hosts = _Hosts(timeline)
    clocks = tuple(_clocks(hosts))
    made = Clocks(clocks, {rank: hosts.of_rank[rank] for rank in timeline.ranks})
    operations = timeline.operations.copy()
    host_of_row = hosts.of_rank_array()[operations["rank"]]
    for number, clock in enumerate(clocks[1:], 1):
        rows = host_of_row == number
        for stamp in ("submitted", "begun", "arrived", "waited", "ended"):
            operations[stamp][rows] = clock.shift.of(operations[stamp][rows])
    ranks = {
        rank: _moved(one, clocks[made.of_rank[rank]].shift) for rank, one in timeline.ranks.items()
    }
    warnings = [f"Host {clock.host}: {clock.problem}." for clock in clocks if clock.problem]
    return dataclasses.replace(
        timeline,
        ranks=ranks,
        operations=operations[np.argsort(operations["submitted"], kind="stable")],
        clocks=made,
        warnings=[*timeline.warnings, *warnings],
    )


def _moved(rank: Rank, shift: Shift) -> Rank:
    began, taken, ended = shift.of(np.array([rank.began, rank.taken, rank.ended])).tolist()
    return dataclasses.replace(rank, began=began, taken=taken, ended=ended)


def ordered(timeline: Timeline, rank: int, at: Any, other: int, other_at: Any) -> _Ints:
    """Tell which of two moments came first, as far as the clocks tell.

    Args:
        timeline: what ``align`` has returned.
        rank, at: moments on a rank, nanoseconds of the common clock; one or an array.
        other, other_at: as many moments on another rank.

    Returns:
        Numbers: -1 where the first came first, 1 where the other did, 0 where they are equal, or
        nearer to each other than the errors of the two clocks.
    """
    clocks: Clocks = timeline.clocks
    a, b = np.asarray(at, np.int64), np.asarray(other_at, np.int64)
    apart = np.zeros(np.broadcast(a, b).shape)
    if clocks.of_rank[rank] != clocks.of_rank[other]:
        apart = clocks.errors(rank, a) + clocks.errors(other, b)
    return np.where(np.abs(a - b) > apart, np.sign(a - b), 0)


def _sentence(clock: Clock) -> str:
    if not math.isfinite(clock.error):
        return f"Host {clock.host}: its clock is taken as it is, and may be off by any time."
    via = f" over {', '.join(clock.via[1:-1])}" if len(clock.via) > 2 else ""
    return (
        f"Host {clock.host}: {clock.offset / 1e6:+,.3f} ms at the start, "
        f"{clock.drift_ppm:+.2f} ppm, right to {clock.error / 1e3:,.1f} us "
        f"({clock.bounds:,} bounds{via})."
    )


class _Extremes(NamedTuple):
    """What the members on one host say of collectives; each array by ``call``, in its order."""

    call: _Ints
    begun: _Ints  # the last announcement
    arrived: _Ints  # the first moment at which a member knew that all had announced; 0: not known
    came: _Ints  # the first such moment at the earliest; 0: some member is not recorded
    done: _Ints  # the first end that needs data of all members; 0: not known


class _Hosts:
    """The hosts of a timeline, and what bounds their clocks."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.boots = list(dict.fromkeys(one.boot for _, one in sorted(timeline.ranks.items())))
        place = {boot: i for i, boot in enumerate(self.boots)}
        self.of_rank = {rank: place[one.boot] for rank, one in timeline.ranks.items()}
        self.names = [
            next(one.host for one in timeline.ranks.values() if one.boot == boot)
            for boot in self.boots
        ]
        self.extremes: list[_Extremes] = []
        self.messages: tuple[_Ints, _Ints] = (np.zeros(0, np.int64),) * 2
        if len(self.boots) > 1:
            self.extremes = list(self._extremes())
            self.messages = matching.messages(timeline)

    def of_rank_array(self) -> _Ints:
        """Return the place of the host by rank, for columns of ranks."""
        found = np.zeros(max(self.of_rank, default=0) + 1, np.int64)
        found[list(self.of_rank)] = list(self.of_rank.values())
        return found

    def span(self, host: int) -> tuple[int, int]:
        """Return the first and the last stamp of a host."""
        o = self.timeline.operations
        rows = o[self.of_rank_array()[o["rank"]] == host]
        last = max(int(rows["ended"].max(initial=0)), int(rows["submitted"].max(initial=0)))
        first = int(rows["submitted"].min(initial=last))
        return first, max(last, first + 1)

    def _extremes(self) -> Iterator[_Extremes]:
        calls = matching.collectives(self.timeline)
        each = calls.each()
        o = self.timeline.operations[calls.rows]
        late = np.iinfo(np.int64).max
        ok = o["outcome"] == 0
        arrived = np.where(o["arrived"] > 0, o["arrived"], np.where(ok, o["ended"], 0))
        came = np.where(o["arrived"] > 0, o["arrived"], o["begun"])
        done = np.where(ok & _needs_all(self.timeline, o) & calls.whole[each], o["ended"], 0)
        host = self.of_rank_array()[o["rank"]]
        for number in range(len(self.boots)):
            rows = np.flatnonzero((host == number) & (o["begun"] > 0))
            if len(rows) == 0:
                yield _Extremes(*(np.zeros(0, np.int64),) * 5)
                continue
            call = each[rows]
            first = np.flatnonzero(np.diff(call, prepend=-1))

            def least(of: _Ints, rows: _Ints = rows, first: _Ints = first) -> _Ints:
                known = np.where(of[rows] > 0, of[rows], late)
                found: _Ints = np.minimum.reduceat(known, first)
                return np.where(found == late, 0, found)

            yield _Extremes(
                call[first],
                np.maximum.reduceat(o["begun"][rows], first),
                least(arrived),
                np.where(calls.whole[call[first]], least(came), 0),
                least(done),
            )

    def bounds(self, to: int, of: int) -> Bounds:
        """Return what bounds the time that is added to stamps of host ``of`` for those of ``to``.

        If x is a moment of ``to`` and later than y of ``of``, x - y is more than that time.
        """
        a, b = self.extremes[to], self.extremes[of]
        _, at, bt = np.intersect1d(a.call, b.call, assume_unique=True, return_indices=True)
        less = [(a.arrived[at], b.begun[bt]), (a.done[at], b.came[bt])]
        more = [(a.begun[at], b.arrived[bt]), (a.came[at], b.done[bt])]
        o, host = self.timeline.operations, self.of_rank_array()
        sent, got = (o[rows] for rows in self.messages)
        from_, to_ = host[sent["rank"]], host[got["rank"]]
        here, there = (from_ == of) & (to_ == to), (from_ == to) & (to_ == of)
        less.append((got["ended"][here], sent["begun"][here]))
        more.append((sent["begun"][there], got["ended"][there]))
        used = len(at) + int(here.sum()) + int(there.sum())
        return Bounds.of(_known(less), _known(more), used)


def _known(pairs: Sequence[tuple[_Ints, _Ints]]) -> tuple[_Ints, _Ints]:
    x, y = (np.concatenate([pair[i] for pair in pairs]) for i in (0, 1))
    known = (x > 0) & (y > 0)
    return x[known], y[known]


def _needs_all(timeline: Timeline, o: _Ints) -> npt.NDArray[np.bool_]:
    """Whether the end of rows comes after some arrival on every other host."""
    names, algorithms = timeline.names.operations, timeline.names.algorithms
    operations = [i for i, name in enumerate(names) if name in _NEED_ALL]
    late = [i for i, name in enumerate(algorithms) if name in _AFTER_ARRIVAL]
    found: npt.NDArray[np.bool_] = (
        np.isin(o["name"], operations) & np.isin(o["algorithm"], late) & (o["count"] > 0)
    )
    return found


def _clocks(hosts: _Hosts) -> Iterator[Clock]:
    """The clock of every host, over the ways of the least errors (Dijkstra's algorithm)."""
    n = len(hosts.boots)
    zero = Shift.none(*(hosts.span(0) if n else (0, 1)))
    best: dict[int, tuple[Shift, tuple[int, ...], int, str]] = {}
    queue: list[tuple[float, int, tuple[int, ...], Shift, int, str]] = [(0.0, 0, (0,), zero, 0, "")]
    while queue:
        _, host, via, shift, used, problem = heapq.heappop(queue)
        if host in best:
            continue
        best[host] = shift, via, used, problem
        if n > MOST_PAIRS and len({*best, *(way[1] for way in queue)}) == n:
            continue  # every host has a way already
        for other in range(n):
            if other in best:
                continue
            bounds = hosts.bounds(host, other)
            direct = fit(bounds, *hosts.span(other))
            if direct is None:
                continue
            whole = direct.shift.then(shift)
            way = float(whole.error.mean()), other, (*via, other), whole, bounds.used, direct.odd
            heapq.heappush(queue, way)
    for host in range(n):
        name, boot = hosts.names[host], hosts.boots[host]
        if host not in best:
            shift = Shift.none(*hosts.span(host), error=math.inf)
            problem = "no collective or message bounds its clock from both sides, so it is taken"
            yield Clock(name, boot, shift, problem=f"{problem} as it is")
            continue
        shift, via, used, problem = best[host]
        ways = tuple(hosts.names[one] for one in via)
        yield Clock(name, boot, shift, shift.drift_ppm, used, ways, problem)
