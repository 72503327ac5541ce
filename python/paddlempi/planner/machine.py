"""A machine, as ``python -m paddlempi bench --calibrate machine.json`` has measured it.

All times are in seconds, and all of the slowest rank. A :class:`Range` is the median with the
quartiles of what was measured.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import ArgumentError

__all__ = ["FORMAT", "Collective", "Compute", "Machine", "Range", "Step", "processor", "read"]

FORMAT = 1
"""Of the file. A reader refuses others."""

_MOST_BYTES = 64 << 20
_MOST = sys.float_info.max  # else it is no number, or one of Python's that no float can hold

_Row = TypeVar("_Row")


class Range(NamedTuple):
    """A number with its lower and its upper quartile."""

    middle: float
    low: float
    high: float

    def times(self, factor: float) -> Range:
        """Return it multiplied by a number."""
        return Range(self.middle * factor, self.low * factor, self.high * factor)

    def plus(self, other: Range) -> Range:
        """Return the sum. The errors add up, as those of one machine are not independent."""
        return Range(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True)
class Collective:
    """An operation of a group of ``nodes`` x ``ranks`` members, on as many nodes.

    Attributes:
        operation: "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all" or
            "send", a message from one rank to another.
        nodes, ranks: nodes of the group, and members on each. All groups of this shape in the
            machine's world were busy at once, as those of a mesh are.
        bytes: of the larger side of a call on one rank.
        seconds: until the slowest member had the result.
        caller: seconds until an asynchronous call returned to its caller.
        way: the algorithm that was taken.
    """

    operation: str
    nodes: int
    ranks: int
    bytes: int
    seconds: Range
    caller: Range
    way: str = ""


@dataclass(frozen=True)
class Compute:
    """What a rank computes in a second.

    Attributes:
        flops: float32 operations of a matrix product.
        bytes: of a copy larger than the caches: those read and those written.
        steps: of training mlp-16M, without communication.
    """

    flops: Range
    bytes: Range
    steps: Range


@dataclass(frozen=True)
class Step:
    """The training steps of one model on all ranks, cut in one way.

    Attributes:
        kind: "ddp", "fsdp2", "hsdp" or "tp".
        model: its name.
        nodes, ranks: the shape of the job.
        units: how many collectives a step has.
        bytes: of all of them, of the larger side of each.
        plain: the step of the model without the wrapper on every rank at once (of "tp": that of
            the whole model, on the whole batch, so it computes as much as all shards together).
        silent: that of the wrapped model with a group that moves nothing.
        step: that of the wrapped model.
        alone: the step's collectives, one after the other, and nothing else.
    """

    kind: str
    model: str
    nodes: int
    ranks: int
    units: int
    bytes: int
    plain: Range
    silent: Range
    step: Range
    alone: Range


@dataclass(frozen=True)
class Machine:
    """What was measured of a cluster, by a job of ``nodes`` x ``ranks``.

    Attributes:
        made: when, in ISO 8601.
        version: of paddlempi.
        processor: its name; "" if Linux does not know it.
        cpus: which a node's ranks may use.
        memory: bytes of a node that its ranks may use.
        mpi: its name and version; "" without MPI.
        nodes, ranks: the shape of the job.
        threads: with which a rank computes.
        rss: bytes of a rank's process that has begun a group and holds no tensors.
        alone: what a rank computes while the others sleep.
        together: what it computes while all ranks do.
        collectives, steps: what was measured.
        tuned: the rows of the core's tuner, as ``python -m paddlempi tune`` writes them.
    """

    made: str
    version: str
    processor: str
    cpus: int
    memory: int
    mpi: str
    nodes: int
    ranks: int
    threads: int
    rss: int
    alone: Compute
    together: Compute
    collectives: tuple[Collective, ...]
    steps: tuple[Step, ...]
    tuned: tuple[dict[str, Any], ...] = ()

    def write(self, file: str) -> None:
        """Write the file as a whole: who reads it sees the old one or the new one.

        Raises:
            OSError: it cannot be written.
        """
        partial = f"{file}.{os.getpid()}"
        try:
            text = json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1)
            Path(partial).write_text(text)
            os.replace(partial, file)
        except OSError:
            Path(partial).unlink(missing_ok=True)
            raise


def processor() -> str:
    """Return the name of this host's processor; "" if Linux does not know it, as on some ARMs."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else ""


def read(file: str) -> Machine:
    """Read a file of ``bench --calibrate``.

    Raises:
        ArgumentError: it is missing, too long, damaged, or of another format.
    """
    try:
        with open(file, "rb") as stream:
            text = stream.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ArgumentError(
            f"machine: {file}: {error.strerror}; python -m paddlempi bench --calibrate writes it"
        ) from None
    if len(text) > _MOST_BYTES:
        raise ArgumentError(f"machine: {file} has more than {_MOST_BYTES} bytes")
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or "format" not in found:
            raise ValueError("it is no file of bench --calibrate")
        if found["format"] != FORMAT:
            raise ValueError(f"its format is {found['format']!r}, not {FORMAT}: calibrate again")
        machine: Machine = _made(Machine, found, "")
    except (ValueError, RecursionError) as error:  # also of JSON and of UTF-8
        raise ArgumentError(f"machine: {file} cannot be read: {error}") from None
    return machine


_NESTED = {
    ("Machine", "alone"): Compute,
    ("Machine", "together"): Compute,
    ("Machine", "collectives"): Collective,
    ("Machine", "steps"): Step,
}


def _made(kind: type[_Row], given: Any, place: str) -> _Row:
    """Make a dataclass of plain data, and check every field. ``place`` says where it stands."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{place or 'it'} is no object")
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        where = f"{place}.{field.name}".lstrip(".")
        if field.name not in given:
            raise ValueError(f"{where} is missing")
        value = given[field.name]
        nested = _NESTED.get((kind.__name__, field.name))
        if nested is not None and str(field.type).startswith("tuple"):
            rows = enumerate(_list(value, where))
            values[field.name] = tuple(_made(nested, row, f"{where}[{at}]") for at, row in rows)
        elif nested is not None:
            values[field.name] = _made(nested, value, where)
        else:
            values[field.name] = _plain(str(field.type), value, where)
    return kind(**values)


def _plain(kind: str, value: Any, where: str) -> Any:
    if kind == "str":
        fits = isinstance(value, str)
    elif kind == "int":
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
    elif kind == "Range":
        numbers = _list(value, where)
        fits = len(numbers) == 3 and all(
            isinstance(x, (int, float)) and not isinstance(x, bool) and 0 <= x <= _MOST
            for x in numbers
        )
        value = Range(*numbers) if fits else value
        fits = fits and value.low <= value.middle <= value.high
        if fits and where.endswith((".flops", ".bytes")) and not value.low:
            raise ValueError(f"{where} is 0: a rank that computes nothing")
    else:  # rows of the tuner, which nothing here reads
        fits, value = True, tuple(_list(value, where))
    if not fits:
        raise ValueError(f"{where} is {str(value)[:60]!r}, which is no {kind}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} is no list")
    return value
