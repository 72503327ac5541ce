"""Small timelines for tests of pictures. Times are microseconds after START."""

from __future__ import annotations

from typing import Any

import numpy as np
from paddlempi.trace.model import ASYNC, MESSAGE, OPERATION, Group, Names, Rank, Timeline

START = 1_700_000_000_000_000_000

NAMES = Names(
    ("all_reduce", "barrier", "send", "recv", "all_gather", "sendrecv"),
    ("float32",),
    ("SUM",),
    ("mapped",),
    ("ok", "timeout"),
)


def at(microseconds: float) -> int:
    """A time of the timeline; 0 stays 0: it did not come so far."""
    return START + round(1000 * microseconds) if microseconds else 0


def operation(
    rank: int,
    name: str,
    submitted: float,
    ended: float,
    *,
    begun: float = 0,
    arrived: float = 0,
    waited: float = 0,
    **other: Any,
) -> dict[str, Any]:
    """A row of OPERATION: of 8 float32 in group 0, "ok" if it has ended."""
    return {
        "rank": rank,
        "group": 0,
        "seq": -1,
        "name": NAMES.operations.index(name),
        "dtype": 0,
        "reduce": -1,
        "algorithm": -1,
        "root": -1,
        "count": 8,
        "nbytes": 32,
        "peers": (-1, -1),
        "outcome": 0 if ended else -1,
        "submitted": at(submitted),
        "begun": at(begun or submitted),
        "arrived": at(arrived),
        "waited": at(waited),
        "ended": at(ended),
        **other,
    }


def together(name: str, seq: int, came: list[float], ended: float, **other: Any) -> list[Any]:
    """A collective of ranks that come at these times; all know it when the last one has come."""
    arrived = max(came) if max(came) - min(came) > 20 else 0
    return [
        operation(rank, name, begun, ended, seq=seq, arrived=arrived, **other)
        for rank, begun in enumerate(came)
    ]


def message(source: int, to: int, sent: float, got: float, tag: int = 5) -> list[dict[str, Any]]:
    """A send, and its receive, which takes as long."""
    return [
        operation(source, "send", sent, got, flags=MESSAGE, peers=(to, -1), tags=(tag, 0)),
        operation(to, "recv", sent + 1, got + 2, flags=MESSAGE, peers=(source, -1), tags=(tag, 0)),
    ]


def timeline(size: int, rows: list[dict[str, Any]], **ranks: dict[str, Any]) -> Timeline:
    """A timeline of ranks that are recorded from 0 to 100 ms. ``rank2={...}`` says more of one."""
    made = np.zeros(len(rows), OPERATION)
    for i, row in enumerate(sorted(rows, key=lambda row: row["submitted"])):
        for key, value in {"number": i + 1, **row}.items():
            made[key][i] = value
    return Timeline(
        {rank: _rank(rank, size, **ranks.get(f"rank{rank}", {})) for rank in range(size)},
        (Group("c0ffee", tuple(range(size))),),
        made,
        NAMES,
    )


def _rank(rank: int, size: int, **other: Any) -> Rank:
    known = {"host": f"host{rank // 2}", "boot": f"boot{rank // 2}", "pid": 1000 + rank}
    state = {"state": "running", "began": at(0.001), "taken": at(100_000), "lost": 0, "job": "j"}
    return Rank(rank, size, **{**known, **state, **other})


def training(ranks: int, steps: int, late: int = 1) -> Timeline:
    """Steps of 1 ms: an asynchronous all_reduce that is hidden by half, messages, a barrier.

    One rank comes 2 ms late to the barrier of every tenth step.
    """
    rows: list[dict[str, Any]] = []
    at = 10.0
    for step in range(steps):
        came = [at + 3 * rank for rank in range(ranks)]
        hidden = together("all_reduce", 2 * step + 1, came, at + 500, flags=ASYNC)
        rows += [{**row, "waited": row["submitted"] + 250_000} for row in hidden]
        if ranks > 1:
            rows += message(0, 1, at + 510, at + 530)
        delay = 2000 if step % 10 == 9 else 0
        came = [at + 600 + rank + delay * (rank == late) for rank in range(ranks)]
        rows += together("barrier", 2 * step + 2, came, max(came) + 5)
        at = max(came) + 300
    return timeline(ranks, rows)
