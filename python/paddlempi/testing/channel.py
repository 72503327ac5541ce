"""The side channel between the ranks' pytests: sockets, messages, the first meeting.

It shares nothing with MPI, so that a broken collective cannot take the report with it. On one
host the ranks meet at an abstract Unix socket named after the launcher's job, and the kernel
vouches for the user behind it. Over several hosts rank 0 listens on TCP, and its address and
a token that only this job knows go out once through paddlempi itself.

Every rank keeps two connections to rank 0: ``data`` carries the rounds in which outcomes are
exchanged and is read by the thread that runs the tests; ``control`` is read by a thread that
sleeps until rank 0 asks for stacks or ends the job.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any

from .place import Place

Message = dict[str, Any]

MESSAGE_LIMIT = 32 << 20
"""Bytes of one message. Senders shorten what they send; a longer one is refused."""

_HELLO_LIMIT = 4096
_HELLO_SECONDS = 10.0
_LENGTH = struct.Struct("!I")


class ChannelError(Exception):
    """The ranks' pytests cannot talk to each other; the text says who and what to do."""


class Connection:
    """One socket that carries JSON messages, each behind its length in four bytes."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()
        self._limit = MESSAGE_LIMIT

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message) -> None:
        body = json.dumps(message, default=str).encode()
        if len(body) > MESSAGE_LIMIT:
            raise ChannelError(f"a message of {len(body)} bytes is over {MESSAGE_LIMIT}")
        self.sock.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self) -> Message | None:
        """Return the next message, or None when the other side is gone."""
        while True:
            message = self._take()
            if message is not None:
                return message
            if not self._fill():
                return None

    def drain(self) -> tuple[list[Message], bool]:
        """Read once, for a socket that is readable; return what is whole, and if it is open."""
        is_open = self._fill()
        messages = []
        while (message := self._take()) is not None:
            messages.append(message)
        return messages, is_open

    def _fill(self) -> bool:
        try:
            data = self.sock.recv(1 << 16)
        except (ConnectionError, OSError) as error:
            if isinstance(error, (TimeoutError, BlockingIOError)):
                raise
            return False
        self._buffer += data
        return bool(data)

    def _take(self) -> Message | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self._limit:
            raise ChannelError(f"a message of {length} bytes announced: over {self._limit}")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        message = json.loads(bytes(self._buffer[_LENGTH.size : end]))
        del self._buffer[:end]
        if not isinstance(message, dict):
            raise ChannelError("a message that is no object")
        return message

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.close()


@dataclass
class Links:
    """What the meeting gives: on rank 0 a connection per other rank, elsewhere two to rank 0."""

    data: dict[int, Connection] = field(default_factory=dict)
    control: dict[int, Connection] = field(default_factory=dict)
    seed: int = field(default_factory=lambda: secrets.randbits(32))
    """Rank 0's, known to all."""

    def close(self) -> None:
        for connection in (*self.data.values(), *self.control.values()):
            connection.close()


def meet(place: Place, seconds: float) -> Links:
    """Connect the ranks of ``place.job``, or of the paddlempi world where that is unknown.

    Raises ChannelError after ``seconds``, naming the ranks that never came.
    """
    if place.size == 1:
        return Links()
    if place.job is not None:
        digest = hashlib.sha256(f"{place.launcher}:{place.job}".encode()).hexdigest()
        address = f"\0paddlempi-testing-{os.getuid()}-{digest[:32]}"
        if place.rank == 0:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                listener.bind(address)
            except OSError as error:
                raise ChannelError(f"rank 0 cannot listen for this job's ranks: {error}") from error
            return _accept(listener, place.size, "", seconds)
        return _connect([(socket.AF_UNIX, address)], place.rank, "", seconds)
    return _meet_over_tcp(place, seconds)


def _meet_over_tcp(place: Place, seconds: float) -> Links:
    import paddlempi as dist

    if not dist.is_initialized():
        dist.init_process_group()
    if (dist.get_rank(), dist.get_world_size()) != (place.rank, place.size):
        raise ChannelError(
            f"the launcher says rank {place.rank} of {place.size}, MPI says rank "
            f"{dist.get_rank()} of {dist.get_world_size()}: use the launcher of this MPI"
        )
    offer: list[Any] = [None]
    listener = None
    if place.rank == 0:
        listener = socket.create_server(("", 0), backlog=2 * place.size)
        port = listener.getsockname()[1]
        try:
            offer = [(_addresses(place), port, secrets.token_hex(32))]
        except dist.errors.Error as error:  # the others wait for it, too
            offer = [str(error)]
    dist.broadcast_object_list(offer, src=0)
    if isinstance(offer[0], str):
        raise ChannelError(offer[0])
    hosts, port, token = offer[0]
    if listener is not None:
        return _accept(listener, place.size, token, seconds)
    targets: list[tuple[int, Any]] = [(socket.AF_INET, (host, port)) for host in hosts]
    return _connect(targets, place.rank, token, seconds)


