"""Read a part of a timeline: the file that ``trace record`` writes on one host.

A part is a JSON object. The operations of a rank are columns of numbers: base64 of zlib of
little-endian numbers, as gocore/trace/part.go writes them. A part may come from anywhere: a wrong
length, number or name is an error that names the file, and says what is wrong.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .model import ASYNC, MESSAGE, REFUSING, Rank

__all__ = ["VERSION", "Kind", "Part", "PartError", "RankPart", "is_part", "read_part"]

VERSION = 1

_MOST_OPERATIONS = 1 << 28  # of a rank: a column of them has 2 GiB
_MOST_RANKS = 1 << 22
_MOST_MEMBERS = 1 << 24  # of the groups of a part, in all
_COLUMNS = (
    *("kind", "number", "seq", "count", "detail", "peer", "peer2", "tag", "tag2"),
    *("submitted", "begun", "arrived", "waited", "ended"),
)


class PartError(Exception):
    """A file that is no part of a timeline, or a damaged one."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """What many operations of a rank have in common; see OPERATION of model.py.

    Attributes:
        group: number of the group in the process.
        nbytes: bytes of an element, 0 if the operation has no dtype.
        counted: whether the operation's count is a number of elements.
        outcome: None: under way.
    """

    group: int
    operation: str
    dtype: str | None
    nbytes: int
    reduce_op: str | None
    root: int | None
    counted: bool
    flags: int
    algorithm: str | None
    outcome: str | None


@dataclasses.dataclass(frozen=True)
class RankPart:
    """What one rank has recorded.

    Attributes:
        groups: the key and the world ranks of each group, by its number in the process.
        columns: arrays of equal length, by name. ``begun``, ``arrived``, ``waited`` and ``ended``
            are nanoseconds since 1970, as ``submitted`` is; 0: it did not come so far.
    """

    rank: Rank
    groups: Mapping[int, tuple[str, tuple[int, ...]]]
    kinds: Sequence[Kind]
    columns: Mapping[str, npt.NDArray[Any]]


@dataclasses.dataclass(frozen=True)
class Part:
    """What one host has recorded, and what it says about that in sentences."""

    ranks: Sequence[RankPart]
    notes: Sequence[str]


def is_part(path: Path) -> bool:
    """Whether a file looks like a part, as far as its first bytes say."""
    try:
        with path.open("rb") as file:
            return file.read(9) in (b'{"ranks":', b'{"parts":')
    except OSError:
        return False


def read_part(path: Path) -> Part:
    """Read the part of a host, or those of several that ``trace merge`` has put into one file.

    Raises:
        PartError: it is none, is of another version, was cut, or has impossible numbers.
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise PartError(f"{path}: {error}: it was cut, or is no part of a timeline") from None
    parts = data.get("parts", [data]) if isinstance(data, dict) else [data]
    if not isinstance(parts, list) or not parts:
        raise PartError(f"{path} is no part of a timeline of paddlempi")
    read = [_read_one(path, part) for part in parts]
    return Part(
        [rank for one in read for rank in one.ranks], [n for one in read for n in one.notes]
    )


def _read_one(path: Path, data: object) -> Part:
    if not isinstance(data, dict) or data.get("format") != "paddlempi-timeline":
        raise PartError(f"{path} is no part of a timeline of paddlempi")
    if data.get("version") != VERSION:
        raise PartError(
            f"{path}: its version is {data.get('version')!r}, not {VERSION}: "
            "read it with the paddlempi that has written it"
        )
    try:
        host, boot = _get(data, "host", str), _get(data, "boot", str)
        ranks, members = [], 0
        for item in _get(data, "ranks", list):
            ranks.append(_read_rank(item, host, boot))
            members += sum(len(of) for _, of in ranks[-1].groups.values())
            if members > _MOST_MEMBERS:
                raise _Wrong(f"its groups have more than {_MOST_MEMBERS} members")
        notes = [_as(str, note, "a note") for note in _get(data, "notes", list)]
        for problem in _get(data, "problems", list):
            notes.append(_get(_as(dict, problem, "a problem"), "error", str))
    except _Wrong as error:
        raise PartError(f"{path}: {error}") from None
    return Part(ranks, notes)


class _Wrong(Exception):
    pass


def _as(wanted: type[Any], value: object, name: str) -> Any:
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise _Wrong(f"{name} is {str(value)[:50]!r}, which is no {wanted.__name__}")
    return value


