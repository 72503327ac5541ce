"""``python -m paddlempi run -np 4 train.py``: the ranks of a job on this host, without MPI.

The ranks meet in a file without a name (``memfd``), of which each inherits the descriptor: nothing
is left, however they end. Every rank is a session of its own. So a signal of the terminal comes to
this process, which hands it on once, and a rank's children can be ended with it.

``run`` starts a program for every rank. ``paddlempi.testing`` forks the ranks of a process that has
imported what they need (``run_started``, ``fork``). All else is the same for both.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NamedTuple, Protocol

from paddlempi_bootstrap.starters import MEET

from .._exit import PREEMPTED
from .._processes import unused_port
from .deaths import Deaths
from .forward import Forwarder

__all__ = ["Forked", "Process", "Rank", "end_with", "fork", "run", "run_started"]

_LAST_WORDS = 1.0
"""Seconds between a death by a signal and SIGTERM for the ranks that are left, which the death
makes raise an error of their own."""

_GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for the ranks that are left when one has failed."""

_LAST_GRACE = 60.0
"""Seconds until SIGKILL after this process was told to end: a rank may have its work to save."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FORWARDED = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)


def run(number: int, command: Sequence[str], keep: bool = False) -> int:
    """Run ``command`` as ``number`` ranks, and wait until all have ended.

    When a rank ends by a signal, or with a status other than 0 and ``dist.PREEMPTED``, the others
    are ended: by SIGTERM, and by SIGKILL 10 s later. A death by a signal is told on stderr, and the
    others have a second for what they say of it.

    Args:
        number: of ranks.
        command: what every rank runs.
        keep: leave the others alone when one fails.

    Returns:
        The status of the rank that failed first, 128 + n if signal n ended it; else
        ``dist.PREEMPTED`` if a rank ended with it; else 0.
    """
    return run_started(number, lambda rank: _start(command, rank), keep)


class Process(Protocol):
    """A rank that runs, as ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None:
        """Return the status, -n if signal n ended the process; None: it runs."""


class Rank(NamedTuple):
    """What a rank gets from the process that starts it, which owns the descriptors."""

    number: int
    variables: dict[str, str]
    meeting: int
    """The descriptor that the rank inherits under the same number."""
    stdout: int
    stderr: int
    private: tuple[int, ...]
    """Descriptors of the process that starts the ranks. A rank must not have them."""


class Forked(BaseException):
    """Raised by ``fork`` in the new process, through ``run_started``, which does nothing then."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.rank = rank


def run_started(number: int, start: Callable[[Rank], Process], keep: bool = False) -> int:
    """Run ``number`` ranks that ``start`` starts. The rest is as in ``run``."""
    return _Ranks(number, keep).run(start)


def fork(rank: Rank) -> Process:
    """Start a rank as a copy of this process, which must have one thread.

    Raises Forked in the new process. There stdin, stdout, stderr and the meeting are open, and of
    the signals those are at their defaults that ``run_started`` takes.
    """
    parent = os.getpid()
    follow = end_with(parent)
    # A handler of ours must not run in the new process: it would send signals to the other ranks.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return _Copy(pid)
    try:
        follow()
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (*_FORWARDED, signal.SIGALRM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if rank.number:
            _replace(os.open(os.devnull, os.O_RDONLY), 0)
        _replace(rank.stdout, 1)
        _replace(rank.stderr, 2)
        for descriptor in rank.private:
            os.close(descriptor)
        os.set_inheritable(rank.meeting, True)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    except BaseException:
        os._exit(1)
    raise Forked(rank)


def _replace(descriptor: int, place: int) -> None:
    os.dup2(descriptor, place)
    os.close(descriptor)


class _Copy:
    """A process that ``fork`` has made."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
        return self._status


def _start(command: Sequence[str], rank: Rank) -> Process:
    return subprocess.Popen(
        command,
        env=rank.variables,
        stdin=None if rank.number == 0 else subprocess.DEVNULL,
        stdout=rank.stdout,
        stderr=rank.stderr,
        pass_fds=[rank.meeting],
        start_new_session=True,
        preexec_fn=end_with(os.getpid()),
    )


class _Ranks:
    """The ranks that run."""

    def __init__(self, number: int, keep: bool) -> None:
        self._number, self._keep = number, keep
        self._running: dict[int, tuple[int, Process]] = {}  # rank and process, by its number
        self._deaths = Deaths()
        self._ends = False  # the ranks that are left are being ended
        self._pipes: list[tuple[int, int]] = []
        self._told = False
        self._status = 0

    def run(self, start: Callable[[Rank], Process]) -> int:
        for number in _FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it ends a wait, by the descriptor
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        meeting = os.memfd_create("paddlempi-run")
        try:
            self._start(start, meeting, (woken, wakes))
            # Not before: a forked rank could not leave it behind.
            forwarder = Forwarder(woken)
            for pipe, to in self._pipes:
                forwarder.add(pipe, to)
            while self._running:
                for pid, (rank, process) in list(self._running.items()):
                    status = process.poll()
                    if status is not None:
                        del self._running[pid]
                        self._ended(rank, pid, status)
                if self._running:
                    forwarder.wait()
            forwarder.close()
        except Forked:  # what this process has under way is its parent's
            raise
        except BaseException:
            self._send(signal.SIGKILL)
            self._over(meeting)
            raise
        self._over(meeting)
        return self._status

    def _over(self, meeting: int) -> None:
        os.close(meeting)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(-1)

    def _start(
        self, start: Callable[[Rank], Process], meeting: int, private: tuple[int, ...]
    ) -> None:
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
        for number in range(self._number):
            one = {"RANK": number, "LOCAL_RANK": number, "PADDLE_TRAINER_ID": number}
            own = variables | {name: str(value) for name, value in one.items()}
            stdout, to_stdout = os.pipe()
            stderr, to_stderr = os.pipe()
            self._pipes += [(stdout, 1), (stderr, 2)]
            readers = (pipe for pipe, _ in self._pipes)
            process = start(Rank(number, own, meeting, to_stdout, to_stderr, (*private, *readers)))
            self._running[process.pid] = number, process
            os.close(to_stdout)
            os.close(to_stderr)
            if self._told:  # by a signal that came meanwhile
                self._send(signal.SIGTERM)
                return

    def _ended(self, rank: int, pid: int, returned: int) -> None:
        status = returned if returned >= 0 else 128 - returned
        if status not in (0, PREEMPTED):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)  # children that it has left
        if returned < 0 and not self._told and not self._ends:
            line = self._deaths.line(rank, pid, -returned)
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, line.encode())
        if status not in (0, PREEMPTED) and self._status in (0, PREEMPTED):
            self._status = status
            if not self._keep and not self._told:
                if returned < 0:
                    signal.setitimer(signal.ITIMER_REAL, _LAST_WORDS)
                else:
                    self._end()
        elif status and not self._status:
            self._status = status

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number in _ENDING:
            if self._told:  # asked again
                number = signal.SIGKILL
            self._told = True
            signal.setitimer(signal.ITIMER_REAL, _LAST_GRACE)
        self._send(number)

    def _end(self) -> None:
        self._ends = True
        self._send(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, _GRACE)

    def _on_alarm(self, _: int, __: FrameType | None) -> None:
        if not self._told and not self._ends:
            self._end()
            return
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


def end_with(parent: int) -> Callable[[], None]:
    """Return what a child calls before all else: it shall die with its parent, this process.

    If this process is killed, nobody else would end the ranks.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    set_signal = 1  # PR_SET_PDEATHSIG

    def call() -> None:
        prctl(set_signal, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it has died before the call
            os._exit(1)

    return call
