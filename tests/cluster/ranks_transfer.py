"""Rank 0 gives up an all_reduce while its data is on the wire, by its deadline or by Ctrl-C.

The wire is slow, so that the transfer takes long. Each kind of trouble has a group of its own.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import numpy as np
import paddlempi as dist
import ranks_report

LIMIT = 0.5  # seconds until rank 0 gives up
COUNT = 4 << 20  # 16 MiB


def transfer(x: np.ndarray[Any, Any], group: dist.ProcessGroup, asynchronous: bool) -> None:
    if asynchronous:
        dist.all_reduce(x, group=group, async_op=True).wait()
    else:
        dist.all_reduce(x, group=group)


def trouble(how: str, asynchronous: bool) -> ranks_report.Facts:
    rank, size = dist.get_rank(), dist.get_world_size()
    limit = LIMIT if rank == 0 and how == "deadline" else 60
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=limit))
    x = np.full(COUNT, rank + 1, np.float32)
    dist.all_reduce(np.zeros(4, np.float32), group=group)
    dist.barrier()
    if rank == 0 and how == "interrupt":
        threading.Timer(LIMIT, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    try:
        facts = ranks_report.error_of(lambda: transfer(x, group, asynchronous))
    except KeyboardInterrupt:
        facts = {"error": "KeyboardInterrupt", "ranks": []}
    facts["seconds"] = time.monotonic() - started
    facts["right"] = bool((x == size * (size + 1) // 2).all())
    started = time.monotonic()
    small = np.zeros(4, np.float32)
    facts["next"] = ranks_report.error_of(lambda: dist.all_reduce(small, group=group))
    facts["next"]["seconds"] = time.monotonic() - started
    time.sleep(3)  # until what was given up has ended
    one = np.ones(1)
    dist.all_reduce(one)
    facts["world"] = int(one[0])
    return facts


def main() -> None:
    dist.init_process_group()
    ranks_report.write(
        {
            "rank": dist.get_rank(),
            "facts": {
                # Ctrl-C in the wait for an asynchronous one ends the wait only.
                f"{how} {way}": trouble(how, way == "async")
                for how, way in (("deadline", "sync"), ("deadline", "async"), ("interrupt", "sync"))
            },
        }
    )
    dist.destroy_process_group()


main()
