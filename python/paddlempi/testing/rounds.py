"""Rounds: every rank sends one message, rank 0 decides, every rank gets the same answer.

Rank 0 runs the ``Coordinator``, a thread beside the tests, so that a rank 0 that hangs in MPI
can still gather everyone's stacks, print the report and end the job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import selectors
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from .channel import ChannelError, Connection, Links, Message, ranks_text
from .deadline import Watchdog, stacks
from .report import agree, compare_collections
from .witness import Witness

_TICK = 0.2
_DUMP_SECONDS = 3.0
_ENOUGH = 10.0
_ORPHAN_SECONDS = 1.0


@dataclass
class Fatal:
    """Why the job has to end now: ranks that hang, or ranks that are gone."""

    summary: str
    test: str | None
    hung: list[int]
    stacks: dict[int, str] = field(default_factory=dict)
    output: dict[int, str] = field(default_factory=dict)


class Exchange(Protocol):
    """One rank's side of the rounds."""

    def start(self) -> None:
        """Start the thread that listens."""

    def swap(self, message: Message) -> Message:
        """Send this rank's message, wait for all others', return the answer."""

    def begin(self, test: str | None, seconds: float) -> None:
        """Say which test runs from now on and how long it may (0: for ever)."""

    def leave(self) -> None:
        """Wait until rank 0 has printed everything, then part."""

    def forget(self) -> None:
        """In a forked child: let go of the sockets, or a dead parent would look alive."""


def _thread(target: Callable[[], None]) -> threading.Thread:
    return threading.Thread(target=target, name="paddlempi-testing", daemon=True)


