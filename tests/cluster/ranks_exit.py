"""Rank 1 fails while the other ranks wait in an all_reduce, and reports when it did."""

from __future__ import annotations

import sys
import time

import numpy as np
import paddlempi as dist
import ranks_report


def main(way: str) -> None:
    dist.init_process_group()
    x = np.zeros(4, np.float32)
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        time.sleep(0.5)  # the other ranks wait now
        ranks_report.write({"left": time.time()})
        if way == "exit":
            sys.exit(3)
        raise ValueError("rank 1 gave up")
    dist.all_reduce(x)
    ranks_report.write({"went on": dist.get_rank()})


main(sys.argv[2])
