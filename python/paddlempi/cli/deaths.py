"""What says by which signal a rank has ended, and whether for want of memory."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

__all__ = ["Deaths"]


class Deaths:
    """Tells of ranks that have ended by a signal. It is made before they start."""

    def __init__(self) -> None:
        self._killed = _killed_for_memory()

    def said(self, rank: int, pid: int, number: int) -> str:
        """Return what is to be said of one.

        Args:
            rank: which has ended.
            pid: its process.
            number: of the signal.
        """
        try:
            name = f"{signal.Signals(number).name} ({signal.strsignal(number)})"
        except ValueError:
            name = f"signal {number}"
        why = ""
        if number == signal.SIGKILL:
            killed = _killed_for_memory()
            if killed > self._killed:
                why = ": out of memory, says the memory.events of its cgroup"
            elif _is_in_kernel_log(pid):
                why = ": out of memory, says the kernel's log"
            self._killed = killed
        return f"rank {rank} (process {pid}) was ended by {name}{why}"


def _killed_for_memory() -> int:
    """How many processes of this cgroup the kernel has killed for want of memory, if it says so."""
    with suppress(OSError, ValueError, KeyError, StopIteration):  # no cgroup, or an older kind
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        mine = next(line[3:] for line in lines if line.startswith("0::"))
        events = Path("/sys/fs/cgroup" + mine, "memory.events").read_text()
        return int(dict(line.split() for line in events.splitlines())["oom_kill"])
    return 0


def _is_in_kernel_log(pid: int) -> bool:
    """Whether the kernel says that it has killed a process; False if this user may not read it."""
    wanted = re.compile(rb"Killed process %d[ ,]" % pid)
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        while record := os.read(log, 8192):
            if wanted.search(record):
                return True
    except OSError:  # there are no more records
        return False
    finally:
        os.close(log)
    return False
