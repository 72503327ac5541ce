"""The hub: a process beside rank 0 through which the ranks' pytests meet (``client.py``).

A *round* is one message of every rank: when all have come, each rank gets all of them, which
keeps the ranks in lock-step. So the hub knows at any time who is late, and by the end of a socket
who has ended. It shares nothing with MPI and is no thread of rank 0: neither a broken collective
nor the death of rank 0 takes its last words with it.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import math
import os
import selectors
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import groupby
from typing import Any

from .place import launcher_stderr

Message = dict[str, Any]

MEET_SECONDS = 120.0
LINE_SECONDS = 10
SAME = "every rank has to run the same `pytest --mpi`"
_HELLO_LIMIT = 4096
_DUMP_SECONDS = 3.0

BROKEN = (OSError, EOFError, ValueError, RecursionError)

encode = json.JSONEncoder(default=str).encode
decode = functools.lru_cache(1)(json.loads)  # ranks that agree say the same


class Line:
    """A socket that carries messages, each a line of JSON."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rank = -1  # the hub's note of who is at the other end, once that is known
        self.limit = math.inf  # of a message
        self._data = bytearray()
        self._messages: list[Message] = []
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message | str) -> None:
        """Send a message. What is wrong with the socket, the other end's ``read`` shows."""
        text = message if isinstance(message, str) else encode(message)
        with contextlib.suppress(OSError):
            self.sock.sendall(f"{text}\n".encode())

    def read(self) -> list[Message]:
        """Read once from the socket and return the messages that are complete with that.

        Raises one of BROKEN where the other side is gone or sends something else.
        """
        part = self.sock.recv(1 << 16)
        self._data += part
        if not part or len(self._data) > self.limit:
            raise EOFError
        if b"\n" not in part:
            return []
        *lines, self._data = self._data.split(b"\n")
        messages = [decode(bytes(line)) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError
        return messages

    def receive(self) -> Message | None:
        """Return the next message; None where there will be none."""
        with contextlib.suppress(*BROKEN):
            while not self._messages:
                self._messages += self.read()
            return self._messages.pop(0)
        return None

    def is_own_user(self) -> bool:
        """Whether this user is at the other end, as far as the kernel can tell."""
        if self.sock.family != socket.AF_UNIX:
            return True
        size = struct.calcsize("3i")
        peer = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return bool(struct.unpack("3i", peer)[1] == os.getuid())


@dataclass
class Hub:
    """What the process runs.

    Each rank has two lines: in ``rounds`` its tests' thread talks, in ``watches`` a thread that
    sleeps until the hub wants stacks or a report. Invariants: both have the ranks that have come
    and not ended, ``waiting`` the message of each that has come to the present round; ``limit``
    is the moment when somebody is late.
    """

    size: int
    listener: socket.socket
    own: InitVar[tuple[socket.socket, socket.socket]]
    token: str
    idle_seconds: float
    say: Callable[[str], None]
    rounds: dict[int, Line] = field(default_factory=dict)
    watches: dict[int, Line] = field(default_factory=dict)
    waiting: dict[int, Message] = field(default_factory=dict)
    stage: str = "meeting"  # running, over, ended
    test: str | None = None
    seconds: float = 0.0
    fatal: Message | None = None
    told: bool = False

    def __post_init__(self, own: tuple[socket.socket, socket.socket]) -> None:
        self.limit = time.monotonic() + MEET_SECONDS
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self._take(self._add(own[0]), 0, self.rounds)
        self._take(self._add(own[1]), 0, self.watches)

    def serve(self) -> None:
        """Serve until all ranks have said goodbye, or the job has to end."""
        while self.stage != "ended":
            left = None if self.limit == math.inf else max(0.0, self.limit - time.monotonic())
            for key, _ in self.selector.select(left):
                if key.data is None:
                    self._add(self.listener.accept()[0])
                elif key.data.fileno() >= 0:  # else its rank's other line has just ended
                    self._read(key.data)
            if time.monotonic() > self.limit:
                self._expire()

    # Who comes and goes.

    def _add(self, sock: socket.socket) -> Line:
        # The kernel limits a send to somebody who does not read; settimeout polls at each call.
        limit = struct.pack("ll", LINE_SECONDS, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        line = Line(sock)
        line.limit = _HELLO_LIMIT
        self.selector.register(line, selectors.EVENT_READ, line)
        return line

    def _admit(self, line: Line, hello: Message) -> None:
        table = self.watches if hello.get("watch") else self.rounds
        rank = hello.get("rank")
        known = hmac.compare_digest(str(hello.get("token")).encode(), self.token.encode())
        if known and line.is_own_user() and rank in set(range(self.size)) - table.keys():
            self._take(line, rank, table)
            line.send({"kind": "welcome"})
        else:
            self._close(line)

    def _take(self, line: Line, rank: int, table: dict[int, Line]) -> None:
        line.rank, line.limit = rank, math.inf
        table[rank] = line

    def _close(self, line: Line) -> None:
        self.selector.unregister(line)
        line.sock.close()

    def _lose(self, rank: int) -> None:
        for table in (self.rounds, self.watches):
            if rank in table:
                self._close(table.pop(rank))
        where = f"while {self.test} ran" if self.test else "between tests"
        if rank == 0:
            leaves = self.waiting.get(0, {}).get("kind") == "bye"
            if self.stage != "meeting" and not leaves:  # nobody is left to report
                text = f"rank 0 ended {where}, and the report with it"
                self._say(self.fatal["summary"] if self.fatal else text)
            self.stage = "ended"
        elif self.stage == "over":
            if self.rounds.keys() <= self.waiting.keys():
                self.stage = "ended"
        elif self.fatal is None:
            text = f"rank {rank} ended {where}, without a report"
            self._say(text)  # first, for the launcher may kill rank 0 within a millisecond
            self._fail(text)
            self._report()

    def _say(self, text: str) -> None:
        if not self.told:
            self.say(f"\npaddlempi: {text}\n")
        self.told = True

    # What they say.

    def _read(self, line: Line) -> None:
        try:
            messages = line.read()
        except BROKEN:
            if line.rank < 0:
                self._close(line)
            else:
                self._lose(line.rank)
            return
        for message in messages:
            if line.rank >= 0:
                self._hear(line.rank, message)
            elif line.fileno() >= 0:  # else it was turned away
                self._admit(line, message)

    def _hear(self, rank: int, message: Message) -> None:
        kind = message.get("kind")
        if kind == "begin":  # of a test; that rank 0 begins it counts for all
            self.test, self.seconds = message["test"], message["seconds"]
            self.limit = time.monotonic() + (self.seconds or math.inf)
        elif kind == "reported":
            self.told = True
        elif kind == "stacks" and self.fatal is not None:
            self.fatal["stacks"][rank] = message["stacks"]
            self.fatal["output"][rank] = message["output"]
            if self.fatal["stacks"].keys() >= self.watches.keys():
                self._report()
        elif self.fatal is None:
            self.waiting[rank] = message
            if len(self.waiting) == self.size:
                self._resolve()
            elif len(self.waiting) == 1 and self.test is None and self.stage == "running":
                self.limit = time.monotonic() + (self.idle_seconds or math.inf)

    def _resolve(self) -> None:
        keys: dict[tuple[Any, ...], list[int]] = {}
        for rank, message in sorted(self.waiting.items()):
            key = (message["kind"], message.get("test"), message.get("when"))
            keys.setdefault(key, []).append(rank)
        if len(keys) > 1:
            self._stop(keys)
            return
        messages = self.waiting.values()
        if all(message == self.waiting[0] for message in messages):
            brief = full = encode({"same": key[0]})
        else:
            shown = [{k: v for k, v in m.items() if k != "more"} for m in messages]
            brief = encode({"all": dict(zip(self.waiting, shown, strict=True))})
            full = encode({"all": self.waiting})
        for rank, line in self.rounds.items():
            line.send(brief if rank else full)
        self.waiting = {}
        kind, _, when = key
        self.stage = {"finish": "over", "bye": "ended"}.get(kind, "running")
        if self.stage != "running" or when == "teardown":
            self.test = None
        if self.test is None:
            self.limit = math.inf

    def _stop(self, keys: dict[tuple[Any, ...], list[int]]) -> None:
        """Stop the ranks that go on after another has left its session, or is elsewhere."""
        left = {r: m for r, m in self.waiting.items() if m["kind"] == "finish"}
        if left:
            rank = min(left)
            text = f"rank {rank} stopped: {left[rank]['note'] or 'it left the session'}"
        else:
            places = [f"{ranks_text(r)}: {' '.join(filter(None, k))}" for k, r in keys.items()]
            text = f"the ranks are no longer in the same test ({'; '.join(places)})"
        for rank in self.waiting.keys() - left.keys():
            self.rounds[rank].send({"stop": text})
        self.waiting = left

    # Who is late.

    def _expire(self) -> None:
        late = sorted(set(range(self.size)) - self.waiting.keys())
        if self.stage == "meeting":
            text = f"{ranks_text(late)} did not come within {MEET_SECONDS:g} s: {SAME}"
            for line in self.rounds.values():
                line.send({"stop": text})
            self.stage = "ended"
        elif self.fatal is None:
            seconds = self.seconds if self.test else self.idle_seconds
            text = f"{ranks_text(late)} did not finish within the deadline of {seconds:g} s"
            if self.waiting:
                text += f" ({ranks_text(self.waiting)} waited)"
            self._fail(text, late)
            self.limit = time.monotonic() + _DUMP_SECONDS
            for line in self.watches.values():
                line.send({"kind": "dump"})
        else:
            for rank in self.watches:
                text = "no answer: this rank holds Python's lock, or its host is gone"
                self.fatal["stacks"].setdefault(rank, text)
            self._report()

    def _fail(self, summary: str, late: Sequence[int] = ()) -> None:
        self.fatal = {"kind": "fatal", "summary": summary, "test": self.test, "late": late}
        self.fatal |= {"stacks": {}, "output": {}}

    def _report(self) -> None:
        """Have rank 0 report why the job has to end, and end it."""
        assert self.fatal is not None
        self.limit = math.inf
        lists = {name: sorted(self.fatal[name].items()) for name in ("stacks", "output")}
        if 0 in self.watches:
            self.watches[0].send(self.fatal | lists)


def fork_hub(
    size: int, listener: socket.socket, token: str, idle_seconds: float
) -> tuple[Line, Line]:
    """Start the hub's process; return rank 0's two lines to it."""
    loud = launcher_stderr()
    rounds, watch = socket.socketpair(), socket.socketpair()

    def say(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(loud, text.encode(errors="replace"))

    if os.fork() == 0:
        try:
            os.setpgrp()  # a new session would be slower to wake: schedulers group by it
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # A launcher takes a rank for alive while its descriptors are open.
            keep = (loud, listener.fileno(), rounds[1].fileno(), watch[1].fileno())
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor not in keep:
                    with contextlib.suppress(OSError):
                        os.close(descriptor)
            Hub(size, listener, (rounds[1], watch[1]), token, idle_seconds, say).serve()
        except BaseException:
            say(f"\npaddlempi: the hub of the tests failed\n{traceback.format_exc()}")
        finally:
            os._exit(0)
    for end in (rounds[1], watch[1]):
        end.close()
    os.close(loud)
    return Line(rounds[0]), Line(watch[0])


def ranks_text(ranks: Iterable[int]) -> str:
    """Return "rank 1", "ranks 0, 2-5": how messages name ranks."""
    ordered = sorted(set(ranks))
    parts = []
    for _, pairs in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in pairs]
        parts.append(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)))
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(parts)
