"""The last rank dies, stops, or destroys the group, in the middle of an all_reduce of 64 MiB.

The wire is slow, so that the transfer takes seconds. argv[2:] says what the last rank does, one
after another. Each has a group of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta

import numpy as np
import paddlempi as dist
import ranks_report

MIDDLE = 0.8  # seconds after the transfer has begun
LIMIT = 5.0  # the deadline of the others if the last rank stops
STOPPED = 7.0
COUNT = 16 << 20


def kill(group: dist.ProcessGroup) -> None:
    ranks_report.write({"rank": dist.get_rank(), "time": time.time()})
    os.kill(os.getpid(), signal.SIGKILL)


def stop(group: dist.ProcessGroup) -> None:
    command = f"sleep {STOPPED}; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", command], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def destroy(group: dist.ProcessGroup) -> None:
    dist.destroy_process_group(group)


def trouble(how: str) -> ranks_report.Facts:
    rank, size = dist.get_rank(), dist.get_world_size()
    limit = LIMIT if how == "stop" else 60
    group = dist.new_group(list(range(size)), timeout=timedelta(seconds=limit))
    x = np.ones(COUNT, np.float32)
    dist.all_reduce(np.zeros(4, np.float32), group=group)
    dist.barrier()
    if rank == size - 1:
        act = {"kill": kill, "stop": stop, "destroy": destroy}[how]
        threading.Timer(MIDDLE, act, [group]).start()
    began = time.monotonic()
    facts = ranks_report.error_of(lambda: dist.all_reduce(x, group=group))
    facts["seconds"] = time.monotonic() - began
    facts["time"] = time.time()
    if how != "kill":
        facts["next"] = ranks_report.error_of(lambda: dist.barrier(group))
        one = np.ones(1)
        dist.all_reduce(one)
        facts["world"] = int(one[0])
    return facts


def main() -> None:
    dist.init_process_group()
    facts = {how: trouble(how) for how in sys.argv[2:]}
    ranks_report.write({"rank": dist.get_rank(), "facts": facts})
    if "kill" in facts:
        time.sleep(2)  # a rank that ends without Finalize may end the others before they report
    else:
        dist.destroy_process_group()


main()
