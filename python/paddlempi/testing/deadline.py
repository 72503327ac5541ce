"""Stacks of a rank that hangs, and the watchdog for one that cannot even say so."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import stat
import struct
import sys
import tempfile
import termios
import time

_DRAIN_SECONDS = 2.0
_OWN = f'File "{__file__}"'
GRACE = 12.0
"""Seconds that rank 0 has after a deadline to report; then each rank's watchdog ends it."""


def stacks() -> str:
    """Return the Python stacks of this process's threads, without the harness's and pytest's."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        text = file.read().decode(errors="replace")
    blocks = text.strip().split("\n\n")
    shown = [_trim(block) for block in blocks if _OWN not in block]
    return "\n\n".join(shown or blocks) + "\n"


def _trim(block: str) -> str:
    """Cut a thread's stack where pytest begins: what called the test is always the same."""
    lines = block.splitlines()
    for i, line in enumerate(lines[2:], 2):
        if "/_pytest/" in line or "/pluggy/" in line:
            return "\n".join([*lines[:i], "  (pytest)"])
    return block


def flush() -> None:
    """Hand everything printed to the launcher, and wait until it has read it.

    A launcher that ends a job because of a rank's status may drop what it has not read yet.
    """
    end = time.monotonic() + _DRAIN_SECONDS
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            while stat.S_ISFIFO(os.fstat(descriptor).st_mode) and time.monotonic() < end:
                (left,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))
                if left == 0:
                    break
                time.sleep(0.01)


class Watchdog:
    """Ends the process when a deadline is long past and nobody came to end it.

    A rank that hangs while it holds the GIL runs no Python thread, so on rank 0 nobody would
    be left to report. faulthandler's own thread needs no GIL: it writes the stacks to the
    real stderr and exits with status 1, and the launcher ends the job.
    """

    def __init__(self) -> None:
        # pytest redirects descriptor 2 while a test runs; this is where it went before.
        self.stderr = os.dup(2)

    def arm(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=self.stderr)

    def disarm(self) -> None:
        faulthandler.cancel_dump_traceback_later()

    def write(self, text: str) -> None:
        """Put text on the real stderr at once, past every buffer and capture."""
        with contextlib.suppress(OSError):
            os.write(self.stderr, text.encode(errors="replace"))

    def close(self) -> None:
        self.disarm()
        with contextlib.suppress(OSError):
            os.close(self.stderr)
