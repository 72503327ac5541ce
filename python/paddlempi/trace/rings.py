"""The traces of all ranks of a job: what ``trace dump`` and PADDLEMPI_TRACE have written.

docs/my-job-hangs.md describes the files. They are checked when they are read: a missing or wrong
field is an error that names the file.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Group", "Operation", "Ring", "TraceError", "checked", "read_file", "read_folder"]

VERSION = 1


class TraceError(Exception):
    """A folder or a file that is no trace."""


@dataclasses.dataclass(frozen=True)
class Group:
    """A group, as one of its members has recorded it.

    Attributes:
        id: number of the group in the process.
        key: the same on all members. Two groups of the same ranks have different keys.
        rank: rank of the process in the group.
        ranks: the world rank of every member.
    """

    id: int
    key: str
    rank: int
    ranks: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of one rank. Times are nanoseconds since 1970, None if it did not come so far.

    Attributes:
        number: counts the operations of the process, in the order of their submission.
        group: number of the group in the process.
        seq: number of a collective in its group; None for a message, and before its turn.
        root: rank of the group; None if the operation has none.
        detail: a hash of what else must be the same on all members.
        refusing: the rank takes part in the arrival only, because its own arguments are wrong.
        peers: of a message: ranks of the group, -1 for any. First that of the send.
        algorithm: known once all members have come.
        begun: a collective was announced; MPI was called for a message.
        arrived: all members have come. Not recorded if that took less than some microseconds.
        outcome: "ok" or the kind of the error; None while the operation is under way.
        phase, rail, partner: of a collective over nodes, which works in phases: the last phase, the
            rail, and the rank of the group that was awaited in it.
        waited: the caller of an asynchronous operation began to wait, if it had not ended.
        share: bytes that the rank has in a collective whose members have different ones.
    """

    number: int
    group: int
    seq: int | None
    operation: str
    dtype: str | None
    count: int
    reduce_op: str | None
    root: int | None
    detail: str
    message: bool
    is_async: bool
    refusing: bool
    peers: tuple[int, ...] | None
    tags: tuple[int, ...] | None
    algorithm: str | None
    submitted: int
    begun: int | None
    arrived: int | None
    ended: int | None
    outcome: str | None
    phase: str | None = None
    rail: int | None = None
    partner: int | None = None
    waited: int | None = None
    share: int | None = None

    def moves(self) -> bool:
        """Whether all members of the collective have come, as this rank has seen."""
        return self.arrived is not None or self.algorithm is not None

    def signature(self) -> tuple[object, ...]:
        """What must be the same on all members."""
        return (self.operation, self.dtype, self.reduce_op, self.root, self.count, self.detail)


@dataclasses.dataclass(frozen=True)
class Ring:
    """What one rank has recorded.

    Attributes:
        boot: of the kernel. Ranks with the same one share their clock.
        state: of the process when the trace was taken: running, stopped, ended.
        began, taken: when the process was initialised, and when the trace was taken.
        not_recorded: operations that found no room in the ring.
        damaged: entries of the ring that were none.
        job: the same for all ranks of a job, and another one for each job; "" in older traces.
        generation: how often the world was reformed before it became this one.
        python: of each thread, the main thread first, its stack as ``FILE:LINE in NAME``, the
            innermost frame first; empty if it was not read.
    """

    rank: int
    size: int
    host: str
    boot: str
    pid: int
    state: str
    began: int
    taken: int
    not_recorded: int
    damaged: int
    groups: tuple[Group, ...]
    operations: tuple[Operation, ...]
    job: str = ""
    generation: int = 0
    python: tuple[tuple[str, ...], ...] = ()

    def under_way(self) -> Iterator[Operation]:
        """Yield the operations that have not ended, in the order of their submission."""
        return (o for o in self.operations if o.ended is None)


