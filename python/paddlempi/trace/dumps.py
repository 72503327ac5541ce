"""Read what ranks have recorded last: folders of ``trace dump`` and PADDLEMPI_TRACE."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from . import rings
from .model import ASYNC, MESSAGE, REFUSING, Rank
from .parts import Kind, RankPart

__all__ = ["DumpError", "read_folder"]


class DumpError(Exception):
    """A folder without a trace that can be read."""


def read_folder(folder: Path, warnings: list[str]) -> Iterator[RankPart]:
    """Read the files ``rank-N.json`` of a folder, and of folders ``job-...`` in it.

    Args:
        folder: where ``trace dump`` has put them.
        warnings: gets a sentence for each file that cannot be read.

    Raises:
        DumpError: there is no such file.
    """
    files = sorted([*folder.glob("rank-*.json"), *folder.glob("job-*/rank-*.json")])
    if not files:
        raise DumpError(f"{folder} has neither a file of trace record nor a trace, rank-0.json")
    for file in files:
        try:
            yield _of_ring(rings.read_file(file))
        except rings.TraceError as error:
            warnings.append(str(error))


def _of_ring(ring: rings.Ring) -> RankPart:
    rank = Rank(
        rank=ring.rank,
        size=ring.size,
        host=ring.host,
        boot=ring.boot,
        pid=ring.pid,
        state=ring.state,
        began=ring.began,
        taken=ring.taken,
        lost=ring.not_recorded,
        job=ring.job,
        generation=ring.generation,
        ended=ring.taken if ring.state == "ended" else 0,
    )
    kinds: dict[Kind, int] = {}
    columns: dict[str, list[int]] = {name: [] for name in _COLUMNS}
    for operation in ring.operations:
        kind = Kind(
            group=operation.group,
            operation=operation.operation,
            dtype=operation.dtype,
            nbytes=_bytes_of(operation.dtype),
            reduce_op=operation.reduce_op,
            root=operation.root,
            counted=True,
            flags=ASYNC * operation.is_async
            | MESSAGE * operation.message
            | REFUSING * operation.refusing,
            algorithm=operation.algorithm,
            outcome=operation.outcome,
        )
        peers, tags = _two(operation.peers), _two(operation.tags)
        values = {
            "kind": kinds.setdefault(kind, len(kinds)),
            "number": operation.number,
            "seq": operation.seq or 0,
            "count": operation.count,
            "peer": peers[0],
            "peer2": peers[1] if operation.share is None else operation.share + 1,
            "tag": tags[0],
            "tag2": tags[1],
            "submitted": operation.submitted,
            "begun": operation.begun or 0,
            "arrived": operation.arrived or 0,
            "waited": operation.waited or 0,
            "ended": operation.ended or 0,
        }
        for name, value in values.items():
            columns[name].append(min(max(value, -(1 << 63)), (1 << 63) - 1))
    arrays = {name: np.array(values, np.int64) for name, values in columns.items()}
    details = [_unsigned(operation.detail) for operation in ring.operations]
    arrays["detail"] = np.array(details, np.uint64).view(np.int64)
    groups = {group.id: (group.key, group.ranks) for group in ring.groups}
    return RankPart(rank, groups, list(kinds), arrays)


_COLUMNS = (
    *("kind", "number", "seq", "count", "peer", "peer2", "tag", "tag2"),
    *("submitted", "begun", "arrived", "waited", "ended"),
)


def _two(values: Sequence[int] | None) -> tuple[int, int]:
    """Peers or tags of a message, 0 of a collective, as columns have them."""
    if values is None:
        return 0, 0
    first, second = (*values, -1, -1)[:2]
    return tuple(min(max(v, -(1 << 31)), (1 << 31) - 1) for v in (first, second))  # type: ignore


def _unsigned(detail: str) -> int:
    try:
        return int(detail, 16) & ((1 << 64) - 1)
    except ValueError:
        return 0


def _bytes_of(dtype: str | None) -> int:
    """Bytes of an element of a dtype; 0 of none, and of one that this version does not know."""
    if dtype is None:
        return 0
    try:
        return np.dtype(_AS_NUMPY.get(dtype, dtype)).itemsize
    except TypeError:
        return 0


_AS_NUMPY = {"bfloat16": "float16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