def _get(data: Mapping[str, object], name: str, wanted: type[Any]) -> Any:
    if name not in data:
        raise _Wrong(f"{name} is missing")
    return _as(wanted, data[name], name)


def _get_or_none(data: Mapping[str, object], name: str, wanted: type[Any]) -> Any:
    return None if data.get(name) is None else _get(data, name, wanted)


def _whole(data: Mapping[str, object], name: str, least: int, most: int) -> int:
    value: int = _get(data, name, int)
    if not least <= value <= most:
        raise _Wrong(f"{name} is {value}, which is not from {least} to {most}")
    return value


def _read_rank(data: object, host: str, boot: str) -> RankPart:
    item = _as(dict, data, "a rank")
    size = _whole(item, "size", 1, _MOST_RANKS)
    longest = (1 << 63) - 1
    rank = Rank(
        rank=_whole(item, "rank", 0, size - 1),
        size=size,
        host=host,
        boot=boot,
        pid=_whole(item, "pid", 1, 1 << 31),
        state=_get(item, "state", str),
        began=_whole(item, "began", 0, longest),
        taken=_whole(item, "taken", 0, longest),
        lost=_whole(item, "lost", 0, longest),
        job=_get(item, "job", str),
        generation=_whole(item, "generation", 0, longest),
        ended=_whole(item, "ended", 0, longest),
        problem=_get(item, "problem", str),
        thinned=_whole(item, "thinned", 0, longest),
    )
    groups = {}
    for group in _get(item, "groups", list):
        members = _get(_as(dict, group, "a group"), "ranks", list)
        for member in members:
            if not 0 <= _as(int, member, "a member") < size:
                raise _Wrong(f"a group of rank {rank.rank} names rank {member} of {size}")
        groups[_whole(group, "id", 0, longest)] = (_get(group, "key", str), tuple(members))
    kinds = [_read_kind(_as(dict, kind, "a kind")) for kind in _get(item, "kinds", list)]
    count = _whole(item, "count", 0, _MOST_OPERATIONS)
    columns = _get(item, "columns", dict)
    try:
        arrays = {name: _read_column(_get(columns, name, dict), count) for name in _COLUMNS}
    except _Wrong as error:
        raise _Wrong(f"the operations of rank {rank.rank}: {error}") from None
    if count and int(arrays["kind"].max()) >= len(kinds):
        raise _Wrong(f"an operation of rank {rank.rank} has kind {int(arrays['kind'].max())}")
    for name in ("begun", "arrived", "waited", "ended"):
        after = arrays[name]
        arrays[name] = np.where(after > 0, arrays["submitted"] + after - 1, 0)
    return RankPart(rank, groups, kinds, arrays)


def _read_kind(data: Mapping[str, object]) -> Kind:
    return Kind(
        group=_whole(data, "group", 0, (1 << 32) - 1),
        operation=_get(data, "operation", str),
        dtype=_get_or_none(data, "dtype", str),
        nbytes=_whole(data, "bytes", 0, 64),
        reduce_op=_get_or_none(data, "reduce_op", str),
        root=_get_or_none(data, "root", int),
        counted=_get(data, "counted", bool),
        flags=_whole(data, "flags", 0, ASYNC | MESSAGE | REFUSING),
        algorithm=_get_or_none(data, "algorithm", str),
        outcome=_get_or_none(data, "outcome", str),
    )


def _read_column(data: Mapping[str, object], count: int) -> npt.NDArray[np.int64]:
    width = _whole(data, "width", 1, 8)
    if width not in (1, 2, 4, 8):
        raise _Wrong(f"a column has numbers of {width} bytes")
    try:
        packed = base64.b64decode(_get(data, "data", str), validate=True)
        reader = zlib.decompressobj()
        raw = reader.decompress(packed, count * width + 1)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise _Wrong(f"a column cannot be read: {error}") from None
    if len(raw) != count * width:
        more = "more than " if len(raw) > count * width else ""
        raise _Wrong(f"a column has {more}{len(raw)} bytes instead of {count * width}")
    values = np.frombuffer(raw, f"<u{width}").astype(np.uint64)
    if _get(data, "signed", bool):
        values = (values >> np.uint64(1)) ^ (np.uint64(0) - (values & np.uint64(1)))
    if _get(data, "steps", bool):
        values = np.cumsum(values, dtype=np.uint64)
    return values.view(np.int64)
