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
from collections.abc import Callable, Collection, Mapping, Sequence
from types import FrameType, MappingProxyType
from typing import NamedTuple, Protocol

from paddlempi_bootstrap.starters import MEET

from .._exit import PREEMPTED
from .._processes import unused_port
from ..startup import cpu_binding
from .deaths import Deaths
from .forward import Forwarder, Place

__all__ = [
    "Forked",
    "Output",
    "Process",
    "Rank",
    "Ranks",
    "end_with",
    "fork",
    "run",
    "run_started",
    "start",
]

LAST_WORDS = 1.0
"""Seconds between a death by a signal and SIGTERM for the ranks that are left, which the death
makes raise an error of their own."""

_GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL for the ranks that are left when one has failed."""

_LAST_GRACE = 60.0
"""Seconds until SIGKILL after this process was told to end: a rank may have its work to save."""

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FORWARDED = (*ENDING, signal.SIGUSR1, signal.SIGUSR2)


class Output(NamedTuple):
    """Where the lines of the ranks go."""

    prefix: bool = False
    """On stdout and stderr each line begins with its rank."""
    tee: bool = False
    """They go to the files, and to stdout and stderr as well."""
    paths: tuple[str, ...] = ()
    """A file for each rank; (): none."""
    files: tuple[int, ...] = ()
    """The descriptors of these files."""

    def into(self, folder: str, number: int) -> Output:
        """Return this output with a file for each of ``number`` ranks in a folder, which is made.

        Attempts after the first go on in the files that are there. Raises OSError.
        """
        os.makedirs(folder, exist_ok=True)
        again = os.environ.get("PADDLEMPI_RESTART", "0") != "0"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if again else os.O_TRUNC)
        paths = tuple(os.path.join(folder, f"rank-{rank}.log") for rank in range(number))
        return self._replace(paths=paths, files=tuple(os.open(p, flags, 0o666) for p in paths))

    def places(self, rank: int, stream: int) -> list[Place]:
        """Return where a line goes that the rank writes to ``stream``, 1 or 2."""
        mark = f"[rank {rank}] ".encode() if self.prefix else b""
        shown = [Place(stream, mark)] if self.tee or not self.files else []
        return [*shown, *(Place(file) for file in self.files[rank : rank + 1])]


_PLAIN = Output()


def run(
    number: int,
    command: Sequence[str],
    keep: bool = False,
    output: Output = _PLAIN,
    bind: bool = False,
) -> int:
    """Run ``command`` as ``number`` ranks, and wait until all have ended.

    When a rank ends by a signal, or with a status other than 0 and ``dist.PREEMPTED``, the others
    are ended: by SIGTERM, and by SIGKILL 10 s later. A death by a signal is told on stderr, and the
    others have a second for what they say of it.

    Args:
        number: of ranks.
        command: what every rank runs.
        keep: leave the others alone when one fails.
        output: where their lines go.
        bind: bind each to its share of the CPUs of this process (``cpu_binding.shares``).

    Returns:
        The status of the rank that failed first, 128 + n if signal n ended it; else
        ``dist.PREEMPTED`` if a rank ended with it; else 0.

    Raises UnsupportedError if a rank cannot be bound.
    """
    shares = cpu_binding.shares(number, os.sched_getaffinity(0)) if bind else None
    return Ranks(number, keep, output, shares).run(lambda rank: start(command, rank))


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
    inherits: tuple[int, ...]
    """The descriptors that the rank inherits under the same numbers, first that of the meeting."""
    stdout: int
    stderr: int
    private: tuple[int, ...]
    """Descriptors of the process that starts the ranks. A rank must not have them."""
    cpus: Collection[int] | None
    """Those to bind it to; None: it is not bound."""


class Forked(BaseException):
    """Raised by ``fork`` in the new process, through ``run_started``, which does nothing then."""

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.rank = rank


def run_started(number: int, start: Callable[[Rank], Process], keep: bool = False) -> int:
    """Run ``number`` ranks that ``start`` starts. The rest is as in ``run``."""
    return Ranks(number, keep, _PLAIN).run(start)


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
        for descriptor in rank.inherits:
            os.set_inheritable(descriptor, True)
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


def start(command: Sequence[str], rank: Rank) -> Process:
    """Start a rank that runs a command."""
    with cpu_binding.bound(rank.cpus, rank.number):
        return subprocess.Popen(
            command,
            env=rank.variables,
            stdin=None if rank.number == 0 else subprocess.DEVNULL,
            stdout=rank.stdout,
            stderr=rank.stderr,
            pass_fds=rank.inherits,
            start_new_session=True,
            preexec_fn=end_with(os.getpid()),
        )


class Ranks:
    """The ranks that run."""

    def __init__(
        self,
        number: int,
        keep: bool,
        output: Output,
        shares: Sequence[Collection[int]] | None = None,
    ) -> None:
        self._number, self._keep, self._output, self._shares = number, keep, output, shares
        self._running: dict[int, tuple[int, Process]] = {}  # rank and process, by its number
        self._deaths = Deaths()
        self._ends = False  # the ranks that are left are being ended
        self._pipes: list[tuple[int, int, int]] = []  # with the rank, and 1 or 2
        self._told = False
        self._status = 0

    def run(self, start: Callable[[Rank], Process]) -> int:
        """Start the ranks, and return the status of the job when they have ended."""
        for number in _FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # it ends a wait, by the descriptor
        woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        meeting = os.memfd_create("paddlempi-run")
        self._common = self._variables(meeting)
        self._meeting, self._private = meeting, (woken, wakes)
        try:
            self._start_all(start)
            # Not before: a forked rank could not leave it behind.
            forwarder = Forwarder(woken)
            self._drive(forwarder, start)
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
        for descriptor in (meeting, *self._output.files):
            os.close(descriptor)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.set_wakeup_fd(-1)

    def _variables(self, meeting: int) -> dict[str, str]:
        """Return the environment that all ranks have in common."""
        return {
            **os.environ,
            "WORLD_SIZE": str(self._number),
            "LOCAL_WORLD_SIZE": str(self._number),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(unused_port()),
            "PADDLE_TRAINERS_NUM": str(self._number),
            MEET: f"file:///proc/self/fd/{meeting}",
        }

    def _start_all(self, start: Callable[[Rank], Process]) -> None:
        for number in range(self._number):
            self._start(start, number)
            if self._told:  # by a signal that came meanwhile
                self._send(signal.SIGTERM)
                return

    def _start(
        self,
        start: Callable[[Rank], Process],
        number: int,
        inherits: Sequence[int] = (),
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> int:
        """Start the rank of a number, and return its process's.

        Args:
            inherits: descriptors that it inherits beside that of the meeting.
            more: variables of its own.
        """
        one = {"RANK": number, "LOCAL_RANK": number, "PADDLE_TRAINER_ID": number}
        own = self._common | {name: str(value) for name, value in one.items()} | dict(more)
        cpus = self._shares[number] if self._shares else None
        threads = max(1, len(os.sched_getaffinity(0)) // self._number)
        # As under an mpirun that binds ranks: else every rank has a thread for every CPU.
        own.setdefault("OMP_NUM_THREADS", str(len(cpus) if cpus else threads))
        stdout, to_stdout = os.pipe()
        stderr, to_stderr = os.pipe()
        self._pipes += [(stdout, number, 1), (stderr, number, 2)]
        private = (*self._private, *(pipe for pipe, _, _ in self._pipes))
        given = (self._meeting, *inherits)
        try:
            process = start(Rank(number, own, given, to_stdout, to_stderr, private, cpus))
        except Forked:  # this is the rank, which has moved them
            raise
        except BaseException:
            os.close(to_stdout)
            os.close(to_stderr)
            raise
        os.close(to_stdout)
        os.close(to_stderr)
        self._running[process.pid] = number, process
        return process.pid

    def _drive(self, forwarder: Forwarder, start: Callable[[Rank], Process]) -> None:
        """Hand on what the ranks write until all have ended."""
        self._add_pipes(forwarder)
        while self._running:
            self._reap()
            if self._running:
                forwarder.wait()

    def _add_pipes(self, forwarder: Forwarder) -> None:
        """Let the output of ranks be handed on that have been started."""
        for pipe, rank, stream in self._pipes:
            forwarder.add(pipe, self._output.places(rank, stream))
        self._pipes.clear()

    def _reap(self) -> None:
        for pid, (rank, process) in list(self._running.items()):
            status = process.poll()
            if status is not None:
                del self._running[pid]
                self._ended(rank, pid, status)

    def _ended(self, rank: int, pid: int, returned: int) -> None:
        status = self._status_of(pid, returned)
        if returned < 0 and not self._told and not self._ends:
            self._say(self._deaths.said(rank, pid, -returned))
        if status not in (0, PREEMPTED) and self._status in (0, PREEMPTED):
            self._status = status
            if self._output.files and not self._output.tee and not self._told:
                where = self._output.paths[rank]
                self._say(f"rank {rank} has failed, status {status}: see {where}")
            if not self._keep and not self._told:
                if returned < 0:
                    signal.setitimer(signal.ITIMER_REAL, LAST_WORDS)
                else:
                    self._end()
        elif status and not self._status:
            self._status = status

    def _status_of(self, pid: int, returned: int) -> int:
        """Return the status of a rank that has ended, and end the children that it has left."""
        status = returned if returned >= 0 else 128 - returned
        if status not in (0, PREEMPTED):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        return status

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number in ENDING:
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

    @staticmethod
    def _say(line: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it
            os.write(2, f"paddlempi run: {line}\n".encode())


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