class Coordinator:
    """Rank 0's side of the rounds, and its thread that decides."""

    def __init__(
        self,
        links: Links,
        watchdog: Watchdog,
        witness: Witness,
        default_seconds: float,
        output: Callable[[], str],
        on_fatal: Callable[[Fatal], None],
    ) -> None:
        self._thread = _thread(self._run)
        self._links = links
        self._size = 1 + len(links.data)
        self._watchdog = watchdog
        self._witness = witness
        self._default = default_seconds
        self._output = output
        self._on_fatal = on_fatal
        self._own: deque[Message] = deque()
        self._answers: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._wake, self._woken = os.pipe()
        self._arrived: dict[int, Message] = {}
        self._first_arrival = 0.0
        # The test that runs, the seconds it may take, the moment when they are over.
        self._test: tuple[str | None, float, float] = (None, 0.0, 0.0)
        self._left: str | None = None
        self._done = False

    # The rank's own side, called by the thread that runs the tests.

    def start(self) -> None:
        self._thread.start()

    def swap(self, message: Message) -> Message:
        self._own.append(message)
        os.write(self._woken, b"x")
        return self._answers.get()

    def begin(self, test: str | None, seconds: float) -> None:
        self._test = (test, seconds, time.monotonic() + seconds if seconds else 0.0)
        self._witness.note(test)

    def leave(self) -> None:
        for connection in (*self._links.data.values(), *self._links.control.values()):
            with contextlib.suppress(OSError):
                connection.send({"kind": "bye"})
        self._thread.join(timeout=_TICK * 5)
        self._links.close()
        self._witness.close()

    def forget(self) -> None:
        self._links.close()
        self._witness.forget()

    # The thread.

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # or the ranks would wait for ever
            self._fatal(Fatal(f"the test harness failed on rank 0: {error!r}", self._test[0], []))

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ, -1)
            for rank, connection in self._links.data.items():
                selector.register(connection, selectors.EVENT_READ, rank)
            while not self._done:
                for key, _ in selector.select(_TICK):
                    self._read(key.data)
                    if self._done:
                        return
                limit = self._limit()
                if limit and time.monotonic() > limit:
                    self._expire()

    def _read(self, rank: int) -> None:
        if rank < 0:
            os.read(self._wake, 4096)
            while self._own:
                self._arrive(0, self._own.popleft())
            return
        try:
            messages, is_open = self._links.data[rank].drain()
        except (ChannelError, ValueError) as error:
            self._fatal(Fatal(f"rank {rank} sent what is no message: {error}", self._test[0], []))
            return
        for message in messages:
            self._arrive(rank, message)
        if not is_open and not self._done:
            self._lost(rank)

    def _limit(self) -> float:
        """The moment at which somebody hangs; 0 while nobody can."""
        test, _, limit = self._test
        if test is None and self._arrived and self._default:
            return self._first_arrival + self._default
        return limit

    def _arrive(self, rank: int, message: Message) -> None:
        if not self._arrived:
            self._first_arrival = time.monotonic()
        self._arrived[rank] = message
        leavers = [r for r, m in self._arrived.items() if m["kind"] == "finish"]
        if leavers and self._left is None:
            note = self._arrived[leavers[0]].get("note") or "it left the session"
            self._left = f"rank {leavers[0]} stopped: {note}"
        if leavers and len(leavers) < len(self._arrived):
            self._stop([r for r in self._arrived if r not in leavers], self._left or "")
        if len(self._arrived) == self._size:
            self._resolve()

    def _resolve(self) -> None:
        arrived, first = self._arrived, self._arrived[0]
        keys = {r: (m["kind"], m.get("test"), m.get("when")) for r, m in arrived.items()}
        if len(set(keys.values())) > 1:
            where = "; ".join(
                f"{ranks_text([r for r in keys if keys[r] == key])}: "
                + " ".join(str(part) for part in key if part is not None)
                for key in dict.fromkeys(keys.values())
            )
            self._stop(list(arrived), f"the ranks are no longer in the same test ({where})")
            return
        self._arrived = {}
        if first["kind"] == "report":
            verdict = agree(arrived)
            answer: Message = {
                "outcome": verdict.outcome,
                "wasxfail": verdict.wasxfail,
                "ranks": verdict.ranks,
            }
            self._answer_all(answer, arrived)
        elif first["kind"] == "agree":
            failures = {r: m["failure"] for r, m in arrived.items() if m["failure"]}
            self._answer_all({"failures": failures}, arrived)
        elif first["kind"] == "collect":
            errors = {r: m["errors"] for r, m in arrived.items() if m["errors"]}
            problem = None
            if not errors:
                problem = compare_collections({r: m["ids"] for r, m in arrived.items()})
            self._answer_all({"problem": problem, "errors": errors}, arrived)
        else:
            statuses = {r: int(m["status"]) for r, m in arrived.items()}
            notes = [f"rank {r}: {m['note']}" for r, m in sorted(arrived.items()) if m["note"]]
            self._done = True
            status = statuses[0] or max(statuses.values())
            self._answer_all({"status": status, "notes": notes}, arrived)

    def _answer_all(self, answer: Message, arrived: dict[int, Message]) -> None:
        for connection in self._links.data.values():
            with contextlib.suppress(OSError):  # a rank that is gone shows up in _read
                connection.send(answer)
        self._answers.put({**answer, "all": arrived})

    def _stop(self, ranks: list[int], text: str) -> None:
        for rank in ranks:
            self._arrived.pop(rank)
            if rank == 0:
                self._answers.put({"stop": text})
            else:
                with contextlib.suppress(OSError):
                    self._links.data[rank].send({"stop": text})

    def _lost(self, rank: int) -> None:
        test = self._test[0]
        where = f"while {test} ran" if test else "between tests"
        text = f"rank {rank} ended {where}, without a report"
        # The launcher may kill this rank within a millisecond: the one line first.
        self._witness.say(text)
        self._fatal(Fatal(text, test, []))

    def _expire(self) -> None:
        test, seconds, _ = self._test
        hung = [r for r in range(self._size) if r not in self._arrived]
        rest = [r for r in range(self._size) if r in self._arrived]
        seconds = seconds if test is not None else self._default
        text = f"{ranks_text(hung)} did not finish within the deadline of {seconds:g} s"
        if rest:
            text += f" ({ranks_text(rest)} waited)"
        fatal = Fatal(text, test, hung, {0: stacks()}, {0: self._output()})
        for rank, (trace, output) in self._ask_for_stacks().items():
            fatal.stacks[rank], fatal.output[rank] = trace, output
        for rank in range(self._size):
            fatal.stacks.setdefault(
                rank, "no answer: this rank holds Python's lock, or its host is gone\n"
            )
        self._fatal(fatal)

    def _ask_for_stacks(self) -> dict[int, tuple[str, str]]:
        answers: dict[int, tuple[str, str]] = {}
        end = time.monotonic() + _DUMP_SECONDS
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._links.control.items():
                with contextlib.suppress(OSError):
                    connection.send({"kind": "dump"})
                    selector.register(connection, selectors.EVENT_READ, rank)
            while selector.get_map() and time.monotonic() < end:
                for key, _ in selector.select(max(0.0, end - time.monotonic())):
                    messages, is_open = self._links.control[key.data].drain()
                    for message in messages:
                        answers[key.data] = (str(message["stacks"]), str(message["output"]))
                    if messages or not is_open:
                        selector.unregister(key.fileobj)
        return answers

    def _fatal(self, fatal: Fatal) -> None:
        """Report and end this rank with status 1; the launcher ends the others."""
        # From this thread only C can do it: the launcher's SIGTERM must not cut the report off.
        ctypes.CDLL(None).signal(int(signal.SIGTERM), ctypes.c_void_p(1))
        threading.Timer(_ENOUGH, os._exit, (1,)).start()
        try:
            self._on_fatal(fatal)
            self._witness.dismiss()
        except BaseException as error:  # the job ends here in any case
            self._watchdog.write(f"\npaddlempi: {fatal.summary}\n(no report: {error!r})\n")
        for connection in self._links.control.values():
            with contextlib.suppress(OSError):
                connection.send({"kind": "abort"})
        os._exit(1)


class Follower:
    """The side of every other rank; its thread sleeps until rank 0 asks for something."""

    def __init__(self, links: Links, output: Callable[[], str]) -> None:
        self._thread = _thread(self._run)
        self._data: Connection = links.data[0]
        self._control: Connection = links.control[0]
        self._output = output

    def start(self) -> None:
        self._thread.start()

    def swap(self, message: Message) -> Message:
        self._data.send(message)
        answer = self._data.receive()
        if answer is None:
            self._orphaned()
        assert answer is not None
        return answer

    def begin(self, test: str | None, seconds: float) -> None:
        pass  # rank 0 keeps the time for all

    def leave(self) -> None:
        self._data.receive()
        self._thread.join(timeout=_TICK * 5)
        self.forget()

    def forget(self) -> None:
        self._data.close()
        self._control.close()

    def _run(self) -> None:
        while True:
            try:
                message = self._control.receive()
            except (ChannelError, OSError, ValueError):
                message = None
            kind = message["kind"] if message else "lost"
            if kind == "bye":
                return
            if kind == "dump":
                with contextlib.suppress(OSError):
                    self._control.send({"stacks": stacks(), "output": self._output()})
            elif kind == "abort":
                os._exit(1)
            else:
                self._orphaned()

    def _orphaned(self) -> None:
        """End: rank 0 is gone, its witness says so, and the launcher may not care."""
        time.sleep(_ORPHAN_SECONDS)
        os._exit(1)
