"""Rank 0 gives an all_reduce up that others wait in, and the last rank comes late to it.

argv[2] says how: by its own deadline, or by Ctrl-C. The ranks report their errors.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta

import numpy as np
import paddlempi as dist
import ranks_report

LIMIT = 1.5  # seconds until rank 0 gives up: the others have asked it by then
LATE = 3.0


def main(how: str) -> None:
    dist.init_process_group()
    rank, size = dist.get_rank(), dist.get_world_size()
    limit = LIMIT if rank == 0 and how == "deadline" else 300
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=limit))
    x = np.zeros(4, np.float32)
    dist.all_reduce(x, group=group)
    if rank == 0 and how == "interrupt":
        threading.Timer(LIMIT, os.kill, (os.getpid(), signal.SIGINT)).start()
    if rank == size - 1:
        time.sleep(LATE)
    started = time.monotonic()
    try:
        facts = ranks_report.error_of(lambda: dist.all_reduce(x, group=group))
    except KeyboardInterrupt:
        facts = {"error": "KeyboardInterrupt", "ranks": []}
    ranks_report.write(facts | {"rank": rank, "seconds": time.monotonic() - started})
    time.sleep(5)  # outside the core, and until all have reported


main(sys.argv[2])
