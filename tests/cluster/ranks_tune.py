"""Begins with a table of ways, argv[2], that only rank 0 has, and reports what a call took."""

from __future__ import annotations

import os
import sys

import numpy as np
import paddlempi as dist
import ranks_report
from paddlempi import _native
from paddlempi_bootstrap import mpi_launcher

place = mpi_launcher.find()
assert place is not None
os.environ["PADDLEMPI_TUNED"] = sys.argv[2] if place.rank == 0 else "/absent"
dist.init_process_group()
tensor = np.ones(int(sys.argv[3]) // 4, np.float32)
ways = []
for _ in range(3):
    dist.all_reduce(tensor)
    ways.append(_native.control("group_info", group=0)["way"])
ranks_report.write(
    {
        "rank": dist.get_rank(),
        "ways": ways,
        "sum": float(tensor[-1]),
        "rows": _native.control("info")["tuning"]["rows"],
    }
)
dist.destroy_process_group()
