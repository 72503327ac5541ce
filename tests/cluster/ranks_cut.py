"""Every rank repeats all_reduce until the test cuts a host off, and reports the error."""

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
        ranks_report.write({"rank": dist.get_rank(), "error": None})  # the test waits for these
        time.sleep(0.05)


def main() -> None:
    dist.init_process_group(timeout=timedelta(seconds=LIMIT))
    ranks_report.write({"rank": dist.get_rank()} | ranks_report.error_of(all_reduces))
    time.sleep(1)  # a rank that ends without Finalize may end the others before they report


main()
