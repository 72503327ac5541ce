"""The last rank leaves in order, while the others make a group with it or meet in a barrier."""

from __future__ import annotations

import time

import numpy as np
import paddlempi as dist
import ranks_report


def main() -> None:
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group(list(range(size)))
    dist.all_reduce(np.zeros(4, np.float32))
    if rank == size - 1:
        return
    for name, call in {
        "new_group": lambda: dist.new_group(list(range(size))),
        "monitored_barrier": lambda: dist.monitored_barrier(group),
    }.items():
        started = time.monotonic()
        facts = ranks_report.error_of(call)
        found = facts | {"call": name, "seconds": time.monotonic() - started}
        print(f"rank {rank}: {found}", flush=True)
        if (facts["error"], facts.get("ranks")) != ("PeerLeftError", [size - 1]):
            raise AssertionError(found)
        if found["seconds"] > 4:
            raise AssertionError(found)
        time.sleep(1.5)  # until all have raised: a rank that ends now has left, too


main()
