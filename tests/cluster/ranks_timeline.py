"""Calls collectives 100 times a second for some seconds, while each host records its ranks.

The first argument is the folder of the recordings; the second one, "late", makes rank 1 sleep 5 ms
more before each step, which then also moves data.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import paddlempi as dist

CALLS = 300


def main() -> None:
    folder, late = sys.argv[1], "late" in sys.argv
    dist.init_process_group()
    rank = dist.get_rank()
    here = os.uname().nodename
    command = [sys.executable, "-m", "paddlempi", "trace", "record", "--for", "60"]
    command += ["-o", f"{folder}/{here}.json", str(os.getpid())]
    small, large = np.ones(2, np.float32), np.ones(100_000, np.float32)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as recorder:
        time.sleep(1)
        dist.barrier()
        for _ in range(CALLS):
            time.sleep(0.008 + 0.002 * random.random() + 0.005 * (late and rank == 1))
            dist.all_reduce(small)
            if late:
                dist.all_reduce(large)
        time.sleep(0.5)
        recorder.send_signal(signal.SIGINT)
    dist.barrier()


main()
