"""What two ranks of aarch64 do: init, every collective in each way of a node, messages, the heap.

arguments: the file that each rank adds a line to when all of it was right
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import numpy as np
import paddlempi as dist

# Elements of float32 that travel in the announcement, through blocks, and (in the heap) mapped.
LENGTHS = (3, 5_000, 300_001)


def tensor(length: int, value: float, dtype: str, heap: bool) -> np.ndarray:
    """Return a tensor in the heap, which other ranks map, or in ordinary memory."""
    made = dist.empty(length, dtype) if heap else np.empty(length, dtype)
    made[:] = value
    return made


def reductions(rank: int, length: int, dtype: str, heap: bool) -> None:
    """All that reduce. The ranks give 1 and 2."""
    mine = tensor(length, rank + 1, dtype, heap)
    for op, wanted in {"SUM": 3, "PRODUCT": 2, "MIN": 1, "MAX": 2}.items():
        x = tensor(length, rank + 1, dtype, heap)
        dist.all_reduce(x, getattr(dist.ReduceOp, op))
        assert (x == wanted).all(), (op, x)
    x = mine.copy()
    dist.all_reduce_coalesced([x, x2 := mine.copy()])
    assert (x == 3).all() and (x2 == 3).all()
    dist.reduce(x := mine.copy(), 1)
    assert rank != 1 or (x == 3).all(), x
    dist.scan(x := mine.copy())
    assert (x == (1, 3)[rank]).all(), x
    dist.exscan(x := mine.copy())
    assert rank != 1 or (x == 1).all(), x
    both = tensor(2 * length, rank + 1, dtype, heap)
    dist.reduce_scatter_tensor(x, both)
    assert (x == 3).all(), x
    dist.reduce_scatter(x, [mine, mine])
    assert (x == 3).all(), x


def movements(rank: int, length: int, dtype: str, heap: bool) -> None:
    """All that move data only. The ranks give 1 and 2."""
    mine = tensor(length, rank + 1, dtype, heap)
    both = tensor(2 * length, 0, dtype, heap)
    dist.broadcast(x := mine.copy(), 1)
    assert (x == 2).all(), x
    dist.all_gather_into_tensor(both, mine)
    assert (both[:length] == 1).all() and (both[length:] == 2).all(), both
    parts = [np.empty_like(mine), np.empty_like(mine)]
    dist.all_gather(parts, mine)
    assert (parts[0] == 1).all() and (parts[1] == 2).all(), parts
    dist.gather(mine, parts if rank == 0 else None, 0)
    assert (parts[0] == 1).all() and (parts[1] == 2).all(), parts
    dist.scatter(x, [mine * 2, mine * 4] if rank == 0 else None, 0)
    assert (x == (2, 4)[rank]).all(), x
    dist.all_to_all(parts, [mine * 3, mine * 5])
    assert (parts[0] == (3, 5)[rank]).all() and (parts[1] == (6, 10)[rank]).all(), parts
    dist.all_to_all_single(both, np.concatenate([mine * 3, mine * 5]))
    assert (both[:length] == (3, 5)[rank]).all() and (both[length:] == (6, 10)[rank]).all(), both
    dist.barrier()


def messages(rank: int, length: int) -> None:
    """Messages in both directions, with and without a wait."""
    mine, x = np.full(length, rank + 1, "float64"), np.zeros(length)
    if rank == 0:
        dist.send(mine, 1)
        dist.recv(x, 1)
    else:
        dist.recv(x, 0)
        dist.send(mine, 0)
    assert (x == 2 - rank).all(), x
    work = dist.isend(mine * 3, 1 - rank)
    dist.recv(x, 1 - rank)
    work.wait()
    assert (x == 3 * (2 - rank)).all(), x
    dist.sendrecv(mine, 1 - rank, x, 1 - rank)
    assert (x == 2 - rank).all(), x


def main(report: str) -> None:
    """Do all of it, and add a line to the report."""
    dist.init_process_group()
    rank = dist.get_rank()
    assert dist.get_world_size() == 2
    assert platform.machine() == "aarch64"
    for heap in (False, True):
        for length in LENGTHS:
            for dtype in ("float32", "float16", "int64") if length < 300_000 else ("float32",):
                reductions(rank, length, dtype, heap)
                movements(rank, length, dtype, heap)
    for length in (1, 5_000, 300_000):
        messages(rank, length)
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    work = dist.all_reduce(x := np.full(50_000, rank + 1.0), async_op=True)
    work.wait()
    assert (x == 3).all()
    told = subprocess.run([sys.executable, "-c", "print(1)"], stdout=subprocess.PIPE, check=True)
    assert told.stdout == b"1\n"
    with open(report, "a", encoding="utf-8") as file:
        file.write(json.dumps({"rank": rank}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
