"""Timelines as Chrome's JSON, which https://ui.perfetto.dev opens.

A process is a rank, a thread a lane of it. A call has the slices "waits for rank 2" and "moves" in
it; arrows join messages; deaths and late ranks are marks. The arguments have the names that
Holistic Trace Analysis reads. Times are microseconds after ``baseTimeNanoseconds``, as in the files
of torch's profiler.
"""

from __future__ import annotations

import collections
import json
import operator
import os
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .elements import elements
from .model import MESSAGE, OPERATION, Rank, Timeline
from .replacing import replacing
from .report import deaths
from .slices import Slices, family, messages, notes, slices
from .thinning import thin

__all__ = ["LIMIT", "events", "write"]

LIMIT = 100_000_000
"""So many bytes a file has at most; a larger one is thinned."""

_SAMPLE = 2_000  # slices that are written to learn how long one is
_MOST_RANKS = 30  # that the arguments of a call list, as torch does
_AT_ONCE = 4_096  # events that are written together

_MOST_KINDS = 4_096  # whose arguments are kept: a training repeats its calls

_Row = cast("Any", collections.namedtuple)("_Row", OPERATION.names or ())
_KIND = operator.itemgetter(
    *(_Row._fields.index(name) for name in ("group", "name", "dtype", "reduce", "algorithm")),
    *(_Row._fields.index(name) for name in ("outcome", "root", "count", "nbytes")),
)


