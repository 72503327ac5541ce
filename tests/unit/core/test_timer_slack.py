"""Go's threads have coarse timers, to take less time from the ranks. Other threads do not."""

from __future__ import annotations

import subprocess
import sys
import time

from paddlempi.testing import launch

# This runs in a process of its own, because loading the core sets the timer slack.
PROGRAM = """
import os, threading
import numpy as np

def slacks():
    threads = os.listdir("/proc/self/task")
    return {int(t): int(open(f"/proc/{t}/timerslack_ns").read()) for t in threads}

usual = slacks()[os.getpid()]
before = set(slacks())
import paddlempi as dist
dist.init_process_group("mpi")
after = slacks()
assert after[os.getpid()] == usual, "the thread that loaded the core lost its precise timers"
go = [s for t, s in after.items() if t not in before]
assert 10_000_000 in go, f"no thread with a slack of 10 ms among the new ones: {go}"

# A thread of Python's inherits what its parent has.
seen = []
thread = threading.Thread(target=lambda: seen.append(slacks()[threading.get_native_id()]))
thread.start()
thread.join()
assert seen == [usual], seen
print("ok")
"""


def test_only_go_threads_have_coarse_timers() -> None:
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    launch.sweep(began)  # without a launcher Open MPI leaves its segment, under mpi4py too
    assert done.returncode == 0 and done.stdout.strip() == "ok", done.stdout + done.stderr
