"""The hub: a process that rank 0 forks. The pytests of all ranks talk to it (``client.py``).

A *round* is one message from every rank. When all messages have arrived, the hub sends all of them
to every rank. This keeps the ranks in lock-step. The hub therefore knows at any time which ranks
are late. If a connection ends, it knows that the rank has ended.

The hub does not use MPI and is not a thread of rank 0, so it can still report after a collective
hangs or rank 0 dies.
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

MEET_SECONDS = 120.0  # until all ranks must have connected
CONNECTION_SECONDS = 10  # for one attempt to connect, and for one send to a rank
ADVICE = "every rank has to run the same `pytest --mpi`"
_HELLO_BYTES = 4096  # the longest message from a connection that has not said which rank it is
_STRANGERS = 64  # connections that have not said it, beside two for each rank
_DUMP_SECONDS = 3.0  # for the ranks to send their stacks

CONNECTION_ERRORS = (OSError, EOFError, ValueError, RecursionError)

encode = json.JSONEncoder(default=str).encode
decode = functools.lru_cache(1)(json.loads)  # ranks that agree send equal texts


class Connection:
    """A socket that carries messages. A message is one line of JSON."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.rank = -1  # in the hub: the rank at the other end; -1 until it has said hello
        self.max_bytes = math.inf  # longest message that is accepted
        self.proved = False  # in the hub: the other end has shown the token
        self._data = bytearray()
        self._messages: list[Message] = []
        if sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message | str) -> None:
        """Send a message. Errors are ignored: a ``read``, here or at the other end, raises them."""
        text = message if isinstance(message, str) else encode(message)
        with contextlib.suppress(OSError):
            self.sock.sendall(f"{text}\n".encode())

    def read(self) -> list[Message]:
        """Read once from the socket. Return the messages that are complete now.

        Raises one of CONNECTION_ERRORS if the other end has gone or sends something that is not a
        message.
        """
        part = self.sock.recv(1 << 16)
        self._data += part
        if not part or len(self._data) > self.max_bytes:
            raise EOFError
        if b"\n" not in part:
            return []
        *lines, self._data = self._data.split(b"\n")
        messages = [decode(bytes(line)) for line in lines]
        if not all(isinstance(message, dict) for message in messages):
            raise ValueError
        return messages

    def prove(self, token: str) -> None:
        """Read what is missing of the token with which a connection begins, and nothing behind it.

        Raises EOFError if the other end has gone or shows another token.
        """
        part = self.sock.recv(len(token) - len(self._data))
        self._data += part
        if len(self._data) == len(token):
            self.proved = hmac.compare_digest(bytes(self._data), token.encode())
            self._data.clear()
        if not part or not (self.proved or self._data):
            raise EOFError

    def receive(self) -> Message | None:
        """Wait for the next message and return it. None: the connection has ended."""
        with contextlib.suppress(*CONNECTION_ERRORS):
            while not self._messages:
                self._messages += self.read()
            return self._messages.pop(0)
        return None

    def is_same_user(self) -> bool:
        """Whether a process of this user is at the other end. Always true for TCP."""
        if self.sock.family != socket.AF_UNIX:
            return True
        size = struct.calcsize("3i")
        peer = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        return bool(struct.unpack("3i", peer)[1] == os.getuid())


