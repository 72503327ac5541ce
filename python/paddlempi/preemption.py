"""Preemption: the job is asked to end, and all ranks learn of it at the same step.

Slurm's ``--signal``, a cloud's notice or a person sends a signal to one rank or to some. The
program asks once a step, saves, and ends::

    if dist.preempted():
        save()
        sys.exit(dist.PREEMPTED)
"""

from __future__ import annotations

import os
import signal
import threading
from array import array
from collections.abc import Iterable
from types import FrameType
from typing import Any

from . import _marks
from ._exit import PREEMPTED
from .collectives import all_reduce
from .errors import ArgumentError
from .group import get_world_size, is_initialized
from .reduce_op import ReduceOp

__all__ = ["PREEMPTED", "preempted", "watch_preemption"]


class _Watch:
    """What this process knows."""

    def __init__(self) -> None:
        self.pid = 0  # of the process that installed the handlers; 0: none has
        self.here = False  # a signal has come to this process
        self.agreed = False  # all ranks know of it


_watch = _Watch()


def watch_preemption(signals: Iterable[int] = (signal.SIGTERM,)) -> None:
    """Install the handler of :func:`preempted` for ``signals``, in this process.

    :func:`preempted` does so itself for SIGTERM when it is first called. Call this function if the
    job gets another signal, or earlier, so that a signal during the preparation counts. A handler
    that the program installed before is called, too. One that it installs later replaces ours,
    unless it calls the one before it, or this function is called again.

    Args:
        signals: the signals that ask the job to end. They are added to those of earlier calls.

    Raises:
        ArgumentError: a signal that cannot be caught; the caller is not the main thread, which
            alone may install handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        raise ArgumentError(
            "watch_preemption: only the main thread may install a handler of signals; call it "
            "there before another thread calls preempted()"
        )
    chosen = list(signals)
    _watch.pid = os.getpid()
    for number in chosen:
        try:
            before = signal.getsignal(number)
            if not isinstance(before, _Handler):
                signal.signal(number, _Handler(before))
        except (ValueError, OSError, TypeError) as error:
            raise ArgumentError(
                f"watch_preemption: signals has {number!r}, for which Python installs no handler: "
                f"{error}"
            ) from None
    if chosen:
        _marks.watches(int(chosen[0]))


def asked() -> bool:
    """Whether a signal that was chosen by :func:`watch_preemption` has come to this process."""
    return _watch.here


def preempted() -> bool:
    """Whether the job has been asked to end, by a signal to any of its ranks.

    All ranks of the world call it, once a step, and all get the same answer: it reduces one number
    over all ranks, which takes as long as a small all_reduce. Once the answer is True it stays
    True, and nothing is sent any more. Before init and after destroy it is about this process
    alone.

    The first call installs a handler for SIGTERM, unless :func:`watch_preemption` has installed
    one before. The library takes no signals otherwise.

    Then save, and end all ranks with ``sys.exit(dist.PREEMPTED)``. The ranks with this status wait
    for each other in MPI_Finalize as with status 0, and ``python -m paddlempi run`` does not count
    it as a failure.

    Raises:
        ArgumentError: the first call is not made by the main thread.
    """
    if not _watch.pid:
        watch_preemption()
    if not is_initialized() or get_world_size() == 1:
        return _watch.here or _watch.agreed
    if not _watch.agreed:
        number = array("q", [_watch.here])
        all_reduce(number, ReduceOp.MAX)
        _watch.agreed = bool(number[0])
        if _watch.agreed and not _watch.here:
            _marks.asked()
    return _watch.agreed


class _Handler:
    """A handler that notes the signal, and calls the one that it has replaced.

    Every installation has its own, with its own ``before``. So a handler of the program between two
    of them, which calls the one before it, is called once.
    """

    def __init__(self, before: Any) -> None:
        self._before = before  # as signal.getsignal returns it

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before = self._before
        if _watch.pid != os.getpid():
            # A fork of the rank, such as a worker that loads data: its parent ends it by this
            # signal.
            signal.signal(number, before if before is not None else signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if not _watch.here:
            _watch.here = True
            _marks.asked()
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)
