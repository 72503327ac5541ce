"""A rank does not come, or gives up, or has left: what the others learn. One world for all of it.

Each kind of trouble has a group of its own; the ranks report their errors.

* missing: the last rank does not join an all_reduce.
* deadline, interrupt: rank 0 gives an all_reduce up that others wait in, by its own deadline or by
  Ctrl-C, and the last rank comes late to it.
* left: the last rank leaves in order, while the others make a group with it or meet in a barrier.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from datetime import timedelta

import numpy as np
import paddlempi as dist
import ranks_report

LIMIT = 1.5  # seconds until a rank gives up: the others have asked it by then
LATE = 3.0


def trouble(how: str) -> ranks_report.Facts:
    rank, size = dist.get_rank(), dist.get_world_size()
    limit = LIMIT if how == "missing" or (how == "deadline" and rank == 0) else 300
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=limit))
    x = np.zeros(4, np.float32)
    dist.all_reduce(x, group=group)
    if rank == 0 and how == "interrupt":
        threading.Timer(LIMIT, os.kill, (os.getpid(), signal.SIGINT)).start()
    if rank == size - 1:
        time.sleep(LATE)
    facts: ranks_report.Facts = {}
    started = time.monotonic()
    try:
        if how != "missing" or rank < size - 1:
            facts = ranks_report.error_of(lambda: dist.all_reduce(x, group=group))
    except KeyboardInterrupt:
        facts = {"error": "KeyboardInterrupt", "ranks": []}
    facts["seconds"] = time.monotonic() - started
    if how == "missing":
        facts["afterwards"] = ranks_report.error_of(lambda: dist.all_reduce(x, group=group))
    time.sleep(LATE)  # outside the core, and until the last rank has raised
    return facts


def meetings() -> ranks_report.Facts:
    """What the others meet with the last rank in, which has left."""
    everybody = list(range(dist.get_world_size()))
    group = dist.new_group(everybody)
    dist.all_reduce(np.zeros(4, np.float32))
    found: ranks_report.Facts = {}
    if dist.get_rank() == everybody[-1]:
        return found
    for name, call in {
        "new_group": lambda: dist.new_group(everybody),
        "monitored_barrier": lambda: dist.monitored_barrier(group),
    }.items():
        started = time.monotonic()
        found[name] = ranks_report.error_of(call)
        found[name]["seconds"] = time.monotonic() - started
        time.sleep(1.5)  # until all have raised: a rank that ends now has left, too
    return found


def main() -> None:
    dist.init_process_group()
    facts: ranks_report.Facts = {"rank": dist.get_rank()}
    for how in ("missing", "deadline", "interrupt"):
        facts[how] = trouble(how)
        ranks_report.write(facts)
    ranks_report.write(facts | {"left": meetings()})


main()
