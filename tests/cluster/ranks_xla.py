"""XLA's calls over nodes, where the library copies its tensors: all, rows, and some processes."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))

import numpy as np
import paddlempi as dist
import ranks_report
from paddlempi import _native
from xla_library import MPI

dist.init_process_group("mpi", timeout=60)
rank, size = dist.get_rank(), dist.get_world_size()
mpi = MPI(rank, size, 10.0)
wrong = []


def check(name: str, right: object) -> None:
    """Note what is wrong."""
    if not right:
        wrong.append(name)


world = mpi.split(0, rank)
check("place", mpi.place(world) == (rank, size))
byte, of = mpi.constant("BYTE"), mpi.constant("DOUBLE")
for n in (1, 5, 100_000, 3_000_000):
    x = np.arange(n, dtype=np.float64) + rank
    for _ in range(2):  # the second call finds the copies of the first
        total = size * np.arange(n) + size * (size - 1) / 2
        check(f"all_reduce {n}", (mpi.all_reduce(world, x) == total).all())
    gathered = np.empty((size, n))
    mpi.call("Allgather", x, n, of, gathered, n, of, world)
    check(f"all_gather {n}", (gathered == np.arange(n) + np.arange(size)[:, None]).all())
    part, counts = np.empty(n), np.full(size, n, np.int32)
    sums = mpi.constant("SUM")
    mpi.call("Reduce_scatter", np.tile(x, size), part, counts, of, sums, world)
    check(f"reduce_scatter {n}", (part == total).all())
    to, come = (rank + 1) % size, (rank - 1) % size
    here = np.empty(n)
    mpi.call("Sendrecv", x, 8 * n, byte, to, 0, here, 8 * n, byte, come, 0, world, None)
    check(f"sendrecv {n}", (here == np.arange(n) + come).all())

row = mpi.split(0, 0) if rank == 0 else mpi.split(1, rank - 1)
check("row", mpi.all_reduce(row, np.array([1.0])) == (1 if rank == 0 else size - 1))

mpi.library.paddlempi_trampoline_start(
    ctypes.c_void_p(_native.core().functions()), rank, size, ctypes.c_double(1.0)
)
if rank > 0:
    try:
        mpi.all_reduce(mpi.split(1, rank - 1), np.zeros(1))
        wrong.append("some")
    except RuntimeError as error:
        check(str(error), f"{size - 1} of {size} processes came" in str(error))
dist.barrier()
check("after", mpi.all_reduce(mpi.split(0, rank), np.array([1.0])) == size)
ranks_report.write({"rank": rank, "wrong": wrong})