def read_folder(folder: Path) -> dict[int, Ring]:
    """Read the files ``rank-N.json`` of a folder.

    Where ``trace dump`` has found several jobs, each has a folder ``job-...`` in that folder. On
    another host of the job it may have found only one.

    Returns:
        The trace of every rank that has one, by rank.

    Raises:
        TraceError: the folder has none, one is not a trace, or they are of different jobs.
    """
    if not folder.is_dir():
        raise TraceError(f"{folder} is no folder")
    rings = _files_of(folder)
    folders = sorted(path for path in folder.glob("job-*") if path.is_dir())
    if not rings and len(folders) > 1:
        raise TraceError(
            f"{folder} has traces of {len(folders)} jobs; name the folder of one: "
            f"{', '.join(map(str, folders))}"
        )
    for more in folders:
        if not rings or more.name in {f"job-{ring.job}" for ring in rings.values()}:
            rings = {**_files_of(more), **rings}
    if not rings:
        raise TraceError(f"{folder} has no trace: no file rank-0.json or alike")
    sizes = sorted({ring.size for ring in rings.values()})
    jobs = {ring.job for ring in rings.values()}
    if len(sizes) > 1:
        raise TraceError(f"{folder} has traces of jobs of {sizes} ranks; put one job into a folder")
    if len(jobs) > 1:
        raise TraceError(f"{folder} has traces of {len(jobs)} jobs; put one job into a folder")
    return dict(sorted(rings.items()))


def _files_of(folder: Path) -> dict[int, Ring]:
    """Read the files in a folder, without those of folders in it."""
    rings = {}
    for path in sorted(folder.glob("rank-*.json")):
        ring = read_file(path)
        if path.name != f"rank-{ring.rank}.json":
            raise TraceError(f"{path}: it is the trace of rank {ring.rank}")
        rings[ring.rank] = ring
    return rings


def read_file(path: Path) -> Ring:
    """Read the file of a rank.

    Raises:
        TraceError: it is no trace, or of another version.
    """
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: {error}") from error
    return checked(data, str(path))


def checked(data: object, path: str) -> Ring:
    """Return the trace that an object of JSON is.

    Args:
        path: where it is from, for the errors.

    Raises:
        TraceError: it is no trace.
    """
    if not isinstance(data, dict) or data.get("format") != "paddlempi-trace":
        raise TraceError(f"{path} is no trace of paddlempi")
    if data.get("version") != VERSION:
        raise TraceError(f"{path}: its version is {data.get('version')!r}, not {VERSION}")
    try:
        ring = _made(Ring, data)
        for rank in (ring.rank, *(rank for group in ring.groups for rank in group.ranks)):
            if not 0 <= rank < ring.size:
                raise _WrongField(f"it names rank {rank} of {ring.size}")
    except _WrongField as error:
        raise TraceError(f"{path}: {error}") from None
    return ring


class _WrongField(Exception):
    pass


# Fields whose name in the files is a word of Python.
_NAMES = {"is_async": "async"}

_Made = typing.TypeVar("_Made")


def _made(kind: type[_Made], data: object) -> _Made:
    """Make a dataclass of a JSON object, whose fields must have the declared types."""
    if not isinstance(data, Mapping):
        raise _WrongField(f"{data!r} is no {kind.__name__.lower()}")
    values = {}
    for name, wanted in typing.get_type_hints(kind).items():
        key = _NAMES.get(name, name)
        if key not in data:
            if hasattr(kind, name):  # it has a default
                continue
            raise _WrongField(f"the {kind.__name__.lower()} has no {key}")
        values[name] = _value(key, wanted, data[key])
    return kind(**values)


def _value(key: str, wanted: Any, value: object) -> object:
    if isinstance(wanted, types.UnionType):  # of a type and None
        return None if value is None else _value(key, typing.get_args(wanted)[0], value)
    if typing.get_origin(wanted) is tuple:
        if not isinstance(value, list):
            raise _WrongField(f"{key} is {value!r}, which is no list")
        return tuple(_value(key, typing.get_args(wanted)[0], item) for item in value)
    if dataclasses.is_dataclass(wanted):
        return _made(typing.cast("type[Any]", wanted), value)
    if type(value) is not wanted:
        raise _WrongField(f"{key} is {value!r}, which is no {wanted.__name__}")
    return value
