"""For ``subprocess``: a child takes SIGINT and SIGHUP as usual."""

from __future__ import annotations

import signal


def take_signals() -> None:
    """Undo nohup, and what a shell does to jobs in the background: tests may be run by these.

    Use it as ``preexec_fn``.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
