"""The processes of a job on this host, and what they leave in shared memory.

The program that starts a launcher puts a unique value into an environment variable. All processes
of the job inherit it, so they are found wherever they are in the tree of processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

__all__ = ["GRACE", "MARK", "kill_marked", "marked", "sweep"]

GRACE = 2.0
"""Seconds that the processes of a job have to end by themselves when its launcher has ended."""

MARK = "PADDLEMPI_LAUNCH_ID"
"""The environment variable that marks the processes of a job."""

_SEGMENTS = ("mpich_shm_", "sm_segment.", "vader_segment.", "Intel_MPI_")


def sweep(began: float, folder: Path = Path("/dev/shm")) -> None:
    """Remove the files in shared memory that an MPI leaves when its ranks are killed.

    A file is removed only if it has the name of an MPI's segment, belongs to this user, was
    written after ``began`` (``time.time()``), and no process has mapped it. So the files of a
    running job stay.
    """
    left = set()
    for path in folder.glob("*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            mine = found.st_uid == os.getuid() and found.st_mtime >= began - 1
            if mine and path.name.startswith(_SEGMENTS):
                left.add(str(path))
    for maps in Path("/proc").glob("[0-9]*/maps") if left else ():
        with contextlib.suppress(OSError):
            left -= {line.split(None, 5)[-1] for line in maps.read_text().splitlines()}
    for name in left:
        with contextlib.suppress(OSError):
            os.unlink(name)


def kill_marked(mark: str, grace: float = 0.0) -> None:
    """Kill every process that has ``mark`` in its environment: a job's launcher and its ranks.

    The processes first have ``grace`` seconds to end by themselves.
    """
    end = time.monotonic() + grace
    while time.monotonic() < end and marked(mark):
        time.sleep(0.02)
    for _ in range(3):  # a process may fork while we search
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def marked(mark: str) -> list[int]:
    """Return the pids of the processes with ``mark`` in their environment, without this one."""
    entry = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            pid = int(path.parent.name)
            if pid != os.getpid() and entry in path.read_bytes().split(b"\0"):
                found.append(pid)
    return found
