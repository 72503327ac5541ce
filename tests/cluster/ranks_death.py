"""All ranks wait for each other, again and again; the ranks of h2 end, stop, or are cut off.

argv[2] says what happens to h2, once every rank has written a first report:

* cut: the test unplugs it.
* kill: its ranks kill themselves, and leave a forked child, as a DataLoader's worker is.
* stop: its first rank stops for longer than a host may be silent, and then goes on.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta

import numpy as np
import paddlempi as dist
import ranks_report
from paddlempi import _native

LIMIT = 60.0  # seconds; a death must be known long before
STOPPED = 7  # seconds
BEGAN = time.time()


def wait_for_all() -> None:
    x = np.ones(4, np.float32)
    dist.all_reduce(x, async_op=True).wait()
    assert x[0] == dist.get_world_size()


def report(facts: ranks_report.Facts) -> None:
    ranks_report.write({"rank": dist.get_rank(), "began": BEGAN, "time": time.time()} | facts)


def stop_for_a_while() -> None:
    command = f"sleep {STOPPED}; kill -CONT {os.getpid()}"
    subprocess.Popen(["sh", "-c", command], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def steps(mode: str) -> None:
    report({})
    on_h2 = socket.gethostname() == "h2"
    for _ in itertools.count() if mode == "cut" else range(30):
        wait_for_all()
        time.sleep(0.02)
    if mode == "kill" and on_h2:
        report({})
        if os.fork() == 0:
            time.sleep(LIMIT)
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "stop" and on_h2 and dist.get_local_rank() == 0:
        stop_for_a_while()
    wait_for_all()


def deaths() -> dict[int, str]:
    """What this rank knows of dead ranks, once it knows of those of h2, or after ten seconds."""
    began = time.monotonic()
    while True:
        dead = {d["rank"]: d["why"] for d in _native.control("info")["liveness"]["dead"]}
        if len(dead) == 2 or time.monotonic() - began > 10:
            return dead
        time.sleep(0.01)


def main() -> None:
    dist.init_process_group(timeout=timedelta(seconds=LIMIT))
    wait_for_all()
    facts = ranks_report.error_of(lambda: steps(sys.argv[2]))
    if sys.argv[2] == "kill":
        facts["dead"] = deaths()
    report(facts)
    if sys.argv[2] != "stop":
        time.sleep(2)  # a rank that ends without Finalize may end the others before they report


main()
