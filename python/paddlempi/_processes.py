"""The processes of a job on this host, and what they leave in shared memory.

The program that starts a launcher puts a unique value into an environment variable. All processes
of the job inherit it, so they are found wherever they are in the tree of processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path

__all__ = ["GRACE", "MARK", "is_worker", "kill_marked", "marked", "sweep", "unused_port"]

GRACE = 2.0
"""Seconds that the processes of a job have to end by themselves when its launcher has ended."""

_DYING = 10.0
"""Seconds that a killed process may take to give its memory back. One with gigabytes needs some."""

MARK = "PADDLEMPI_LAUNCH_ID"
"""The environment variable that marks the processes of a job."""

_SEGMENTS = ("mpich_shm_", "sm_segment.", "vader_segment.", "Intel_MPI_")


def unused_port() -> int:
    """Return a TCP port of the loopback on which nobody listens, for a rank 0 that starts later.

    It is below the ports that the kernel gives to connections, so that none takes it meanwhile.
    """
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_server(("127.0.0.1", random.randrange(10_000, 30_000))) as probe,
        ):
            port: int = probe.getsockname()[1]
            return port


def sweep(began: float, folder: Path = Path("/dev/shm")) -> None:
    """Remove the files in shared memory that an MPI leaves when its ranks are killed.

    A file is removed only if it has the name of an MPI's segment, belongs to this user, was
    written after ``began`` (``time.time()``), and no process of this machine has it open or has
    mapped it, also none that cannot be seen from here. So the files of a running job stay: the
    process that makes a segment keeps it mapped.
    """
    for path in folder.glob("*"):
        if path.name.startswith(_SEGMENTS):
            with contextlib.suppress(OSError):
                found = path.lstat()
                if found.st_uid == os.getuid() and found.st_mtime >= began - 1:
                    _remove_unused(path)


def _remove_unused(path: Path) -> None:
    """Remove a file that nobody uses. Raise OSError if somebody does, or if that is unknown.

    Another process that sweeps has the file open for a moment, so it is tried more than once.
    """
    for _ in range(3):
        with contextlib.suppress(BlockingIOError):
            _remove(path)
            return
        time.sleep(random.uniform(0, 0.002))  # two that sweep must not go on in step
    _remove(path)


def _remove(path: Path) -> None:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # The kernel gives a write lease only on a file that is open nowhere else: see fcntl(2). It
        # sends a signal if somebody opens the file meanwhile: SIGURG, which does nothing.
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        path.unlink()
    finally:
        os.close(file)


def kill_marked(mark: str, grace: float = 0.0) -> None:
    """Kill every process that has ``mark`` in its environment: a job's launcher and its ranks.

    The processes first have ``grace`` seconds to end by themselves. When this returns, those that
    were killed hold nothing any more: no file, no memory.
    """
    end = time.monotonic() + grace
    while time.monotonic() < end and marked(mark):
        time.sleep(0.02)
    killed = set()
    for _ in range(3):  # a process may fork while we search
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.01)
    end = time.monotonic() + _DYING
    while time.monotonic() < end and not all(map(_over, killed)):
        time.sleep(0.01)


def _over(pid: int) -> bool:
    """Whether all threads of a process have ended; its parent need not know of it yet."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True  # nothing is left of it
    for thread in threads:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/task/{thread}/stat").read_text(errors="replace")
            if text.rpartition(")")[2].split()[0] not in "ZX":
                return False
    return True


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


def is_worker() -> bool:
    """Whether ``multiprocessing`` started this process, which then is no rank itself."""
    module = sys.modules.get("multiprocessing.process")
    if module is None:
        return False
    # While a spawned worker imports the main module it has no parent process yet, only this flag.
    inheriting: bool = getattr(module.current_process(), "_inheriting", False)
    return inheriting or module.parent_process() is not None
