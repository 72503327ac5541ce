"""The last rank does not join an all_reduce. The other ranks report their errors."""

from __future__ import annotations

import time
from datetime import timedelta

import numpy as np
import paddlempi as dist
import ranks_report

LIMIT = 1.5  # seconds


def main() -> None:
    dist.init_process_group(timeout=timedelta(seconds=LIMIT))
    x = np.zeros(4, np.float32)
    dist.all_reduce(x)
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(LIMIT + 2.5)
        return
    started = time.monotonic()
    facts = ranks_report.error_of(lambda: dist.all_reduce(x))
    facts |= {
        "rank": dist.get_rank(),
        "seconds": time.monotonic() - started,
        "afterwards": ranks_report.error_of(lambda: dist.all_reduce(x)),
    }
    ranks_report.write(facts)
    time.sleep(1)  # a rank that ends without Finalize may end the others before they report


main()