@dataclass
class Hub:
    """The state of the hub's process.

    A rank has two connections. The thread that runs its tests uses the one in ``rounds``. A second
    thread, which sleeps until the hub wants stacks or a report, uses the one in ``watches``.

    Invariants: ``rounds`` and ``watches`` have the ranks that have connected and not ended.
    ``waiting`` has the messages that have arrived for the current round, by rank. After
    ``deadline`` (``time.monotonic()``), the ranks that are missing from ``waiting`` are late.
    ``fatal`` is the reason why the job has to end, once there is one. ``reported`` says that the
    user has been told the reason.
    """

    size: int
    listener: socket.socket
    rank0: InitVar[tuple[socket.socket, socket.socket]]
    token: str
    idle_seconds: float
    say: Callable[[str], None]
    rounds: dict[int, Connection] = field(default_factory=dict)
    watches: dict[int, Connection] = field(default_factory=dict)
    waiting: dict[int, Message] = field(default_factory=dict)
    stage: str = "meeting"
    """"meeting", then "running", then "over" (all ranks have finished), then "ended"."""
    test: str | None = None
    seconds: float = 0.0
    """The deadline of ``test``; 0: none."""
    fatal: Message | None = None
    reported: bool = False

    def __post_init__(self, rank0: tuple[socket.socket, socket.socket]) -> None:
        self.deadline = time.monotonic() + MEET_SECONDS
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)
        self._assign(self._add(rank0[0]), 0, self.rounds)
        self._assign(self._add(rank0[1]), 0, self.watches)

    def serve(self) -> None:
        """Serve until all ranks have said goodbye, rank 0 has ended, or the ranks did not meet."""
        while self.stage != "ended":
            endless = self.deadline == math.inf
            timeout = None if endless else max(0.0, self.deadline - time.monotonic())
            for key, _ in self.selector.select(timeout):
                if key.data is None:
                    self._accept()
                elif key.data.fileno() >= 0:  # -1: closed when the rank's other connection ended
                    self._read(key.data)
            if time.monotonic() > self.deadline:
                self._deadline_passed()

    # Ranks that connect and end.

    def _accept(self) -> None:
        try:
            connection = self._add(self.listener.accept()[0])
        except OSError:  # no descriptor, or the other end has gone already
            time.sleep(0.01)
            return
        known = len(self.rounds) + len(self.watches)
        strangers = len(self.selector.get_map()) - 1 - known
        if strangers > _STRANGERS + 2 * self.size or not connection.is_same_user():
            self._close(connection)

    def _add(self, sock: socket.socket) -> Connection:
        # The kernel then ends a send to a rank that does not read. With settimeout, Python would
        # poll the socket before every call.
        limit = struct.pack("ll", CONNECTION_SECONDS, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connection = Connection(sock)
        connection.max_bytes = _HELLO_BYTES
        self.selector.register(connection, selectors.EVENT_READ, connection)
        return connection

    def _admit(self, connection: Connection, hello: Message) -> None:
        table = self.watches if hello.get("watch") else self.rounds
        rank = hello.get("rank")
        missing = set(range(self.size)) - table.keys()
        if connection.proved and isinstance(rank, int) and rank in missing:
            self._assign(connection, rank, table)
            connection.send({"kind": "welcome"})
        else:
            self._close(connection)

    def _assign(self, connection: Connection, rank: int, table: dict[int, Connection]) -> None:
        connection.rank, connection.max_bytes = rank, math.inf
        table[rank] = connection

    def _close(self, connection: Connection) -> None:
        self.selector.unregister(connection)
        connection.sock.close()

    def _rank_ended(self, rank: int, how: str = "ended") -> None:
        for table in (self.rounds, self.watches):
            if rank in table:
                self._close(table.pop(rank))
        where = f"while {self.test} ran" if self.test else "between tests"
        if rank == 0:
            leaves = self.waiting.get(0, {}).get("kind") == "bye"
            if self.stage != "meeting" and not leaves:  # only rank 0 could have reported
                text = f"rank 0 ended {where}, and the report with it"
                self._say(self.fatal["summary"] if self.fatal else text)
            self.stage = "ended"
        elif self.stage == "over":
            if self.rounds.keys() <= self.waiting.keys():
                self.stage = "ended"
        elif self.fatal is None:
            text = f"rank {rank} {how} {where}, without a report"
            self._say(text)  # first, because the launcher may kill rank 0 within a millisecond
            self._fail(text)
            self._report()

    def _say(self, text: str) -> None:
        if not self.reported:
            self.say(f"\npaddlempi: {text}\n")
        self.reported = True

    # Messages.

    def _read(self, connection: Connection) -> None:
        try:
            if connection.rank < 0 and not connection.proved:
                connection.prove(self.token)
                return
            messages = connection.read()
        except CONNECTION_ERRORS:
            if connection.rank < 0:
                self._close(connection)
            else:
                self._rank_ended(connection.rank)
            return
        for message in messages:
            if connection.rank >= 0 and connection.fileno() >= 0:
                try:
                    self._handle(connection.rank, message)
                except (AttributeError, KeyError, TypeError, ValueError):
                    self._rank_ended(connection.rank, "sent what is no message")
            elif connection.fileno() >= 0:  # -1: _admit has closed it
                self._admit(connection, message)

    def _handle(self, rank: int, message: Message) -> None:
        kind = message.get("kind")
        texts = [message.get(name, "") for name in ("kind", "test", "when", "note")]
        if kind is None or not all(text is None or isinstance(text, str) for text in texts):
            raise TypeError
        if kind == "begin":  # only rank 0 sends it: its deadline is the deadline of all ranks
            self.test, self.seconds = message["test"], message["seconds"]
            self.deadline = time.monotonic() + (self.seconds or math.inf)
        elif kind == "reported":
            self.reported = True
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
                self.deadline = time.monotonic() + (self.idle_seconds or math.inf)

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
        for rank, connection in self.rounds.items():
            connection.send(brief if rank else full)
        self.waiting = {}
        kind, _, when = key
        self.stage = {"finish": "over", "bye": "ended"}.get(kind, "running")
        if self.stage != "running" or when == "teardown":
            self.test = None
        if self.test is None:
            self.deadline = math.inf

    def _stop(self, keys: dict[tuple[Any, ...], list[int]]) -> None:
        """Stop the ranks that wait in different rounds.

        If some ranks have left their sessions, stop the others. Else stop all ranks.
        """
        left = {r: m for r, m in self.waiting.items() if m["kind"] == "finish"}
        if left:
            rank = min(left)
            text = f"rank {rank} stopped: {left[rank].get('note') or 'it left the session'}"
        else:
            stands = [f"{ranks_text(r)}: {' '.join(filter(None, k))}" for k, r in keys.items()]
            text = f"the ranks are no longer in the same test ({'; '.join(stands)})"
        for rank in self.waiting.keys() - left.keys():
            self.rounds[rank].send({"stop": text})
        self.waiting = left

    # Ranks that are late.

    def _deadline_passed(self) -> None:
        late = sorted(set(range(self.size)) - self.waiting.keys())
        if self.stage == "meeting":
            text = f"{ranks_text(late)} did not come within {MEET_SECONDS:g} s: {ADVICE}"
            for connection in self.rounds.values():
                connection.send({"stop": text})
            self.stage = "ended"
        elif self.fatal is None:
            seconds = self.seconds if self.test else self.idle_seconds
            text = f"{ranks_text(late)} did not finish within the deadline of {seconds:g} s"
            failed = {r for r, m in self.waiting.items() if _failure(m)}
            stands = [(failed, "failed"), (self.waiting.keys() - failed, "waited")]
            shown = [f"{ranks_text(ranks)} {verb}" for ranks, verb in stands if ranks]
            if shown:
                text += f" ({', '.join(shown)})"
            self._fail(text, late)
            self.deadline = time.monotonic() + _DUMP_SECONDS
            for connection in self.watches.values():
                connection.send({"kind": "dump"})
        else:
            for rank in self.watches:
                text = "no answer: this rank holds Python's lock, or its host is gone"
                self.fatal["stacks"].setdefault(rank, text)
            self._report()

    def _fail(self, summary: str, late: Sequence[int] = ()) -> None:
        self.fatal = {"kind": "fatal", "summary": summary, "test": self.test, "late": late}
        # A rank that failed no longer sends what the late ranks wait for: it is the reason.
        failures = [(r, _failure(m)) for r, m in sorted(self.waiting.items()) if _failure(m)]
        self.fatal |= {"failures": failures, "stacks": {}, "output": {}}

    def _report(self) -> None:
        """Tell rank 0 why the job has to end. Rank 0 reports it and ends the job."""
        assert self.fatal is not None
        self.deadline = math.inf
        lists = {name: sorted(self.fatal[name].items()) for name in ("stacks", "output")}
        if 0 in self.watches:
            self.watches[0].send(self.fatal | lists)


def fork_hub(
    size: int, listener: socket.socket, token: str, idle_seconds: float
) -> tuple[Connection, Connection]:
    """Start the hub's process. Return rank 0's two connections to it, as ``client.join`` does."""
    stderr = launcher_stderr()
    rounds, watch = socket.socketpair(), socket.socketpair()

    def say(text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(stderr, text.encode(errors="replace"))

    if os.fork() == 0:
        try:
            # The kernel schedules a new session as a group of its own, which would wake slower.
            os.setpgrp()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # A launcher believes that a rank lives while a descriptor of the rank is open.
            keep = (stderr, listener.fileno(), rounds[1].fileno(), watch[1].fileno())
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
    os.close(stderr)
    return Connection(rounds[0]), Connection(watch[0])


def _failure(message: Message) -> str:
    """Return the traceback of a rank whose test failed, from its message of a round, or ""."""
    if message.get("state") == "failed":
        return str(message["more"].get("text") or "failed")
    return str(message.get("failure") or "")


def ranks_text(ranks: Iterable[int]) -> str:
    """Return a text for messages that names the ranks: "rank 1", "ranks 0, 2-5"."""
    ordered = sorted(set(ranks))
    parts = []
    for _, pairs in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in pairs]
        parts.append(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)))
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(parts)
