"""What the ranks of ``test_alive.py`` do. Rank 2 is the one that is looked at."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
from ranks_tools import dist, errors, leave_together, raises, works


def enter_a_namespace() -> None:
    """Go on in a PID namespace of this rank, as in a container, but not as its first process."""
    if "FAULTS_INSIDE" not in os.environ:
        os.environ["FAULTS_INSIDE"] = "1"
        unshare = ["unshare", "-U", "-r", "-p", "-f", "--mount-proc"]
        # Open MPI's ranks crash, also those of mpi4py alone, if two of a host have the same pid.
        rank = os.environ.get("OMPI_COMM_WORLD_RANK", "")
        script = 'test -z "$0" || echo "$0"00 >/proc/sys/kernel/ns_last_pid; "$@"; exit $?'
        os.execvp(unshare[0], [*unshare, "sh", "-c", script, rank, sys.executable, *sys.argv])


def look_and_work(rank: int) -> None:
    """Rank 2 opens and closes all its files, as a profiler may, while the ranks work together."""
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            for name in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):  # a socket, or the descriptor of the folder
                    os.close(os.open(f"/proc/self/fd/{name}", os.O_RDONLY | os.O_NONBLOCK))

    looking = threading.Thread(target=look)
    if rank == 2:
        looking.start()
    until = time.monotonic() + 1.0
    again = np.ones(1)
    while again:
        works()
        dist.all_reduce(np.ones(100_000), async_op=True).wait()
        again[0] = time.monotonic() < until
        dist.broadcast(again, 0)
    if rank == 2:
        time.sleep(0.5)  # the others wait, and ask whether it lives
        over.set()
        looking.join()
    works()


def stop(rank: int) -> None:
    """Rank 2 is stopped while the others wait for it."""
    if rank == 2:
        command = f"kill -STOP {os.getpid()}; sleep 1; kill -CONT {os.getpid()}"
        with subprocess.Popen(["sh", "-c", command]):
            time.sleep(0.1)
    works()


def die(rank: int) -> None:
    """Rank 2 is killed, and its children live on for 6 s. The others see earlier that it died."""
    if rank == 2:
        for grandchild in (False, True):
            if os.fork() == 0:
                if not grandchild or os.fork() == 0:
                    time.sleep(6)
                os._exit(0)
        subprocess.Popen(["sleep", "6"], close_fds=False)
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with raises(errors.PeerDiedError, "[2]", ranks=[2]):
        dist.barrier()
    assert time.monotonic() < began + 5, "only when its children had ended"
    leave_together(rank)
