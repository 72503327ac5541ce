"""Traces in the form that torch's analyser reads: ``torch.distributed.flight_recorder.fr_trace``.

It reads one pickle a rank, of dicts, lists, strings and numbers. It knows the collectives of NCCL,
by names with the prefix of a backend that it knows, and pairs them by their number in the group.
Scans are not among them, and messages are paired only inside of batches: both are left out.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...trace.elements import elements
from ...trace.rings import Operation, Ring
from .judge import Groups

__all__ = ["write_pickles"]

_VERSION = "2.10"

_NAMES = {
    "all_reduce_coalesced": "allreduce_coalesced",
    **{
        name: name
        for name in (
            "barrier",
            "broadcast",
            "all_reduce",
            "reduce",
            "all_gather",
            "gather",
            "scatter",
            "reduce_scatter",
            "all_to_all",
        )
    },
}


def write_pickles(rings: Mapping[int, Ring], prefix: str) -> list[Path]:
    """Write a file ``prefix`` + rank for every rank; make its folder if need be.

    Returns:
        The paths.
    """
    groups = Groups(rings)
    names = {key: str(i) for i, key in enumerate(groups.collectives)}
    entries: dict[int, list[tuple[int, dict[str, Any]]]] = {rank: [] for rank in rings}
    for key, numbered in groups.collectives.items():
        # The analyser wants to begin with the same collective on all ranks.
        first = {r: min(n for n, came in numbered.items() if r in came) for r in _who(numbered)}
        for seq, came in numbered.items():
            if seq < max(first.values()):
                continue
            for rank, operation in came.items():
                if operation.operation in _NAMES and not operation.refusing:
                    entry = _entry(operation, seq, names[key], len(key[1]))
                    entries[rank].append((operation.number, entry))
    paths = []
    for rank in rings:
        made = [entry for _, entry in sorted(entries[rank], key=lambda e: e[0])]
        for i, entry in enumerate(made):
            entry["record_id"] = entry["op_id"] = i
        config = {
            names[key]: {"name": names[key], "desc": _desc(names[key]), "ranks": str(list(key[1]))}
            for key in names
            if rank in key[1]
        }
        path = Path(f"{prefix}{rank}")
        path.parent.mkdir(parents=True, exist_ok=True)
        data = {"version": _VERSION, "pg_config": config, "pg_status": {}, "entries": made}
        path.write_bytes(pickle.dumps(data, protocol=4))
        paths.append(path)
    return paths


def _who(numbered: Mapping[int, Mapping[int, Operation]]) -> set[int]:
    return {rank for came in numbered.values() for rank in came}


def _desc(name: str) -> str:
    return "default_pg" if name == "0" else "undefined"


def _entry(operation: Operation, seq: int, group: str, size: int) -> dict[str, Any]:
    sent, received = elements(operation.operation, operation.count, size)
    dtypes = [operation.dtype or "float32"]
    if operation.outcome == "ok":
        state = "completed"
    else:
        state = "started" if operation.moves() else "scheduled"
    return {
        "pg_id": int(group),
        "process_group": (group, _desc(group)),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": f"nccl:{_NAMES[operation.operation]}",
        "input_sizes": [[sent]],
        "output_sizes": [[received]],
        "input_dtypes": dtypes,
        "output_dtypes": dtypes,
        "state": state,
        "time_created_ns": operation.submitted,
        "time_discovered_started_ns": operation.arrived or operation.begun,
        "time_discovered_completed_ns": operation.ended,
        "duration_ms": None,
        "retired": operation.ended is not None,
        "timeout_ms": 0,
        "frames": [],
    }
