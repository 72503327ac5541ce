"""Functions for the ranks of a job with parameter servers that a fault strikes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from paddlempi import ps
from ranks_tools import stamp, stamped, start

IDS = np.arange(64)
DIM = 4


def begin(roles: str, *, mode: str = "sync", timeout: float = 60.0) -> int:
    """Initialise a world with parameter servers; return this rank."""
    rank = start()
    ps.init(roles, mode=mode, timeout=timeout)
    return rank


def ones(value: float = 1.0) -> Any:
    """Gradients of IDS."""
    return np.full((len(IDS), DIM), value, np.float32)


def die() -> None:
    """End this process as the kernel does when memory is short."""
    stamp("died")
    os.kill(os.getpid(), signal.SIGKILL)


def later(seconds: float, call: Callable[[], object]) -> None:
    """Call something in a thread that the end of the process does not wait for."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


def wait_for(name: str, seconds: float = 30.0) -> None:
    """Wait until a rank has called ``stamp(name)``."""
    ended = time.monotonic() + seconds
    while not stamped(name):
        assert time.monotonic() < ended, f"no rank came to {name}"
        time.sleep(0.01)


def leave(rank: int, others: list[int]) -> None:
    """End this process after a death, when it and the others that live have come here."""
    stamp(f"left-{rank}")
    for other in others:
        wait_for(f"left-{other}")
    # MPI cannot be finalized with a dead rank.
    sys.stdout.write("done\n")
    sys.stdout.flush()
    os._exit(0)
