"""Which CPUs a rank is bound to that ``run -np --bind`` or ``launch(bind=True)`` starts.

The process that starts a rank binds its own thread meanwhile. So a rank is bound from its first
instruction on: libraries that it loads count its CPUs, and their threads inherit them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby, pairwise
from pathlib import Path

from ..errors import UnsupportedError

__all__ = ["bound", "shares"]

_SYSTEM = Path("/sys/devices/system/cpu")


def shares(number: int, cpus: Collection[int], system: Path = _SYSTEM) -> list[list[int]]:
    """Return the CPUs of each of ``number`` ranks, which are neighbours.

    The CPUs of a core stay together, and the cores of a NUMA node and of a socket follow each
    other. Ranks share a core only if there are more ranks than cores, and a CPU only if there are
    more ranks than CPUs: then each has one, and they take the CPUs in turn.

    Args:
        number: at least 1.
        cpus: which may be used, at least one.
        system: where the kernel tells of its CPUs. Without that a CPU is a core of its own.
    """
    place = {cpu: _place(system / f"cpu{cpu}", cpu) for cpu in cpus}
    ordered = sorted(cpus, key=lambda cpu: (place[cpu], cpu))
    units = [list(core) for _, core in groupby(ordered, key=place.__getitem__)]
    if number > len(units):
        units = [[cpu] for cpu in ordered]
    if number > len(units):
        return [units[rank % len(units)] for rank in range(number)]
    cuts = pairwise(rank * len(units) // number for rank in range(number + 1))
    return [[cpu for unit in units[begin:end] for cpu in unit] for begin, end in cuts]


def _place(folder: Path, cpu: int) -> tuple[int, int, int]:
    """Return the socket and the NUMA node of a CPU, and the first CPU of its core."""
    socket, node, first = 0, 0, cpu
    with suppress(OSError, ValueError):
        socket = int((folder / "topology" / "physical_package_id").read_text())
    for path in folder.glob("node[0-9]*"):
        node = int(path.name.removeprefix("node"))
    with suppress(OSError, ValueError):  # as "0-1", or "0,64"
        siblings = (folder / "topology" / "thread_siblings_list").read_text()
        first = int(re.split("[-,]", siblings)[0])
    return socket, node, first


@contextmanager
def bound(cpus: Collection[int] | None, rank: int) -> Iterator[None]:
    """Bind this thread for a while: the rank that it starts meanwhile stays bound.

    Args:
        cpus: None: do nothing.
        rank: which, for the error.

    Raises UnsupportedError if the kernel refuses it, as a sandbox may.
    """
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        raise UnsupportedError(
            f"bind: rank {rank} cannot be bound to the CPUs {list(cpus)} of {sorted(before)}: "
            f"{error}; start the ranks without it"
        ) from None
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
