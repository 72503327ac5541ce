"""Run a command, count the CPU seconds of all that it started, and leave no process behind.

    python measured.py REPORT LIMIT COMMAND...

REPORT gets ``{"wall": seconds, "cpu": seconds, "status": n, "limit": whether it ran past LIMIT}``.
After LIMIT seconds (0: none) all processes get SIGABRT, and pytest prints where its threads stand;
30 s later they are killed. Processes that have left their parents come back to this one, because
it is their subreaper (PR_SET_CHILD_SUBREAPER in prctl(2)). So their time counts, and when the
command has ended they have 2 s to end, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import FrameType

GRACE = 2.0
AFTER_ABORT = 30.0
_SUBREAPER = 36


def descendants() -> list[int]:
    """Return the processes below this one."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def send(number: int) -> None:
    """Send a signal to all processes below this one."""
    for pid in descendants():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class Ended(Exception):
    """This process was told to end."""


def _on_signal(number: int, _: FrameType | None) -> None:
    raise Ended(number)


def reap(until: float, first: int | None) -> int | None:
    """Wait for processes until none is left, or ``first`` has ended: return its status then."""
    while time.monotonic() < until:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if pid and pid == first:
            return os.waitstatus_to_exitcode(status)
        if not pid:
            time.sleep(0.05)
    return None


def run(command: list[str], limit: float) -> tuple[int, bool]:
    """Run a command; return its status, and whether it came to its limit."""
    child = os.posix_spawnp(command[0], command, os.environ)
    late, status = False, None
    try:
        status = reap(time.monotonic() + limit if limit else float("inf"), child)
        if status is None:
            late = True
            send(signal.SIGABRT)
            status = reap(time.monotonic() + AFTER_ABORT, child)
            status = 124 if status in (None, 0) else status
    except Ended as ended:
        send(signal.SIGTERM)
        reap(time.monotonic() + GRACE, child)
        status = 128 + ended.args[0]
    reap(time.monotonic() + GRACE, None)
    for _ in range(3):  # one may be forking
        send(signal.SIGKILL)
        reap(time.monotonic() + GRACE, None)
    return 128 - status if status < 0 else status, late


def main(arguments: list[str]) -> int:
    """Run the command, and write the report."""
    report, limit, *command = arguments
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _on_signal)
    began = time.monotonic()
    status, late = run(command, float(limit))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = {
        "wall": time.monotonic() - began,
        "cpu": used.ru_utime + used.ru_stime,
        "status": status,
        "limit": late,
    }
    Path(report).write_text(json.dumps(said))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
