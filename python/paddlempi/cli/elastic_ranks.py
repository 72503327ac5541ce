"""``python -m paddlempi run -np 4 --elastic 2 train.py``: ranks that go on when one dies.

This process is the coordinator of the job (:mod:`paddlempi.elasticity`): every rank inherits one
end of a socket. A rank that has died is replaced, under the number that it was started with; its
rank in the world may be another one.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import NamedTuple

from .._exit import PREEMPTED
from ..elasticity.hub import Hub
from ..elasticity.places import ELASTIC
from ..startup import cpu_binding
from .forward import Forwarder
from .local_ranks import ENDING, LAST_WORDS, Output, Process, Rank, Ranks, start

__all__ = ["Bounds", "run"]

_SHORT = 10.0
"""A process that has lived for fewer seconds counts for the back-off."""

_FIRST_DELAY = 0.5
_LONGEST_DELAY = 30.0
"""Seconds until a replacement starts, if the one before it has lived short: twice as long each
time. A process that has lived longer is replaced at once."""

_TRIES = 3
"""So many replacements in a row may end before they come into the world."""


class Bounds(NamedTuple):
    """How many ranks an elastic job has."""

    least: int
    """With fewer it waits for replacements, or ends."""
    most: int
    replace: bool = True
    """Whether ranks that have died are replaced, and more are started up to ``most``."""


def run(
    number: int, bounds: Bounds, command: Sequence[str], output: Output, bind: bool = False
) -> int:
    """Run ``command`` as ``number`` ranks of an elastic job, and wait until all have ended.

    Args:
        number: of ranks to begin with.
        bounds: of their number.
        command: what every rank runs.
        output: where their lines go.
        bind: bind each to its share of the CPUs of this process.

    Returns:
        0 if the training has ended, whoever died before; ``dist.PREEMPTED`` if the job was asked to
        end; else the status of the rank that was not survived, 128 + n if signal n ended it.
    """
    cpus = os.sched_getaffinity(0)
    shares = cpu_binding.shares(bounds.most, cpus) if bind else None
    return _Elastic(number, bounds, output, shares).run(lambda rank: start(command, rank))


class _Place:
    """A number that processes have one after another."""

    def __init__(self) -> None:
        self.due: float | None = None  # when the next one starts
        self.began = 0.0
        self.short = 0  # how many in a row have lived short
        self.failed = 0  # how many in a row have not come into the world


class _Elastic(Ranks):
    """The ranks that run."""

    def __init__(
        self,
        number: int,
        bounds: Bounds,
        output: Output,
        shares: Sequence[Collection[int]] | None,
    ) -> None:
        super().__init__(number, False, output, shares)
        self._bounds = bounds
        self._places = [_Place() for _ in range(bounds.most)]
        self._grown = False
        self._signals: list[int] = []  # that have come and were not handed on
        self._pending = 0  # the status of a rank that has failed; nobody knows yet if it matters
        self._last = 0  # the status of the last rank that has left in order

    def _start_all(self, start: Callable[[Rank], Process]) -> None:
        """Nothing: the connections need the selector of the forwarder."""

    def _drive(self, forwarder: Forwarder, start: Callable[[Rank], Process]) -> None:
        hub = Hub(forwarder.selector, self._bounds.least, self._say, self._broken)
        self._hub, self._coordinator = hub, hub.coordinator
        for place in self._places[: self._number]:
            place.due = time.monotonic()
        while self._running or self._due() is not None:
            self._start_due(start)
            self._add_pipes(forwarder)
            self._hand_on()
            self._reap()
            self._look()
            if self._running:
                due = self._due()
                forwarder.wait(None if due is None else max(0.0, due - time.monotonic()))
            elif (due := self._due()) is not None:
                forwarder.wait(max(0.0, due - time.monotonic()))
        hub.close()
        if self._status in (0, PREEMPTED):
            failed = self._coordinator.stopped and not self._coordinator.over
            self._status = self._pending or (1 if failed else self._last)

    # Processes that start

    def _due(self) -> float | None:
        """When the next process is to start; None: none is."""
        return min((p.due for p in self._places if p.due is not None), default=None)

    def _start_due(self, start: Callable[[Rank], Process]) -> None:
        for number, place in enumerate(self._places):
            if place.due is None or place.due > time.monotonic():
                continue
            place.due, place.began = None, time.monotonic()
            ours, theirs = socket.socketpair()
            with theirs:
                there = theirs.fileno()
                try:
                    pid = self._start(start, number, [there], {ELASTIC: str(there)})
                except OSError as error:
                    ours.close()
                    if self._coordinator.generation < 0:
                        raise
                    self._say(f"rank {number} cannot be started: {error}")
                    self._replace(number, False)
                    continue
            self._coordinator.started(pid, f"rank {number} (process {pid})")
            self._hub.add(pid, ours)
        self._coordinator.expected = sum(p.due is not None for p in self._places)

    # Processes that end

    def _ended(self, rank: int, pid: int, returned: int) -> None:
        status = self._status_of(pid, returned)
        self._hub.hear(pid)  # that it leaves may not have been read
        was_in = self._coordinator.was_in(pid)
        left = self._coordinator.leaves(pid)
        name = f"rank {rank} (process {pid})"
        why = f"{name} ended with status {status}"
        if returned < 0:
            why = self._deaths.said(rank, pid, -returned)
        self._hub.drop(pid)
        if status in (0, PREEMPTED):
            self._last = status
        elif not self._pending and not (self._coordinator.over and not was_in):
            self._pending = status
        goes_on = not (self._told or self._ends or self._coordinator.stopped)
        if goes_on and returned > 0 and status != PREEMPTED and self._coordinator.generation < 0:
            self._coordinator.stop(f"{why} before the training began")
        elif goes_on and (not left or status not in (0, PREEMPTED)):
            self._replace(rank, was_in)
        self._coordinator.expected = sum(p.due is not None for p in self._places)
        if not self._coordinator.ended(pid, why) and goes_on:
            self._say(f"{why}, before it came into the job")

    def _replace(self, number: int, was_in: bool) -> None:
        """Let a process start in the place of one that has ended."""
        place, now = self._places[number], time.monotonic()
        place.failed = 0 if was_in else place.failed + 1
        if not self._bounds.replace or place.failed >= _TRIES:
            if self._bounds.replace:
                self._say(
                    f"{_TRIES} processes in a row have ended as rank {number} before they came "
                    "into the job: it is not replaced any more"
                )
            return
        place.short = place.short + 1 if now - place.began < _SHORT else 0
        delay = _FIRST_DELAY * 2 ** (place.short - 2) if place.short > 1 else 0.0
        place.due = now + min(delay, _LONGEST_DELAY)

    def _broken(self, pid: int, nonsense: bool) -> None:
        """A process has closed its connection: it ends. Or it says what nobody understands."""
        if nonsense and pid in self._running:
            self._say(f"process {pid} says what is no message of an elastic job, and is killed")
            os.kill(pid, signal.SIGKILL)

    # The job

    def _look(self) -> None:
        """Do what follows from what the coordinator has decided."""
        coordinator = self._coordinator
        if coordinator.calm:
            self._pending = 0
            if not self._grown and self._bounds.replace:
                self._grown = True
                for place in self._places[self._number :]:
                    place.due = time.monotonic()
        if (coordinator.stopped or self._told) and not self._ends:
            for place in self._places:
                place.due = None
            coordinator.expected = 0
            coordinator.decide()
        if coordinator.stopped and not self._ends and not self._told:
            self._ends = True
            # They say why they end; who knows nothing of it is ended.
            signal.setitimer(signal.ITIMER_REAL, LAST_WORDS)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Keep a signal: this may be the middle of what the coordinator does."""
        self._signals.append(number)

    def _hand_on(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number in ENDING and not self._told:
                self._coordinator.end_job()  # before the signal: then each knows that it is for all
            super()._on_signal(number, None)