def _addresses(place: Place) -> list[str]:
    """The addresses under which the others may reach this host, the likeliest first."""
    import paddlempi as dist
    from paddlempi import _native

    one_host = dist.get_local_size() == place.size
    addresses = _native.control("addresses", one_host=one_host)["addresses"]
    return [address for address in addresses if ":" not in address]  # the listener has IPv4


def _accept(listener: socket.socket, size: int, token: str, seconds: float) -> Links:
    links = Links()
    end = time.monotonic() + seconds
    with listener:
        listener.listen(2 * size)
        while len(links.data) < size - 1 or len(links.control) < size - 1:
            left = end - time.monotonic()
            missing = [r for r in range(1, size) if r not in links.data or r not in links.control]
            if left <= 0:
                links.close()
                raise ChannelError(
                    f"{ranks_text(missing)} did not come within {seconds:g} s: "
                    "every rank has to run the same `pytest --mpi`"
                )
            listener.settimeout(left)
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                continue
            _admit(sock, links, size, token)
    return links


def _admit(sock: socket.socket, links: Links, size: int, token: str) -> None:
    """Take one connection in if its hello is right, else close it and go on listening."""
    connection = Connection(sock)
    connection._limit = _HELLO_LIMIT
    try:
        if sock.family == socket.AF_UNIX and _peer_uid(sock) != os.getuid():
            raise ChannelError("another user")
        sock.settimeout(_HELLO_SECONDS)
        hello = connection.receive() or {}
        rank, kind = hello.get("rank"), hello.get("link")
        known = hmac.compare_digest(str(hello.get("token", "")).encode(), token.encode())
        if not known or not isinstance(rank, int) or not 0 < rank < size:
            raise ChannelError("no rank of this job")
        table = {"data": links.data, "control": links.control}[str(kind)]
        connection.send({"welcome": size, "seed": links.seed})
    except (ChannelError, OSError, KeyError, ValueError):
        connection.close()
        return
    sock.settimeout(None)
    _no_delay(sock)
    connection._limit = MESSAGE_LIMIT
    table[rank] = connection


def _connect(targets: list[tuple[int, Any]], rank: int, token: str, seconds: float) -> Links:
    links = Links()
    end = time.monotonic() + seconds
    for kind, table in (("data", links.data), ("control", links.control)):
        while 0 not in table:
            for family, address in targets:
                hailed = _hail(family, address, rank, kind, token)
                if hailed is not None:
                    table[0], links.seed = hailed
                    targets = [(family, address)]
                    break
            else:
                if time.monotonic() > end:
                    links.close()
                    raise ChannelError(
                        f"rank {rank} cannot reach rank 0's pytest within {seconds:g} s: "
                        "every rank has to run the same `pytest --mpi`"
                    )
                time.sleep(0.02)
    return links


def _hail(
    family: int, address: Any, rank: int, kind: str, token: str
) -> tuple[Connection, int] | None:
    sock = socket.socket(family, socket.SOCK_STREAM)
    connection = Connection(sock)
    try:
        sock.settimeout(_HELLO_SECONDS)
        sock.connect(address)
        if family == socket.AF_UNIX and _peer_uid(sock) != os.getuid():
            raise OSError("another user's socket")
        connection.send({"rank": rank, "link": kind, "token": token})
        welcome = connection.receive()
        if welcome is None:
            raise OSError("turned away")
    except OSError:
        connection.close()
        return None
    sock.settimeout(None)
    _no_delay(sock)
    return connection, int(welcome["seed"])


def _no_delay(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _peer_uid(sock: socket.socket) -> int:
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def ranks_text(ranks: list[int]) -> str:
    """Return "rank 1", "ranks 0, 2-5": how messages name ranks."""
    parts: list[str] = []
    ordered = sorted(set(ranks))
    start = 0
    for i in range(1, len(ordered) + 1):
        if i == len(ordered) or ordered[i] != ordered[i - 1] + 1:
            first, last = ordered[start], ordered[i - 1]
            if last - first > 1:
                parts.append(f"{first}-{last}")
            else:
                parts += [str(r) for r in range(first, last + 1)]
            start = i
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(parts)
