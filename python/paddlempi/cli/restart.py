"""``python -m paddlempi run --restarts 3 -- mpirun ...``: start it anew after a rank died."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from .. import _marks, _processes
from .._exit import PREEMPTED
from . import marks as marks_of
from . import options, paddle_alone, survivors
from .absent import Absent

__all__ = ["Ending", "add_to", "judge", "judge_elastic", "run"]

_COUNT = "PADDLEMPI_RESTART"
"""The environment variable that tells the ranks how many attempts came before."""

_LAST_GRACE = 10.0
"""Seconds between the signal that ends the launcher and SIGKILL for the whole job."""

_LOOK_EVERY = 2.0
"""Seconds between two looks for ranks that have ended before they came to init."""

_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_FORWARDED = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the options of this form of the command."""
    around = parser.add_argument_group("options for -- COMMAND")
    around.add_argument(
        "--restarts",
        type=_count,
        metavar="N",
        help="start COMMAND anew, at most N times, when a rank has died (default: 0)",
    )
    around.add_argument(
        "--restart-on-exception",
        action="store_const",
        const=True,
        help="also when a rank has ended by an uncaught exception or a status other than 0",
    )
    around.add_argument(
        "--restart-preempted",
        action="store_const",
        const=True,
        help=f"also when the ranks have ended with dist.PREEMPTED ({PREEMPTED}); not counted",
    )
    around.add_argument(
        "--grace",
        type=options.seconds,
        metavar="SECONDS",
        help="how long the job may go on after run was told to end (default: 60)",
    )
    around.add_argument(
        "--keep-survivors",
        action="store_const",
        const=True,
        help="have COMMAND, an mpirun on one node, leave the other ranks alone when one dies; if "
        "they end well, so does the job: asynchronous training with parameter servers goes on",
    )
    around.add_argument(
        "--init-wait",
        type=options.seconds,
        metavar="SECONDS",
        help="how long ranks may wait in init_process_group for one that has ended before it came "
        "there; then the attempt is ended, and that counts as a death (default: 20)",
    )
    around.add_argument(
        "--marks",
        metavar="DIR",
        help="a folder that all hosts of the job see, for notes of how ranks end (default: a "
        "temporary one, which is enough for one host)",
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: it must be at least 0, a whole number")
    return int(text)


def given(chosen: argparse.Namespace) -> list[str]:
    """Return the options of this form that the command line has."""
    names = (
        "restarts",
        "restart_on_exception",
        "restart_preempted",
        "grace",
        "keep_survivors",
        "init_wait",
        "marks",
    )
    there = (name for name in names if getattr(chosen, name) is not None)
    return [f"--{name.replace('_', '-')}" for name in there]


@dataclass(frozen=True)
class Ending:
    """How an attempt ended, and why we think so."""

    kind: Literal["done", "died", "failed", "preempted"]
    status: int
    """What ``run`` returns if no attempt follows. It is 0 only if the kind is ``done``."""
    why: str


def judge(
    status: int, marks: Sequence[marks_of.Mark], *, lose: bool = False, asked: bool = False
) -> Ending:
    """Tell a death from an exception of the program, and both from a preemption.

    Args:
        status: the launcher's exit status; 128 + n if signal n ended it. Some launchers can be told
            to give 0 whatever happens to a rank.
        marks: what the ranks have written.
        lose: a rank may be lost, if the others end well. Some launchers end all of them even so.
        asked: the job was asked to end, by a signal to ``run``. The ranks tell of one to them.
    """
    of_launcher = f"the launcher's status is {status}"
    # If no rank has left its world in order, that is how this program ends.
    lost = [mark.rank for mark in marks if not mark.left]
    lost = lost if len(lost) < len(marks) and not lose else []
    preempted = asked or any(mark.asked for mark in marks)
    preempted &= status == PREEMPTED or any(mark.status == PREEMPTED for mark in marks)
    for mark in marks:
        if mark.failed and not mark.by_death and not _excused(mark, status, preempted, lost):
            return Ending("failed", status or mark.status or 1, _how(mark))
    for mark in marks:
        if mark.by_death:
            said = mark.raised or f"rank(s) [{mark.dead}] had died"
            return Ending("died", status or 1, f"a rank died, as rank {mark.rank} says: {said}")
    if preempted and not lost:
        return Ending("preempted", PREEMPTED, f"the ranks were preempted (status {PREEMPTED})")
    if status and not marks and not (lose and _tells_of_signal(status)):
        why = f"no rank has told that it came to init_process_group; {of_launcher}"
        return Ending("failed", status, why)
    if status == PREEMPTED and not lost:
        return Ending("failed", status, f"{of_launcher}, {_UNASKED}")
    if status:
        return Ending("died", status, f"a rank died; {of_launcher}")
    if lost:
        return Ending("died", 1, f"rank(s) {lost} ended without leaving the job; {of_launcher}")
    return Ending("done", 0, of_launcher)


def judge_elastic(status: int, marks: Sequence[marks_of.Mark], *, asked: bool = False) -> Ending:
    """Tell the endings of a job of ``run --elastic`` apart, which has survived deaths and failures.

    Its status says what it has not survived. The arguments are those of :func:`judge`.
    """
    of_launcher = f"the launcher's status is {status}"
    if status == 0:
        return Ending("done", 0, of_launcher)
    if status > 128 and not asked:
        return Ending("died", status, f"a rank died; {of_launcher}")
    return judge(status, marks, lose=True, asked=asked)


_UNASKED = "and no signal had asked the job to end"


def _excused(mark: marks_of.Mark, status: int, preempted: bool, lost: Sequence[int]) -> bool:
    """Whether a rank failed only because of a preemption, or beside a death."""
    if preempted:
        # A rank that was preempted has left, and this one may have waited for it.
        return mark.status == PREEMPTED or mark.cause == "left"
    # The launcher has seen another rank end first, and that one has left no word.
    return mark.status == PREEMPTED and bool(lost) and status not in (0, PREEMPTED)


def _tells_of_signal(status: int) -> bool:
    """Whether a launcher's status is that of a rank that was killed: 137, 255, of Hydra 9 or 11."""
    return status > 128 or status in (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)


def _how(mark: marks_of.Mark) -> str:
    """Say how a rank failed."""
    ended = "ended" if mark.status is None else f"ended with status {mark.status}"
    asked = f", {_UNASKED}" if mark.status == PREEMPTED else ""
    return f"rank {mark.rank} {ended}{asked}{f': {mark.raised}' if mark.raised else ''}"


def run(chosen: argparse.Namespace, command: Sequence[str]) -> int:
    """Run ``command``, the launcher of a job, until it ends well or there is no restart left.

    Returns:
        The exit status of the last attempt: the launcher's, or that of a rank if the
        launcher's is 0 although a rank has died or failed.
    """
    if said := paddle_alone.warning(command):
        _say(said)
    restarts = chosen.restarts or 0
    keep = bool(chosen.keep_survivors)
    if keep and "--supervised" not in command:  # our own launcher has the option already
        try:
            command = survivors.keeping(command)
        except ValueError as error:
            chosen.parser.error(str(error))
        except OSError as error:
            _say(f"{command[0]} cannot be started: {error}")
            return 127
    grace = 60.0 if chosen.grace is None else chosen.grace
    init_wait = 20.0 if chosen.init_wait is None else chosen.init_wait
    supervisor = _Supervisor(grace, init_wait, direct=not chosen.elastic)
    attempt = used = 0
    while True:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="paddlempi-run-", dir=chosen.marks) as folder:
            try:
                status = supervisor.attempt(command, folder, {_COUNT: str(attempt)})
            except OSError as error:
                _say(f"{command[0]} cannot be started: {error}")
                return 127
            marks = marks_of.read(Path(folder))
            if chosen.elastic:
                ending = judge_elastic(status, marks, asked=supervisor.asked)
            else:
                ending = judge(status, marks, lose=keep, asked=supervisor.asked)
        if supervisor.absent:
            ending = Ending("died", status or 1, supervisor.absent)
        if supervisor.stopped and ending.kind == "died":  # by us
            ending = replace(ending, why=f"told to end; the launcher's status is {status}")
        counted = ending.kind != "preempted"
        wanted = {
            "done": False,
            "died": True,
            "failed": chosen.restart_on_exception,
            "preempted": chosen.restart_preempted,
        }[ending.kind]
        told = f"attempt {attempt} ended after {time.monotonic() - began:.1f} s: {ending.why}"
        if supervisor.stopped or not wanted or (counted and used == restarts):
            if ending.kind == "died" and not supervisor.stopped and restarts:
                told += "; no restart is left"
            if ending.kind != "done":
                _say(told)
            return ending.status
        attempt += 1
        used += counted
        _say(f"{told}; starting attempt {attempt}, {restarts - used} restart(s) left")


