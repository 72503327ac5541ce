"""What the traces of all ranks say together: who is behind, where, how, and who waits for whom."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ..._rank_names import name_group
from ...trace.rings import Group, Operation, Ring

__all__ = ["Finding", "Groups", "Judgement", "Part", "Waits", "describe", "judge"]

# A collective that ended like this on some rank is told of, though the ring has later ones.
_TOLD = {"timeout", "mismatch", "peer_left", "peer_died", "proc_failed"}

# What the latecomer gets after others have given a collective up.
_TOO_LATE = {"group_broken", "group_destroyed", "timeout"}

_Key = tuple[str, tuple[int, ...]]
"""What identifies a group on all of its members."""


@dataclasses.dataclass(frozen=True)
class Part:
    """The part of one rank in a collective or a message.

    Attributes:
        how: ``waits`` (for other members), ``moves`` (all members have come), ``ended``,
            ``failed``, ``never came``, ``came with something else``, ``refused``, ``came too
            late``, ``peer`` (of a message that another rank waits for), or ``unknown`` (there is
            no trace of the rank, or none that reaches so far).
        since: when the rank came, or has done the last thing before; None if that is unknown.
        what: what the rank called; of a rank that never came, what it does instead.
        where: the phase of a collective over nodes that the rank is in, or in which it failed.
    """

    rank: int
    how: str
    since: int | None
    what: str
    where: str = ""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A collective or a message in which a rank is behind, or that is under way.

    Attributes:
        group: the members, and which of several groups of the same members.
        what: the operation, as most of the ranks have called it.
        seq: the number of a collective in its group; None for a message.
        behind: world ranks for which the others wait, or whose call differs.
        waiting: world ranks that wait for these, or that have waited.
        over: whether it has ended on all ranks that came.
        parts: the part of every member.
    """

    group: str
    what: str
    seq: int | None
    behind: tuple[int, ...]
    waiting: tuple[int, ...]
    over: bool
    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True)
