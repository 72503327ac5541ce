"""All ranks wait for one that is late: it is stopped, or computes. They report that on stderr.

First rank 1 is late, the leader of a host with two ranks, then rank 3, which is alone on its host.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

os.environ["PADDLEMPI_REPORT_AFTER"] = "0.5"  # not every launcher passes variables on

import numpy as np
import paddlempi as dist

LATE = 5  # seconds; a process that is stopped is asked for two


def stop_for_a_while() -> None:
    command = f"sleep {LATE}; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", command], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    dist.init_process_group()
    count = 10
    for late, how in ((1, stop_for_a_while), (1, lambda: time.sleep(LATE)), (3, stop_for_a_while)):
        dist.barrier()
        count += 1
        if dist.get_rank() == late:
            how()
        dist.all_reduce(np.ones(count, np.float32))
    dist.barrier()
    if dist.get_rank() == 3:
        time.sleep(LATE)
    dist.new_group()


main()
