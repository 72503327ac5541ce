"""A rank's way to the hub, and its side of the rounds.

On one host the hub listens on an abstract Unix socket named after the launcher's job, and the
kernel vouches for the user behind it. Over several hosts it listens on TCP. Before MPI runs,
nobody there knows rank 0's address; so that and a token go out once through paddlempi's init and
a broadcast. From then on nothing here uses MPI.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from .hub import LINE_SECONDS, MEET_SECONDS, SAME, Line, Message, fork_hub
from .place import Place, initialise


class HubError(Exception):
    """This rank cannot go on with the others; the text says why."""


class Client:
    """A rank's side: the tests' thread swaps messages, a thread of its own answers the hub.

    ``snapshot`` returns what the hub wants to know of a rank that is late, ``on_fatal`` reports
    why the job ends; it returns whether it could. The thread calls both.
    """

    def __init__(
        self,
        lines: tuple[Line, Line],
        size: int,
        snapshot: Callable[[], Message],
        on_fatal: Callable[[Message], bool],
    ) -> None:
        self._rounds, self._watch = lines
        self._size = size
        self._snapshot = snapshot
        self._on_fatal = on_fatal
        self._leaving = False
        for line in lines:  # a forked child's copies would make a dead parent look alive
            os.register_at_fork(after_in_child=line.sock.close)
        self._thread = threading.Thread(target=self._run, name="paddlempi-testing", daemon=True)
        self._thread.start()

    def begin(self, test: str, seconds: float) -> None:
        """Say, on rank 0, which test runs from now on, and its deadline; 0: none."""
        self._rounds.send({"kind": "begin", "test": test, "seconds": seconds})

    def swap(self, message: Message) -> dict[int, Message]:
        """Take part in a round; return every rank's message. Only rank 0 gets their ``more``.

        Raises HubError where the ranks cannot go on together.
        """
        self._rounds.send(message)
        while (answer := self._rounds.receive()) is not None:
            if answer.get("same") == message["kind"]:
                return dict.fromkeys(range(self._size), message)
            theirs = {int(rank): m for rank, m in answer.get("all", {}).items()}
            if theirs and theirs[0]["kind"] == message["kind"]:
                return theirs
            # Who finishes after a Ctrl-C may still find the answer to an earlier round.
            if message["kind"] != "finish":
                raise HubError(answer["stop"])
        os._exit(1)  # as in _run

    def leave(self) -> None:
        """Wait until every rank has come here, then part."""
        self._leaving = True
        self._rounds.send({"kind": "bye"})
        self._rounds.receive()
        self._thread.join()

    def _run(self) -> None:
        while (message := self._watch.receive()) is not None:
            if message["kind"] == "dump":
                self._watch.send({"kind": "stacks", **self._snapshot()})
            else:
                try:
                    if self._on_fatal(message):
                        self._watch.send({"kind": "reported"})
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)  # the launcher and the hub end the others
        if not self._leaving:
            os._exit(1)  # rank 0 is gone; the hub has said so, and the launcher may not care


class Offer(NamedTuple):
    """Where the hub listens, and what shows that one is of its job."""

    family: socket.AddressFamily
    addresses: list[Any]
    token: str


def join(place: Place, idle_seconds: float) -> tuple[Line, Line]:
    """Connect this rank with its job's hub, which rank 0 starts. Call it before MPI is loaded.

    ``idle_seconds`` is the deadline of a round between tests; 0: none. Raises HubError, OSError
    where there is no way to the hub.
    """
    job = f"pid {os.getpid()}" if place.size == 1 else place.job
    if place.rank != 0:
        return connect(_local(job) if job else _broadcast(place), place.rank, MEET_SECONDS)
    if job:
        offer = _local(job)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(offer.addresses[0])
        listener.listen(2 * place.size)
    else:
        listener = socket.create_server(("", 0), backlog=2 * place.size)
        offer = Offer(socket.AF_INET, [listener.getsockname()], secrets.token_hex(32))
    with listener:  # the hub is forked before MPI runs, which forks badly
        lines = fork_hub(place.size, listener, offer.token, idle_seconds)
    if not job:
        _broadcast(place, offer)
    return lines


def _local(job: str) -> Offer:
    digest = hashlib.sha256(job.encode()).hexdigest()
    return Offer(socket.AF_UNIX, [f"\0paddlempi-testing-{os.getuid()}-{digest[:32]}"], digest)


def _broadcast(place: Place, offer: Offer | None = None) -> Offer:
    """Have every rank know rank 0's offer, with the addresses that others reach it at."""
    from paddlempi import _native

    dist = initialise(place)
    box: list[Any] = [None]
    if offer is not None:
        port = offer.addresses[0][1]
        one_host = dist.get_local_size() == place.size
        try:
            hosts = _native.control("addresses", one_host=one_host)["addresses"]
            # The listener has IPv4.
            box[0] = offer._replace(addresses=[(host, port) for host in hosts if ":" not in host])
        except dist.errors.Error as error:  # the others wait for it, too
            box[0] = str(error)
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], str):
        raise HubError(box[0])
    return Offer(*box[0])


def connect(offer: Offer, rank: int, seconds: float) -> tuple[Line, Line]:
    """Connect a rank with the hub, which may not listen yet; HubError after ``seconds``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for address in offer.addresses:
            lines = Line(socket.socket(offer.family)), Line(socket.socket(offer.family))
            if all(_hail(line, address, rank, offer.token, line is lines[1]) for line in lines):
                return lines
            for line in lines:
                line.sock.close()
        time.sleep(0.02)
    raise HubError(f"rank {rank} cannot reach rank 0's pytest within {seconds:g} s: {SAME}")


def _hail(line: Line, address: Any, rank: int, token: str, watch: bool) -> bool:
    with contextlib.suppress(OSError):
        line.sock.settimeout(LINE_SECONDS)
        line.sock.connect(address)
        line.send({"rank": rank, "token": token, "watch": watch})
        if line.is_own_user() and line.receive():
            line.sock.settimeout(None)
            return True
    return False