def _say(line: str) -> None:
    # One write, because the ranks' output goes to the same place.
    sys.stderr.write(f"paddlempi run: {line}\n")
    sys.stderr.flush()


class _Supervisor:
    """Runs the attempts one after another, and hands signals on to the one that runs.

    A signal that ends a job usually leaves its ranks a second or less, because the launcher kills
    them. So if ranks of this host watch for preemption, SIGTERM goes to them first, and to the
    launcher when the grace is over.

    Args:
        grace, init_wait: options of the command.
        direct: whether such a rank gets the signal from this process. The launcher of an elastic
            job hands it on, because a rank has to know that it is for all.
    """

    def __init__(self, grace: float, init_wait: float, direct: bool = True) -> None:
        self.stopped = False  # a signal has asked to end
        self.asked = False  # a signal has come in this attempt, also one that is only handed on
        self.absent = ""  # which ranks this attempt was ended for, because they never came to init
        self._grace, self._init_wait, self._direct = grace, init_wait, direct
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[tuple[int, bool]] = []  # signals that came while there was no process
        self._mark = ""
        self._folder = Path()
        self._steps: list[Any] = []  # what the next alarms do
        for number in _FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._on_signal)
        signal.signal(signal.SIGALRM, self._on_alarm)

    def attempt(self, command: Sequence[str], folder: str, variables: Mapping[str, str]) -> int:
        """Run the launcher until it and all processes of the job on this host have ended.

        Returns:
            The launcher's exit status; 128 + n if signal n ended it.

        Raises OSError if the launcher cannot be started.
        """
        self._mark, self._folder = uuid.uuid4().hex, Path(folder)
        self.asked, self.absent = self.stopped, ""
        self._early = [one for one in self._early if one[0] in _ENDING]
        job = {_processes.MARK: self._mark, _marks.FOLDER: folder}
        began = time.time()
        # In a session of its own: a terminal sends Ctrl-C to run alone, which hands it on once.
        process = subprocess.Popen(
            command, env={**os.environ, **variables, **job}, start_new_session=True
        )
        self._process = process
        # On a busy machine ranks may run, and signals come, before Popen has returned.
        early, self._early = self._early, []
        for number, again in early:
            self._hand_on(number, again)
        status = self._wait(process)
        self._process = None
        signal.setitimer(signal.ITIMER_REAL, 0)
        _processes.kill_marked(self._mark, _processes.GRACE)
        _processes.sweep(began)
        return status if status >= 0 else 128 - status

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the launcher, and end it if ranks wait in init for one that never comes."""
        absent = Absent(self._mark, self._folder, self._init_wait)
        while not absent.over and not self.absent:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_EVERY)
            self.absent = absent.look()
        if self.absent:
            self._steps = [self._kill]
            self._terminate()
        return process.wait()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        again, self.stopped = self.stopped, self.stopped or number in _ENDING
        self.asked = True
        if self._process is None:
            self._early.append((number, again))
        else:
            self._hand_on(number, again)

    def _hand_on(self, number: int, again: bool) -> None:
        """Give a signal to the ranks that watch for preemption, or to the launcher.

        Args:
            again: a signal before this one has asked the job to end.
        """
        direct = self._direct and not again and number == signal.SIGTERM
        watching = self._watching() if direct else []
        for pid, wanted in watching:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, wanted)
        if watching:
            self._steps = [self._terminate, self._kill]
            signal.setitimer(signal.ITIMER_REAL, self._grace or 0.001)
        else:
            self._pass_on(number)

    def _pass_on(self, number: int) -> None:
        """Send the launcher a signal. If it is one that ends jobs, the grace begins."""
        if self._process is not None:
            self._process.send_signal(number)
        if number in _ENDING:
            self._steps = [self._kill]
            signal.setitimer(signal.ITIMER_REAL, self._grace or 0.001)

    def _watching(self) -> list[tuple[int, int]]:
        """Return the ranks of this host that watch for preemption: their pids and signals."""
        ours = set(_processes.marked(self._mark))
        marks = marks_of.read(self._folder)
        return [(m.pid, m.watches) for m in marks if m.watches and not m.left and m.pid in ours]

    def _on_alarm(self, _: int, __: FrameType | None) -> None:
        if self._process is not None and self._steps:
            self._steps.pop(0)()

    def _terminate(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, _LAST_GRACE)

    def _kill(self) -> None:
        _processes.kill_marked(self._mark)
