"""Whether a machine that was measured is the one on which this job runs."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .machine import Machine, processor

__all__ = ["Place", "difference", "mpi_name", "place", "resident"]


class Place(NamedTuple):
    """What one rank knows of where it runs.

    Attributes:
        processor: its name.
        mpi: its name and version; "" without MPI; None before init.
        node: the number of the rank's node; None before init.
        cpus: the numbers of those that this rank may use.
    """

    processor: str
    mpi: str | None
    node: int | None
    cpus: tuple[int, ...]


def mpi_name(found: Any) -> str:
    """Return an MPI's name and version, out of the core's "info". Some write more into it."""
    if not found:
        return ""
    version: str = found["version"].splitlines()[0].partition(",")[0].strip()
    return version if version.startswith(found["name"]) else f"{found['name']} {version}"


def resident() -> int:
    """Return the bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def place() -> Place:
    """Return where this rank runs. Local; also before init."""
    from .. import _native

    core = _native.control("info")
    begun = bool(core["node"])
    return Place(
        processor(),
        mpi_name(core["mpi"]) if begun else None,
        core["node"][core["rank"]] if begun else None,
        tuple(sorted(os.sched_getaffinity(0))),
    )


def difference(machine: Machine, places: Sequence[Place]) -> str:
    """Return by what a machine differs from that of a job's ranks; "" if by nothing.

    CPUs and MPI count where all ranks have begun: a rank alone does not know the CPUs of others.
    """
    cpus: dict[int, set[int]] = {}
    for rank, one in enumerate(places):
        if one.processor != machine.processor:
            return (
                f"its processor is {machine.processor!r}, and that of rank {rank} is "
                f"{one.processor!r}"
            )
        if one.mpi is not None and one.mpi != machine.mpi:
            return f"its mpi is {machine.mpi!r}, and that of rank {rank} is {one.mpi!r}"
        if one.node is not None:
            cpus.setdefault(one.node, set()).update(one.cpus)
    least = min(map(len, cpus.values()), default=machine.cpus)
    if least != machine.cpus and all(one.node is not None for one in places):
        return f"a node has cpus={machine.cpus} there, and the ranks of a node here may use {least}"
    return ""
