"""The judgement on traces as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ..._rank_names import name_ranks
from ...trace.rings import Ring
from .judge import Finding, Judgement, Part, Waits

__all__ = ["as_json", "as_text"]

MOST = 20  # findings that the text lists
MOST_FRAMES = 10  # calls of the Python stack of a rank that is behind

# A rank stands out if others have waited for it this many times as long as for a rank on average.
STANDS_OUT = 1.5

# What a part of each kind says, of one rank and of several. The first to be told comes first.
_HOW = {
    "never came": ("never came", "never came"),
    "came too late": ("came too late", "came too late"),
    "came with something else": ("came with something else", "came with something else"),
    "refused": ("refused, because its own arguments are wrong", "refused"),
    "unknown": ("is unknown", "are unknown"),
    "peer": ("is awaited", "are awaited"),
    "failed": ("gave it up", "gave it up"),
    "moves": ("is in the middle", "are in the middle"),
    "waits": ("waits", "wait"),
    "ended": ("has ended it", "have ended it"),
}


def as_text(judgement: Judgement) -> str:
    """Say what a person wants to know."""
    return "\n".join(_lines(judgement))


def as_json(judgement: Judgement) -> str:
    """Return the same as one JSON object, with all findings. Times are nanoseconds since 1970."""
    ranks: list[dict[str, Any]] = [
        {
            "rank": ring.rank,
            "host": ring.host,
            "pid": ring.pid,
            "state": ring.state,
            "taken": ring.taken,
            "operations": len(ring.operations),
            "not_recorded": ring.not_recorded,
            "damaged": ring.damaged,
            "python": ring.python,
        }
        for ring in judgement.rings.values()
    ]
    data = {
        "behind": judgement.behind,
        "absent": judgement.absent,
        "ranks": ranks,
        "findings": [dataclasses.asdict(finding) for finding in judgement.findings],
        "waits": [dataclasses.asdict(waits) for waits in judgement.waits],
    }
    return json.dumps(data, indent=2)


def _lines(judgement: Judgement) -> Iterator[str]:
    rings = judgement.rings
    size = next(iter(rings.values())).size
    hosts = len({ring.host for ring in rings.values()})
    taken = max(ring.taken for ring in rings.values())
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(taken / 1e9))
    yield (
        f"Traces of {len(rings)} of {size} ranks, on {hosts} host{'s' if hosts > 1 else ''}, "
        f"the last one taken {when}."
    )
    if judgement.absent:
        yield f"No trace of {name_ranks(judgement.absent)}."
    for ring in rings.values():
        if ring.state != "running":
            how = "was stopped" if ring.state == "stopped" else "had ended"
            yield f"The process of rank {ring.rank} ({ring.pid} on {ring.host}) {how}."
        if ring.not_recorded or ring.damaged:
            yield (
                f"The trace of rank {ring.rank} is not complete: {ring.not_recorded} operations "
                f"found no room, {ring.damaged} entries are damaged."
            )
    yield ""
    if judgement.behind:
        yield f"Behind: {name_ranks(judgement.behind)}."
        for ring in (rings[rank] for rank in judgement.behind if rank in rings):
            yield from _python(ring)
    elif any(not finding.over for finding in judgement.findings):
        yield "Nobody is behind: the operations under way are moving data."
    else:
        yield "No operation is under way."
    for finding in judgement.findings[:MOST]:
        yield ""
        yield from _finding(finding, taken)
    if len(judgement.findings) > MOST:
        yield f"... and {len(judgement.findings) - MOST} more (--json has all)"
    yield ""
    yield "Waiting, as far as the traces reach:"
    yield "  rank   others waited for it    share   it waited itself"
    for waits in judgement.waits:
        yield (
            f"  {waits.rank:<6} {waits.others:>16.3f} s {waits.share:>10.0%} "
            f"{waits.itself:>15.3f} s"
        )
    yield _who_is_waited_for(judgement.waits)


def _python(ring: Ring) -> Iterator[str]:
    """Say where a rank is: its process, and what its main thread does there."""
    main = ring.python[0] if ring.python else ()
    where = f"  rank {ring.rank} is process {ring.pid} on {ring.host}"
    yield f"{where}, in Python:" if main else f"{where}."
    for frame in main[:MOST_FRAMES]:
        yield f"    {frame}"
    more = [f"{len(main) - MOST_FRAMES} more calls"] * (len(main) > MOST_FRAMES)
    more += [f"{len(ring.python) - 1} more threads"] * (len(ring.python) > 1)
    if more:
        yield f"    ... and {' and '.join(more)} (--json has all)"


def _who_is_waited_for(waits: Sequence[Waits]) -> str:
    """Say in a sentence for whom the ranks have waited."""
    total = sum(w.itself for w in waits)
    if total == 0:
        return "No rank has waited for another."
    text = f"All ranks together have waited {total:.3f} s"
    most = waits[0]
    if most.share * len(waits) < STANDS_OUT:
        return f"{text}. No rank stands out."
    return f"{text}, of which {most.others:.3f} s ({most.share:.0%}) for rank {most.rank}."


def _finding(finding: Finding, taken: int) -> Iterator[str]:
    number = "" if finding.seq is None else f", number {finding.seq}"
    over = "over" if finding.over else "under way"
    yield f"{finding.what}{number} of {finding.group} ({over}):"
    told: dict[tuple[str, str], list[Part]] = {}
    for part in finding.parts:
        detail = part.where if part.how in ("waits", "moves", "ended") else part.what
        if part.how == "failed" and part.where:
            detail += f", {part.where}"
        told.setdefault((part.how, detail), []).append(part)
    order = list(_HOW)
    for (how, detail), parts in sorted(told.items(), key=lambda t: order.index(t[0][0])):
        text = f"  {name_ranks([part.rank for part in parts])} {_HOW[how][len(parts) > 1]}"
        text += f": {detail}" if detail else ""
        times = [part.since for part in parts if part.since is not None]
        if times and how in ("waits", "moves"):
            text += f", since {(taken - min(times)) / 1e9:.3f} s"
        elif times:
            text += f", {(taken - min(times)) / 1e9:.3f} s ago"
        yield text
