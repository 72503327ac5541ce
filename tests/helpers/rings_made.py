"""Traces for tests of ``trace show``: files as ``trace dump`` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SECOND = 1_000_000_000
BEGAN = 1_700_000_000 * SECOND
"""When every process was initialised. Times of operations are seconds after that."""


def _at(seconds: float | None) -> int | None:
    return None if seconds is None else BEGAN + round(seconds * SECOND)


def operation(
    seq: int | None,
    submitted: float,
    ended: float | None = None,
    outcome: str | None = None,
    **other: Any,
) -> dict[str, Any]:
    """Return an all_reduce of 8 float32 in group 1, unless ``other`` says otherwise.

    If it has ended and there is no outcome, it is "ok".
    """
    if ended is not None and outcome is None:
        outcome = "ok"
    made = {
        "number": round(submitted * 1000) + 1,
        "group": 1,
        "seq": seq,
        "operation": "all_reduce",
        "dtype": "float32",
        "count": 8,
        "reduce_op": "SUM",
        "root": None,
        "detail": "0" * 16,
        "message": False,
        "async": False,
        "refusing": False,
        "peers": None,
        "tags": None,
        "algorithm": "mpi" if outcome == "ok" else None,
        "phase": None,
        "rail": None,
        "partner": None,
        "submitted": _at(submitted),
        "begun": _at(submitted),
        "arrived": None,
        "waited": None,
        "ended": _at(ended),
        "outcome": outcome,
    }
    for name in ("begun", "arrived", "waited"):
        if name in other:
            other[name] = _at(other[name])
    assert other.keys() <= made.keys(), other
    return {**made, **other}


def message(submitted: float, code: str, peer: int, **other: Any) -> dict[str, Any]:
    """Return a message of 8 float32 with tag 5, which is under way unless ``other`` says more."""
    values = {"operation": code, "message": True, "reduce_op": None, "peers": [peer], "tags": [5]}
    return operation(None, submitted, **{**values, **other})


def ring(
    rank: int,
    size: int,
    operations: list[dict[str, Any]],
    groups: dict[int, list[int]] | None = None,
    taken: float = 100.0,
    **other: Any,
) -> dict[str, Any]:
    """Return the trace of a rank. Group 1 is that of all ranks; ``groups`` are further ones."""
    ranks = {1: list(range(size)), **(groups or {})}
    made = {
        "format": "paddlempi-trace",
        "version": 1,
        "rank": rank,
        "size": size,
        "host": "here",
        "boot": "b",
        "pid": 1000 + rank,
        "state": "running",
        "began": BEGAN,
        "taken": _at(taken),
        "not_recorded": 0,
        "damaged": 0,
        "groups": [
            {"id": id, "key": f"{id:016x}", "rank": members.index(rank), "ranks": members}
            for id, members in ranks.items()
            if rank in members
        ],
        "operations": operations,
    }
    assert other.keys() <= made.keys(), other
    return {**made, **other}


def write(folder: Path, *rings: dict[str, Any]) -> Path:
    """Write traces into a folder; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for made in rings:
        (folder / f"rank-{made['rank']}.json").write_text(json.dumps(made))
    return folder
