"""``python -m paddlempi run -np 4 train.py``: the ranks of a job on this host, without MPI.

The ranks meet in a file without a name (``memfd``), of which each inherits the descriptor: nothing
is left, however they end. Every rank is a session of its own. So a signal of the terminal comes to
this process, which hands it on once, and a rank's children can be ended with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from types import FrameType

from paddlempi_starts import MEET

from .._exit import PREEMPTED
from .._processes import unused_port
from .forward import Forwarder

__all__ = ["run"]

_GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for the ranks that are left when one has failed."""

_LAST_GRACE = 60.0
"""Seconds until SIGKILL after this process was told to end: a rank may have its work to save."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FORWARDED = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)


def run(number: int, command: Sequence[str], keep: bool = False) -> int:
    """Run ``command`` as ``number`` ranks, and wait until all have ended.

    When a rank ends by a signal, or with a status other than 0 and ``dist.PREEMPTED``, the others
    are ended: by SIGTERM, and by SIGKILL 10 s later.

    Args:
        number: of ranks.
        command: what every rank runs.
        keep: leave the others alone when one fails.

    Returns:
        The status of the rank that failed first, 128 + n if signal n ended it; else
        ``dist.PREEMPTED`` if a rank ended with it; else 0.
    """
    return _Ranks(number, keep).run(command)


class _Ranks:
    """The ranks that run."""

    def __init__(self, number: int, keep: bool) -> None:
        self._number, self._keep = number, keep
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._told = False
        self._status = 0

    def run(self, command: Sequence[str]) -> int:
        for number in _FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it ends a wait, by the descriptor
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        forwarder = Forwarder(woken)
        meeting = os.memfd_create("paddlempi-run")
        try:
            self._start(command, meeting, forwarder)
            while self._running:
                for pid, process in list(self._running.items()):
                    if process.poll() is not None:
                        del self._running[pid]
                        self._ended(process)
                if self._running:
                    forwarder.wait()
            forwarder.close()
        except BaseException:
            self._send(signal.SIGKILL)
            raise
        finally:
            os.close(meeting)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.set_wakeup_fd(-1)
        return self._status

    def _start(self, command: Sequence[str], meeting: int, forwarder: Forwarder) -> None:
        variables = {
            **os.environ,
            "WORLD_SIZE": str(self._number),
            "LOCAL_WORLD_SIZE": str(self._number),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(unused_port()),
            "PADDLE_TRAINERS_NUM": str(self._number),
            MEET: f"file:///proc/self/fd/{meeting}",
        }
        # As under an mpirun that binds ranks: else every rank has a thread for every CPU.
        cpus = len(os.sched_getaffinity(0))
        variables.setdefault("OMP_NUM_THREADS", str(max(1, cpus // self._number)))
        for rank in range(self._number):
            one = {"RANK": rank, "LOCAL_RANK": rank, "PADDLE_TRAINER_ID": rank}
            process = subprocess.Popen(
                command,
                env=variables | {name: str(value) for name, value in one.items()},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[meeting],
                start_new_session=True,
                preexec_fn=_end_with(os.getpid()),
            )
            self._running[process.pid] = process
            for pipe, to in ((process.stdout, 1), (process.stderr, 2)):
                assert pipe is not None
                forwarder.add(os.dup(pipe.fileno()), to)
                pipe.close()
            if self._told:  # by a signal that came meanwhile
                self._send(signal.SIGTERM)
                return

    def _ended(self, process: subprocess.Popen[bytes]) -> None:
        status = process.returncode if process.returncode >= 0 else 128 - process.returncode
        if status not in (0, PREEMPTED):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # children that it has left
        if status not in (0, PREEMPTED) and self._status in (0, PREEMPTED):
            self._status = status
            if not self._keep and not self._told:
                self._send(signal.SIGTERM)
                signal.setitimer(signal.ITIMER_REAL, _GRACE)
        elif status and not self._status:
            self._status = status

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number in _ENDING:
            if self._told:  # asked again
                number = signal.SIGKILL
            self._told = True
            signal.setitimer(signal.ITIMER_REAL, _LAST_GRACE)
        self._send(number)

    def _on_alarm(self, _: int, __: FrameType | None) -> None:
        self._send(signal.SIGKILL)
        signal.setitimer(signal.ITIMER_REAL, 0.1)  # one may have been starting

    def _send(self, number: int) -> None:
        """Send a signal to all ranks that run. One that ends processes goes to their children too.

        A rank's shell does not hand it on, and mpirun ends the children of its ranks as well.
        """
        for pid in list(self._running):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if number in (signal.SIGUSR1, signal.SIGUSR2):
                    os.kill(pid, number)
                else:
                    os.killpg(pid, number)


def _end_with(parent: int) -> Callable[[], None]:
    """Return what a rank calls before it runs the command: it shall die with its parent.

    If this process is killed, nobody else would end the ranks.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_signal = 1  # PR_SET_PDEATHSIG

    def call() -> None:
        prctl(set_signal, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it has died before the call
            os._exit(1)

    return call