class Waits:
    """How long other ranks have waited for a rank.

    Attributes:
        others: seconds that others have waited for this rank, summed over them.
        share: of all waiting, 0 to 1.
        itself: seconds that this rank has waited for others.
    """

    rank: int
    others: float
    share: float
    itself: float


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Everything that ``trace show`` says.

    Attributes:
        behind: the ranks for which others wait now, and that wait for no other rank. If ranks wait
            for each other in a circle, all of them.
        absent: the ranks without a trace.
        findings: the latest first; those under way before those that are over.
        waits: of every rank, the most waited for first.
    """

    rings: Mapping[int, Ring]
    behind: tuple[int, ...]
    absent: tuple[int, ...]
    findings: tuple[Finding, ...]
    waits: tuple[Waits, ...]


def judge(rings: Mapping[int, Ring]) -> Judgement:
    """Merge the traces of a job, by rank."""
    size = next(iter(rings.values())).size
    groups = Groups(rings)
    findings = [*_collectives(groups), *_messages(groups)]
    findings.sort(key=lambda f: (f.over, -max((p.since or 0 for p in f.parts), default=0)))
    return Judgement(
        rings=rings,
        behind=_behind([f for f in findings if not f.over]),
        absent=tuple(rank for rank in range(size) if rank not in rings),
        findings=tuple(findings),
        waits=_waits(groups),
    )


class Groups:
    """The groups of all ranks, and their collectives by number and world rank."""

    def __init__(self, rings: Mapping[int, Ring]) -> None:
        self.rings = rings
        self.of: dict[tuple[int, int], tuple[_Key, Group]] = {}  # by rank and id there
        self.collectives: dict[_Key, dict[int, dict[int, Operation]]] = {}
        for rank, ring in rings.items():
            for group in ring.groups:
                key = (group.key, group.ranks)
                self.of[rank, group.id] = key, group
                if len(group.ranks) > 1:
                    self.collectives.setdefault(key, {})
            for operation in ring.operations:
                found = self.of.get((rank, operation.group))
                if found and found[0] in self.collectives and operation.seq is not None:
                    numbered = self.collectives[found[0]].setdefault(operation.seq, {})
                    numbered[rank] = operation

    def name(self, key: _Key) -> str:
        """Name a group for people."""
        size = next(iter(self.rings.values())).size
        ranks = key[1]
        name = name_group(ranks, size)
        same = [other for other in self.collectives if other[1] == ranks]
        return name if len(same) < 2 else f"{name} (number {same.index(key) + 1} of {len(same)})"

    def name_of(self, rank: int, operation: Operation) -> str:
        """Name the group of an operation of a rank."""
        found = self.of.get((rank, operation.group))
        return self.name(found[0]) if found else f"group {operation.group} of rank {rank}"

    def place(self, rank: int, operation: Operation) -> str:
        """Describe an operation of a rank with its number and group."""
        number = "" if operation.seq is None else f", number {operation.seq}"
        return f"{describe(operation)}{number} of {self.name_of(rank, operation)}"

    def instead(self, rank: int) -> tuple[str, int | None]:
        """What a rank does that has not come, and since when."""
        ring = self.rings[rank]
        state = "" if ring.state == "running" else f"its process has {_STATES[ring.state]}; "
        open_ones = list(ring.under_way())
        if open_ones:
            first = open_ones[0]
            return f"{state}it is in {self.place(rank, first)}", first.begun or first.submitted
        ended = [o for o in ring.operations if o.ended is not None]
        if not ended:
            return f"{state}it has submitted no operation", ring.began
        last = max(ended, key=lambda o: o.ended or 0)
        how = "" if last.outcome == "ok" else f" ({last.outcome})"
        return f"{state}its last operation was {self.place(rank, last)}{how}", last.ended


_STATES = {"stopped": "been stopped", "ended": "ended"}


def _collectives(groups: Groups) -> Iterator[Finding]:
    for key, numbered in groups.collectives.items():
        for seq, came in numbered.items():
            if any(o.ended is None or o.outcome in _TOLD for o in came.values()):
                finding = _collective(groups, key, seq, came)
                if finding is not None:
                    yield finding


def _collective(
    groups: Groups, key: _Key, seq: int, came: Mapping[int, Operation]
) -> Finding | None:
    callers = {rank: o for rank, o in came.items() if not o.refusing}
    if not callers:
        return None
    usual = _usual(callers)
    gave_up = min(
        (o.ended for o in callers.values() if o.outcome in _TOLD and o.ended), default=None
    )
    parts = []
    for rank in key[1]:
        operation = came.get(rank)
        if operation is None:
            parts.append(_absent(groups, key, rank, seq))
        else:
            part = _present(rank, operation, usual, gave_up)
            parts.append(dataclasses.replace(part, where=_where(key[1], operation)))
    if all(p.how in ("waits", "moves", "ended", "failed") for p in parts):
        # All have come, though some have not seen it, for instance because they are stopped.
        parts = [dataclasses.replace(p, how="moves") if p.how == "waits" else p for p in parts]
    waiting = [p.rank for p in parts if p.how == "waits" or p.how == "failed"]
    late = [p for p in parts if p.how in ("never came", "came too late")]
    odd = [p for p in parts if p.how in ("came with something else", "refused")]
    moving = [p for p in parts if p.how == "moves"]
    behind = late or odd
    if not behind and moving:
        # All members have come. A process that does not run holds the others up; else those that
        # have not ended do, if others have.
        idle = [p for p in moving if groups.rings[p.rank].state != "running"]
        ended = [came[p.rank].ended or 0 for p in parts if p.how == "ended"]
        behind = idle or [p for p in moving if any(e < groups.rings[p.rank].taken for e in ended)]
        waiting = [p.rank for p in parts if p.how in ("moves", "failed")] if behind else []
    return Finding(
        group=groups.name(key),
        what=describe(callers[next(r for r in callers if callers[r].signature() == usual)]),
        seq=seq,
        behind=tuple(p.rank for p in behind),
        waiting=tuple(rank for rank in waiting if rank not in {p.rank for p in behind}),
        over=all(o.ended is not None for o in callers.values()),
        parts=tuple(parts),
    )


def _usual(callers: Mapping[int, Operation]) -> tuple[object, ...]:
    """The signature that most ranks have; of several, that of the lowest rank."""
    counts: dict[tuple[object, ...], int] = defaultdict(int)
    for rank in sorted(callers):
        counts[callers[rank].signature()] += 1
    return max(counts, key=lambda signature: counts[signature])


def _absent(groups: Groups, key: _Key, rank: int, seq: int) -> Part:
    ring = groups.rings.get(rank)
    if ring is None:
        return Part(rank, "unknown", None, "there is no trace of it")
    numbers = [n for n, came in groups.collectives[key].items() if rank in came]
    others = groups.collectives[key][seq].values()
    if all((o.begun or o.submitted) > ring.taken for o in others):
        return Part(rank, "unknown", None, "its trace was taken before the others came")
    if any(n > seq for n in numbers) or any(o.moves() for o in others):
        return Part(rank, "unknown", None, "it came, and its trace does not have this one")
    what, since = groups.instead(rank)
    return Part(rank, "never came", since, what)


def _where(ranks: tuple[int, ...], operation: Operation) -> str:
    """Say which phase of a collective over nodes it is, with whom; empty if it is none."""
    if operation.phase is None or operation.outcome == "ok":
        return ""
    where = f"{operation.phase}, on rail {operation.rail}"
    if operation.partner is not None and 0 <= operation.partner < len(ranks):
        where += f", with rank {ranks[operation.partner]}"
    return where


def _present(
    rank: int, operation: Operation, usual: tuple[object, ...], gave_up: int | None
) -> Part:
    came = operation.begun or operation.submitted
    how = "waits"
    if operation.refusing:
        how = "refused"
    elif operation.signature() != usual and not _may_differ(operation, usual):
        how = "came with something else"
    elif operation.ended is None:
        how = "moves" if operation.moves() else "waits"
    elif operation.outcome == "ok":
        how = "ended"
    elif operation.outcome in _TOO_LATE and gave_up is not None and came > gave_up:
        how = "came too late"
    else:
        how = "failed"
    what = describe(operation)
    if operation.outcome not in (None, "ok"):
        what += f" ({operation.outcome})"
    return Part(rank, how, came, what)


def _may_differ(operation: Operation, usual: tuple[object, ...]) -> bool:
    """Whether only the shares of an all_to_all differ, which members need not agree on."""
    ours = operation.signature()
    return operation.operation == "all_to_all" and ours[:4] == usual[:4]


def _messages(groups: Groups) -> Iterator[Finding]:
    """Messages under way. A receive waits for its sender, a send for its receiver."""
    for rank, ring in groups.rings.items():
        for operation in ring.under_way():
            found = groups.of.get((rank, operation.group))
            if not operation.message or found is None:
                continue
            key, group = found
            peers = {group.ranks[p] for p in operation.peers or () if 0 <= p < len(group.ranks)} - {
                rank
            }
            since = operation.begun or operation.submitted
            parts = [Part(rank, "waits", since, describe(operation))]
            for peer in sorted(peers):
                if peer in groups.rings:
                    what, then = groups.instead(peer)
                    parts.append(Part(peer, "peer", then, what))
                else:
                    parts.append(Part(peer, "unknown", None, "there is no trace of it"))
            yield Finding(
                group=groups.name(key),
                what=describe(operation),
                seq=None,
                behind=tuple(sorted(peers)),
                waiting=(rank,),
                over=False,
                parts=tuple(parts),
            )


def _behind(findings: Sequence[Finding]) -> tuple[int, ...]:
    """The ranks for which others wait, and that wait for none themselves; else all of a circle."""
    waits_for: dict[int, set[int]] = defaultdict(set)
    for finding in findings:
        for rank in finding.waiting:
            waits_for[rank].update(finding.behind)
    awaited = {rank for finding in findings for rank in finding.behind}
    first = {rank for rank in awaited if not waits_for[rank] - {rank}}
    return tuple(sorted(first or awaited))


def _waits(groups: Groups) -> tuple[Waits, ...]:
    """Who has waited how long for whom, by the collectives at which all members have a trace."""
    spans: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for key, numbered in groups.collectives.items():
        if any(rank not in groups.rings for rank in key[1]):
            continue
        last = {r: max((n for n, came in numbered.items() if r in came), default=0) for r in key[1]}
        for seq, came in numbered.items():
            missing = [rank for rank in key[1] if rank not in came]
            if any(last[rank] > seq for rank in missing) or (
                missing and any(o.moves() for o in came.values())
            ):
                continue  # their traces do not have it
            arrival = {rank: o.begun or o.submitted for rank, o in came.items()}
            if any(groups.rings[rank].taken < min(arrival.values()) for rank in missing):
                continue  # their traces were taken before
            late, until = missing, None
            if not late:
                slowest = max(arrival, key=lambda rank: arrival[rank])
                late, until = [slowest], arrival[slowest]
            for rank, operation in came.items():
                end = operation.ended or groups.rings[rank].taken
                end = end if until is None else min(end, until)
                if rank not in late and end > arrival[rank]:
                    for other in late:
                        spans[rank, other].append((arrival[rank], end))
    others: dict[int, float] = defaultdict(float)
    itself: dict[int, float] = defaultdict(float)
    for (rank, other), list_ in spans.items():
        seconds = _union(list_) / 1e9
        others[other] += seconds
        itself[rank] += seconds
    total = sum(others.values())
    waits = [
        Waits(rank, others[rank], others[rank] / total if total else 0.0, itself[rank])
        for rank in groups.rings
    ]
    return tuple(sorted(waits, key=lambda w: (-w.others, w.rank)))


def _union(spans: list[tuple[int, int]]) -> int:
    """The length of what some spans cover together: asynchronous collectives wait side by side."""
    length, end = 0, 0
    for begin, finish in sorted(spans):
        length += max(0, finish - max(begin, end))
        end = max(end, finish)
    return length


_TAKES = ("recv", "probe", "Window.get", "Window.wait_signal")
"""The operations that get something of the rank that they name."""


def describe(operation: Operation) -> str:
    """Describe an operation as a call: ``all_reduce(float32[1000], SUM)``."""
    parts = []
    if operation.dtype is not None:
        count = str(operation.count) if operation.count >= 0 else "uneven"
        if operation.count == 0 and int(operation.detail, 16):
            count = f"parts {operation.detail[-8:]}"
        parts.append(f"{operation.dtype}[{count}]")
    if operation.reduce_op is not None:
        parts.append(operation.reduce_op)
    if operation.root is not None:
        parts.append(f"root {operation.root}")
    text = operation.operation + (f"({', '.join(parts)})" if parts else "")
    if operation.message:
        words = ("from",) if operation.operation in _TAKES else ("to", "from")
        label = "window" if operation.operation.startswith("Window.") else "tag"
        for word, peer, tag in zip(
            words, operation.peers or (), operation.tags or (), strict=False
        ):
            who = f"rank {peer} of the group" if peer >= 0 else "any rank"
            text += f" {word} {who}" + (f" ({label} {tag})" if tag >= 0 else "")
    return text
