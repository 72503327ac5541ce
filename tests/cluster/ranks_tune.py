"""Begins with a table of ways, argv[2], that only rank 0 has, and reports what calls took.

argv[3] are the bytes of a call, and argv[4] says how many there are.
"""

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
for _ in range(int(sys.argv[4])):
    dist.all_reduce(tensor)
    ways.append(_native.control("group_info", group=0)["way"])
ranks_report.write(
    {
        "rank": dist.get_rank(),
        "ways": ways,
        "sum": float(tensor[-1]),
        "tuned": [row for row in _native.control("group_info", group=0)["tuned"] if row["tuned"]],
        "rows": _native.control("info")["tuning"]["rows"],
    }
)
dist.destroy_process_group()
