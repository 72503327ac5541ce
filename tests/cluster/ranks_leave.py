"""Rank 2 ends in the middle of a loop of all_reduce. The others catch the error, and end."""

from __future__ import annotations

import sys
import time

import numpy as np
import paddlempi as dist
import ranks_report

LAST = 20


def main(elements: int) -> None:
    dist.init_process_group()
    rank = dist.get_rank()
    x = np.zeros(elements, np.float32)
    began = time.monotonic()
    try:
        for step in range(LAST + 1):
            if step == LAST and rank == 2:
                ranks_report.write({"rank": rank, "error": ""})
                sys.exit(0)
            began = time.monotonic()
            dist.all_reduce(x)
    except dist.Error as error:
        took = time.monotonic() - began
        what = {"error": type(error).__name__, "ranks": list(error.ranks), "text": str(error)}
        ranks_report.write({"rank": rank, "seconds": took} | what)


main(int(sys.argv[2]))
