"""What operations on long strided tensors take besides the tensors: at most 64 MiB."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from ranks_tools import over_nodes

pytestmark = pytest.mark.mpi(ranks=2)

MIB = 2**20
LENGTH, MOST = 256 * MIB, 64 * MIB
COLUMNS = 2048


def resident() -> int:
    """The bytes of this process in memory that is its own or shared."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(x.split()[1]) for x in lines if x.startswith(("RssAnon", "RssShmem")))


def extra(call: Callable[[], object]) -> int:
    """Call, and return by how much the process was larger meanwhile."""
    before = most = resident()
    over = threading.Event()

    def watch() -> None:
        nonlocal most
        while not over.wait(0.002):
            most = max(most, resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        call()
    finally:
        over.set()
        watcher.join()
    return max(most, resident()) - before


def test_extra_memory(dist: ModuleType, rank: int) -> None:
    rows = LENGTH // 4 // COLUMNS
    whole = np.ones((rows, 2 * COLUMNS), np.float32)
    view = whole[:, ::2]
    other = whole[:, 1::2]
    half = [view[: rows // 2], view[rows // 2 :]]
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(view, dist.ReduceOp.MAX),
        "all_gather": lambda: dist.all_gather(half, other[: rows // 2]),
        "reduce_scatter": lambda: dist.reduce_scatter(
            half[0], [other[: rows // 2]] * 2, dist.ReduceOp.MAX
        ),
        "all_to_all_single": lambda: dist.all_to_all_single(view, other),
        "list": lambda: dist.all_reduce_coalesced(half, dist.ReduceOp.MAX),
        "send": lambda: dist.send(view, 1) if rank == 0 else dist.recv(other, 0),
        "list sent": lambda: dist.send(half, 1) if rank == 0 else dist.recv(view, 0),
        "sendrecv": lambda: dist.sendrecv(view, 1 - rank, other, 1 - rank),
    }
    if over_nodes():  # MPI gets one message: a side packs the whole of it
        for name in ("send", "list sent", "sendrecv"):
            del calls[name]
    for name, call in calls.items():
        dist.barrier()
        assert extra(call) <= MOST, name
    assert (whole == 1).all()
