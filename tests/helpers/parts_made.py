"""Parts of timelines for tests: files as ``trace record`` writes them."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

BEGAN = 1_700_000_000_000_000_000
COLUMNS = (
    *("kind", "number", "seq", "count", "detail", "peer", "peer2", "tag", "tag2"),
    *("submitted", "begun", "arrived", "waited", "ended"),
)


def column(values: Sequence[int], *, steps: bool = False, width: int = 8) -> dict[str, Any]:
    """Return a column of the file, with signed numbers."""
    wide = np.array(values, np.int64)
    if steps and len(wide):
        wide = np.diff(wide, prepend=0)
    zigzag = (wide.astype(np.int64) << 1) ^ (wide >> 63)
    raw = zigzag.astype(np.uint64).astype(f"<u{width}").tobytes()
    data = base64.b64encode(zlib.compress(raw)).decode()
    return {"width": width, "signed": True, "steps": steps, "data": data}


def kind(operation: str = "all_reduce", **other: Any) -> dict[str, Any]:
    """Return a kind: an all_reduce of float32 in group 1, unless ``other`` says otherwise."""
    made = {
        "group": 1,
        "operation": operation,
        "dtype": "float32",
        "bytes": 4,
        "reduce_op": "SUM",
        "root": None,
        "counted": True,
        "flags": 0,
        "algorithm": "chunks",
        "outcome": "ok",
    }
    assert other.keys() <= made.keys(), other
    return {**made, **other}


def rank(
    number: int,
    size: int,
    rows: Sequence[Mapping[str, int]],
    kinds: Sequence[Mapping[str, Any]] | None = None,
    **other: Any,
) -> dict[str, Any]:
    """Return a rank of the file.

    Args:
        rows: of each operation its columns, 0 if it does not name one; ``submitted`` is in
            nanoseconds after BEGAN, and times after it are 1 plus those since ``submitted``.
    """
    values = {name: [row.get(name, 0) for row in rows] for name in COLUMNS}
    values["submitted"] = [BEGAN + at for at in values["submitted"]]
    made = {
        "rank": number,
        "size": size,
        "pid": 1000 + number,
        "job": "00000000000000aa",
        "generation": 0,
        "state": "running",
        "began": BEGAN,
        "taken": BEGAN + 10**9,
        "ended": 0,
        "lost": 0,
        "thinned": 0,
        "damaged": 0,
        "problem": "",
        "groups": [{"id": 1, "key": "07", "rank": number, "ranks": list(range(size))}],
        "kinds": list(kinds or [kind()]),
        "count": len(rows),
        "columns": {
            name: column(values[name], steps=name in ("number", "submitted")) for name in COLUMNS
        },
    }
    assert other.keys() <= made.keys(), other
    return {**made, **other}


def part(*ranks: Mapping[str, Any], **other: Any) -> dict[str, Any]:
    """Return the file of a host with these ranks."""
    made = {
        "ranks": list(ranks),
        "format": "paddlempi-timeline",
        "version": 1,
        "host": "here",
        "boot": "b",
        "problems": [],
        "notes": [],
    }
    assert other.keys() <= made.keys(), other
    return {**made, **other}


def write(path: Path, made: Mapping[str, Any]) -> Path:
    """Write a part; return its path."""
    path.write_text(json.dumps(made, separators=(",", ":")))
    return path
