"""Every rank reports the state of torch's default group over MPI on several hosts.

Two worlds, one after the other: the second one's MASTER_ADDR is argv[2], which no rank reaches.
"""

from __future__ import annotations

import os
import sys

import paddlempi.torch
import ranks_report
import torch
import torch.distributed as dist

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def variables() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in NAMES}


def world() -> ranks_report.Facts:
    before = variables()
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert type(dist.group.WORLD) is paddlempi.torch.ProcessGroupMPI
    store = dist.distributed_c10d._get_default_store()
    store.set(f"from {rank}", os.uname().nodename)
    x = torch.full((3,), rank + 1.0)
    dist.all_reduce(x)
    facts = {
        "rank": rank,
        "before": before,
        "after": variables(),
        "store": [store.get(f"from {r}").decode() for r in range(size)],
        "sum": x.tolist(),
    }
    dist.barrier()  # rank 0 serves the store until it ends
    dist.destroy_process_group()
    return facts


def main() -> None:
    torch.set_num_threads(1)
    first = world()
    os.environ["MASTER_ADDR"] = sys.argv[2]
    ranks_report.write({"rank": first["rank"], "worlds": [first, world()]})


main()
