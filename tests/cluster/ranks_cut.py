"""all_reduce after all_reduce until one fails, for the test unplugs a host; reports the failure."""

from __future__ import annotations

import time
from datetime import timedelta

import numpy as np
import paddlempi as dist
import ranks_report

LIMIT = 2.0  # seconds


def all_reduces() -> None:
    x = np.zeros(4, np.float32)
    while True:
        dist.all_reduce(x)
        ranks_report.write({"rank": dist.get_rank(), "error": None})  # it is under way
        time.sleep(0.05)


def main() -> None:
    dist.init_process_group(timeout=timedelta(seconds=LIMIT))
    ranks_report.write({"rank": dist.get_rank()} | ranks_report.error_of(all_reduces))
    time.sleep(1)  # an end without Finalize may end the others, which still have to report


main()