def write(timeline: Timeline, path: str | os.PathLike[str], limit: int = LIMIT) -> list[str]:
    """Write a file for Perfetto.

    Args:
        timeline: of one clock (``clock.align``).
        limit: bytes of the file, about. If all calls need more, short ones are left out.

    Returns:
        Sentences on what is not in the file, which its metadata also has.

    Raises:
        OSError: the file cannot be written. An older file of that name is then still there.
    """
    drawn = slices(timeline)
    told = notes(timeline)
    made = _Events(timeline, drawn, base(timeline))
    arrows = messages(timeline)
    sample = drawn.list[:: len(drawn.list) // _SAMPLE + 1]
    length = sum(len(text) + 2 for row in sample for text in made.of_slice(row))
    # An arrow has two events, of less than 100 bytes each.
    room = limit - 10_000 * len(timeline.ranks) - 200 * len(arrows)
    fitting = int(0.95 * room * len(sample) / length) if length else 0
    thinned = thin(timeline, drawn, max(fitting, 1_000))
    told += [thinned.rule] if thinned.rule else []
    head = {
        "displayTimeUnit": "ns",
        "baseTimeNanoseconds": made.base,
        "metadata": {"paddlempi": "timeline", "ranks": len(timeline.ranks), "notes": told},
    }
    with replacing(path) as staged, open(staged, "w", encoding="utf-8") as out:
        out.write(json.dumps(head)[:-1] + ', "traceEvents": [\n')
        separator = ""
        for texts in _some(made.all(thinned.list, arrows)):
            out.write(separator + ",\n".join(texts))
            separator = ",\n"
        out.write("\n]}\n")
    return told


def base(timeline: Timeline) -> int:
    """Return when the timeline begins, in nanoseconds since 1970."""
    began = [rank.began for rank in timeline.ranks.values() if rank.began > 0]
    submitted = timeline.operations["submitted"]
    submitted = submitted[submitted > 0]
    first = int(submitted.min()) if len(submitted) else min(began, default=0)
    return min([first, *(at for at in began if at > first - 10**9)])


def events(timeline: Timeline, beginning: int, first: int = 0) -> Iterator[str]:
    """Yield all events of a timeline as JSON, for a file that has others too.

    Args:
        timeline: of one clock.
        beginning: nanoseconds since 1970 that are 0 in the file.
        first: the number of the process that rank 0 is.
    """
    drawn = slices(timeline)
    yield from _Events(timeline, drawn, beginning, first).all(drawn.list, messages(timeline))


def _some(texts: Iterator[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for text in texts:
        part.append(text)
        if len(part) == _AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def _microseconds(nanoseconds: int) -> str:
    """Return a time without rounding it."""
    sign, whole = ("-" if nanoseconds < 0 else ""), abs(nanoseconds)
    return f"{sign}{whole // 1000}.{whole % 1000:03d}"


class _Events:
    """Makes the events of a timeline, each as the text of a JSON object."""

    def __init__(self, timeline: Timeline, drawn: Slices, beginning: int, first: int = 0) -> None:
        self._timeline, self._drawn, self.base, self._first = timeline, drawn, beginning, first
        self._names = [json.dumps(name) for name in timeline.names.operations]
        self._kinds: dict[tuple[int, ...], str] = {}
        self._groups = [_of_group(group.key, group.ranks) for group in timeline.groups]

    def all(self, table: npt.NDArray[Any], arrows: list[tuple[int, int]]) -> Iterator[str]:
        """Yield every event: the lanes' names, the slices, arrows, marks."""
        for rank in self._timeline.ranks.values():
            yield from self._of_rank(rank)
        for row in table:
            yield from self.of_slice(row)
        yield from self._arrows(table, arrows)
        yield from self._marks()

    def _of_rank(self, rank: Rank) -> Iterator[str]:
        pid = self._first + rank.rank
        name = f"rank {rank.rank} ({rank.host}, process {rank.pid})"
        name += f": not recorded: {rank.problem}" if rank.problem else ""
        yield _metadata(pid, 0, "process_name", "name", name)
        yield _metadata(pid, 0, "process_sort_index", "sort_index", pid)
        callers, lanes = self._drawn.lanes[rank.rank]
        for lane in range(lanes):
            number = lane if lane < callers else lane - callers
            name = "callers" if lane < callers else "under way"
            name += f" {number + 1}" if number else ""
            yield _metadata(pid, lane, "thread_name", "name", name)
            yield _metadata(pid, lane, "thread_sort_index", "sort_index", lane)

    def of_slice(self, row: Any) -> Iterator[str]:
        """Yield a slice, and those in it."""
        at, rank, lane, caller, begin, end, wait, waited = row.item()
        operation = _Row._make(self._timeline.operations[at].item())
        where = f'"pid":{self._first + rank},"tid":{lane}'
        name = self._names[operation.name]
        if caller:
            yield self._slice(where, begin, end, f'"wait for {name[1:]}', "wait", "")
            return
        if operation.outcome < 0:
            name = f'{name[:-1]} (under way)"'
        kind = family(self._timeline.names.operations[operation.name], operation.flags)
        yield self._slice(where, begin, end, name, kind, self._arguments(operation))
        if waited > wait:
            yield self._slice(where, wait, waited, self._waits(at, rank), "waits", "")
        if operation.arrived and end > waited:
            yield self._slice(where, max(waited, begin), end, '"moves"', "moves", "")

    def _slice(self, where: str, begin: int, end: int, name: str, kind: str, args: str) -> str:
        return (
            f'{{"ph":"X",{where},"ts":{_microseconds(begin - self.base)},'
            f'"dur":{_microseconds(end - begin)},"name":{name},"cat":"{kind}","args":{{{args}}}}}'
        )

    def _waits(self, operation: int, rank: int) -> str:
        awaited = self._drawn.awaited[operation]
        if awaited < 0:
            return '"waits"'
        return '"comes last"' if awaited == rank else f'"waits for rank {awaited}"'

    def _arguments(self, operation: Any) -> str:
        """Return the arguments of a call, without the braces."""
        kind = _KIND(operation)
        text = self._kinds.get(kind)
        if text is None:
            if len(self._kinds) >= _MOST_KINDS:
                self._kinds.clear()
            text = self._kinds[kind] = self._of_kind(operation)
        if operation.seq >= 0:
            text += f',"seq":{operation.seq}'
        if operation.flags & MESSAGE:
            peers, tags = (list(map(int, pair)) for pair in (operation.peers, operation.tags))
            text += f',"peers":{peers},"tags":{tags}'
        return f'{text},"number":{operation.number}'

    def _of_kind(self, operation: Any) -> str:
        """Return the arguments that equal calls have in common."""
        names, group = self._timeline.names, operation.group
        size = len(self._timeline.groups[group].ranks) if group >= 0 else 1
        name = names.operations[operation.name]
        sent, received = elements(name, max(operation.count, 0), size)
        parts = [
            f'"Collective name":{self._names[operation.name]}',
            f'"In msg nelems":{sent},"Out msg nelems":{received}',
        ]
        if group >= 0:
            parts.append(self._groups[group])
        for key, code, words in (
            ("dtype", operation.dtype, names.dtypes),
            ("reduce op", operation.reduce, names.reduce_ops),
            ("algorithm", operation.algorithm, names.algorithms),
            ("outcome", operation.outcome, names.outcomes),
        ):
            if code >= 0:
                parts.append(f'"{key}":{json.dumps(words[code])}')
        if operation.root >= 0:
            parts.append(f'"root":{operation.root}')
        parts.append(f'"bytes":{operation.nbytes}')
        return ",".join(parts)

    def _arrows(self, table: npt.NDArray[Any], arrows: list[tuple[int, int]]) -> Iterator[str]:
        whole = np.flatnonzero(~table["caller"])
        place = np.full(len(self._timeline.operations), -1, np.int64)
        place[table["operation"][whole]] = whole
        for number, (sent, received) in enumerate(arrows):
            if place[sent] < 0 or place[received] < 0:
                continue
            of, to = table[place[sent]], table[place[received]]
            # Both ends lie inside of their slices: at the end of one, no slice would be found.
            at = max(int(to["end"]) - 1, int(to["begin"]), int(of["begin"]))
            for phase, row, when in (('"s"', of, int(of["begin"])), ('"f","bp":"e"', to, at)):
                yield (
                    f'{{"ph":{phase},"id":{number},"pid":{self._first + int(row["rank"])},'
                    f'"tid":{row["lane"]},"ts":{_microseconds(when - self.base)},'
                    '"name":"message","cat":"message"}'
                )

    def _marks(self) -> Iterator[str]:
        died = {death.rank for death in deaths(self._timeline)}
        for rank in self._timeline.ranks.values():
            if rank.ended:
                how = "died" if rank.rank in died else "ended"
                yield self._mark(rank.rank, rank.ended, f"rank {rank.rank} {how}")
        for late in self._drawn.late:
            operation = self._timeline.operations[late.operation]
            at = int(operation["begun"] or operation["submitted"])
            name = f"rank {operation['rank']} comes {late.by / 1e6:.1f} ms late"
            yield self._mark(int(operation["rank"]), at, name)

    def _mark(self, rank: int, at: int, name: str) -> str:
        mark = {"ph": "i", "s": "p", "pid": self._first + rank, "tid": 0, "name": name}
        text = json.dumps(mark, separators=(",", ":"))[:-1]
        return f'{text},"ts":{_microseconds(at - self.base)},"cat":"mark"}}'


def _metadata(pid: int, tid: int, name: str, key: str, value: str | int) -> str:
    of = {"ph": "M", "pid": pid, "tid": tid, "name": name, "args": {key: value}}
    return json.dumps(of, separators=(",", ":"))


def _of_group(key: str, ranks: tuple[int, ...]) -> str:
    """Return the arguments that all calls of a group have."""
    listed = ", ".join(map(str, ranks[:_MOST_RANKS])) + (", ..." * (len(ranks) > _MOST_RANKS))
    return (
        f'"Process Group Name":{json.dumps(key)},"Process Group Ranks":"[{listed}]",'
        f'"Group size":{len(ranks)}'
    )
