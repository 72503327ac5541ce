"""Groups and worlds that come and go leave no memory, mapping or descriptor."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median_high
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from contract import ALL
from paddlempi import _native
from ranks_tools import works

MORE = 1.01
"""What a process may hold in the last third of the rounds, against the second."""

SLACK = {"mappings": 8, "descriptors": 1, "threads": 2}
"""What it may hold beside that: an allocator maps an arena, or the stack of a thread."""


def held(dist: ModuleType) -> dict[str, int]:
    """Return what this process holds, when all ranks have freed their groups."""
    dist.barrier()
    # What the others still read when a group is freed is given back when the next one is made.
    dist.destroy_process_group(dist.new_group())
    gc.collect()
    shared, descriptors = {}, os.listdir("/proc/self/fd")
    for name in descriptors:
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:"):
                status = os.stat(f"/proc/self/fd/{name}")
                shared[status.st_ino] = status.st_blocks * 512
        except OSError:
            continue  # the descriptor of the folder itself
    mappings = Path("/proc/self/maps").read_text()
    return {
        "bytes of the heap": _native.control("info")["heap"]["used"],
        "bytes of shared memory": sum(shared.values()),
        "descriptors": len(descriptors),
        "mappings": mappings.count("\n"),
        "mappings of shared memory": mappings.count("/memfd:"),
        "threads": len(os.listdir("/proc/self/task")),
        "resident bytes": int(Path("/proc/self/statm").read_text().split()[1]) << 12,
    }


def check(dist: ModuleType, rounds: int, call: Callable[[int], None], resident: bool) -> None:
    """Check that ``call``, once a round, leaves nothing.

    Args:
        resident: look at the memory of the process, too, which allocators let grow at first.
    """
    samples = []
    for number in range(rounds):
        call(number)
        if number % (rounds // 30) == 0:
            samples.append(held(dist))
    before, after = samples[10:20], samples[20:30]
    for name in samples[0]:
        if name != "resident bytes" or resident:
            seen = [median_high(sample[name] for sample in part) for part in (before, after)]
            assert seen[1] <= MORE * seen[0] + SLACK.get(name, 0), (name, seen, samples[0])


@pytest.fixture
def narrow() -> Iterator[None]:
    """Files of this process may grow by 128 MiB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    longest = max(
        os.stat(f"/proc/self/fd/{name}").st_size
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}")
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (longest + (128 << 20), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def collectives(dist: ModuleType, rank: int, size: int) -> list[Callable[[Any], object]]:
    """Return calls of each way within a node. In most of them some rank is done before others."""
    short, longer, long = (np.ones(n, np.float32) for n in (3, 3_000, 500_000))
    shared, field = dist.empty(30_000), dist.empty((3_000, 8))
    shared[:] = field[:] = 1
    parts = [longer] * size if rank == 0 else None

    def ring(group: Any) -> None:
        into = np.empty_like(longer)
        dist.sendrecv(longer, (rank + 1) % size, into, (rank - 1) % size, group=group)

    return [
        lambda group: dist.broadcast(longer, 0, group=group),
        lambda group: dist.broadcast(long, size - 1, group=group),
        lambda group: dist.scatter(np.empty_like(longer), parts, 0, group=group),
        lambda group: dist.all_gather_into_tensor(np.empty(3 * size, np.float32), short, group),
        lambda group: dist.broadcast(shared, 0, group=group),
        lambda group: dist.Cartesian([size], True, group).halo_exchange(field),
        ring,
    ]


@pytest.mark.usefixtures("narrow")
def test_groups(dist: ModuleType, rank: int, size: int) -> None:
    calls = collectives(dist, rank, size)

    def one(number: int) -> None:
        group = dist.new_group(list(range(size))[:: -1 if number % 2 else 1])
        calls[number % len(calls)](group)
        dist.destroy_process_group(group)

    check(dist, 3_000 if ALL else 150, one, resident=ALL)


@pytest.mark.mpi(ranks=2)
def test_worlds(dist: ModuleType, rank: int, size: int) -> None:
    calls = collectives(dist, rank, size)

    def one(number: int) -> None:
        group = dist.new_group(list(range(size)))
        calls[number % len(calls)](group)
        with dist.Window(100, np.float32, group) as window:
            window.put(np.ones(10, np.float32), (rank + 1) % size)
        dist.destroy_process_group()
        dist.init_process_group("mpi")
        works()

    check(dist, 300 if ALL else 30, one, resident=ALL)
