"""A coordinator among the ranks, where a launcher starts them that knows nothing of elastic jobs.

Every rank has a listener, whose address all ranks know, and a thread that waits there. The ranks
connect to the lowest one that lives, when they have lost a rank or have finished; its thread is the
coordinator then. If it dies, too, they go on to the next one. A rank that has not come is alive as
long as its listener is there: the kernel closes that with the process. On one node a listener is an
abstract socket, and who comes has to be of the same user. On several nodes it is a port, and who
comes knows a secret of the listener's rank.
"""

from __future__ import annotations

import hmac
import os
import secrets
import selectors
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from .. import _native
from ..errors import LauncherError, PeerDiedError
from .hub import Hub
from .link import Link, World
from .wire import Channel, Message

__all__ = ["Address", "Deputy", "PeersLink"]

_LOOK_EVERY = 0.05
"""Seconds between two looks whether the ranks live that have not come."""

_ANSWERS_WITHIN = 2.0
"""Seconds until a host that does not answer counts as dead."""

_CREDENTIALS = struct.Struct("3i")


class Address(NamedTuple):
    """Where a rank listens."""

    name: str
    """Of an abstract socket, in hexadecimal digits; or an address of this host."""
    pid: int
    port: int = 0
    """At the address; 0: it is an abstract socket."""
    secret: str = ""


class Deputy(threading.Thread):
    """The thread of a rank that is the coordinator when the ranks below it have died.

    Args:
        several: whether the ranks are on several nodes.
    """

    def __init__(self, several: bool = False) -> None:
        super().__init__(name="paddlempi-elastic", daemon=True)
        if several:
            self._listener = _port()
            name, port = self._listener.getsockname()[:2]
            self.address = Address(name, os.getpid(), port, secrets.token_hex(16))
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind("")  # a name that the kernel chooses
            self.address = Address(self._listener.getsockname().hex(), os.getpid())
        self._listener.listen(1024)
        self._listener.setblocking(False)
        self._addresses: dict[int, Address] = {}
        self._names: dict[int, str] = {}
        self._selector = selectors.DefaultSelector()
        self._strangers: set[Channel] = set()  # who has not said who it is
        self._hub: Hub | None = None
        self._here: set[int] = set()  # who is connected
        os.register_at_fork(after_in_child=self._close)

    def serve(self, addresses: Mapping[int, Address]) -> None:
        """Wait for ranks, which listen at these addresses."""
        self._addresses = dict(addresses)
        self._names = {r: f"rank {r} (process {a.pid})" for r, a in addresses.items()}
        self.start()

    def run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        while True:
            for key, _ in self._selector.select(_LOOK_EVERY if self._missing() else None):
                key.data()
            for rank in self._missing():
                self._look_for(rank)

    def _close(self) -> None:
        """In a fork: let go of what tells the others that this process lives."""
        self._listener.close()
        for key in [*self._selector.get_map().values()]:
            key.fileobj.close()  # type: ignore[union-attr]  # a socket, or a channel

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            if not self.address.port and _user_of(connection) != os.geteuid():
                connection.close()
                return
            channel = Channel(connection)
            self._strangers.add(channel)
            hear = lambda: self._hear(channel)  # noqa: E731
            self._selector.register(channel, selectors.EVENT_READ, hear)

    def _hear(self, channel: Channel) -> None:
        """Take up who a process is. One that only looks whether this one lives says nothing."""
        try:
            messages = channel.receive()
            if not messages:
                return
            said, *more = messages
            if not hmac.compare_digest(str(said["secret"]).encode(), self.address.secret.encode()):
                raise ValueError("another secret")
            key, generation = int(said["key"]), int(said["generation"])
            keys = [int(one) for one in said["keys"]]
            if key not in self._names or not set(keys) <= set(self._names):
                raise ValueError(f"rank {key} of {keys}")
        except (OSError, ValueError, KeyError, TypeError):
            self._selector.unregister(channel)
            self._strangers.discard(channel)
            channel.close()
            return
        self._selector.unregister(channel)
        self._strangers.discard(channel)
        if self._hub is None:
            self._hub = Hub(self._selector, 1, _say, self._broken)
        self._hub.coordinator.resume(generation, {k: self._names[k] for k in keys})
        self._here.add(key)
        self._hub.adopt(key, channel, more)

    def _broken(self, key: int, nonsense: bool) -> None:
        """A rank has died, or has ended: nothing else closes its connection."""
        self._end(key)

    def _missing(self) -> list[int]:
        """The ranks that may live, and have not come."""
        keys = [] if self._hub is None else self._hub.coordinator.keys()
        return [key for key in keys if key not in self._here]

    def _look_for(self, key: int) -> None:
        try:
            reach(self._addresses[key]).close()
        except BlockingIOError:  # it is stopped, and many have knocked
            pass
        except OSError:
            self._end(key)

    def _end(self, key: int) -> None:
        self._here.discard(key)
        if self._hub is not None:
            self._hub.coordinator.ended(key, f"{self._names[key]} died")


def _port() -> socket.socket:
    """Return a socket with a port, at the address by which other hosts reach this one."""
    found = _native.control("addresses", one_host=False, variable="")["addresses"]
    host = next((a for a in found if ":" not in a), found[0] if found else "127.0.0.1")
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.bind((host, 0))
    return listener


def _user_of(connection: socket.socket) -> int:
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[1])


def reach(address: Address) -> socket.socket:
    """Connect to a rank; on this node without waiting. Raises OSError."""
    if address.port:
        return socket.create_connection((address.name, address.port), _ANSWERS_WITHIN)
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        connection.connect(bytes.fromhex(address.name))
    except OSError:
        connection.close()
        raise
    return connection


def _say(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"paddlempi elastic: {line}\n")
        sys.stderr.flush()


class PeersLink(Link):
    """A connection to the lowest rank that lives, which is made when it is needed.

    Args:
        rank: this process, in the first world.
        addresses: of all ranks of that world.
        over_mpi: whether the next worlds are over MPI, whose ranks are those of the first world.
    """

    def __init__(self, rank: int, addresses: Mapping[int, Address], over_mpi: bool = False) -> None:
        super().__init__(None)
        # A fork would keep the connection open when this process is dead.
        os.register_at_fork(after_in_child=self.close)
        self._rank, self._addresses, self._over_mpi = rank, dict(addresses), over_mpi
        self._generation, self._keys = 0, tuple(addresses)

    def muster(self, least: int, fixed: bool, fresh: bool) -> World:
        while True:
            try:
                self._connect()
                world = super().muster(least, fixed, fresh)
            except ConnectionError:
                self.close()
                continue
            self._generation, self._keys = world.generation, world.keys
            return world

    def members(self, world: World) -> tuple[int, ...] | None:
        return world.keys if self._over_mpi else None

    def finish(self) -> bool:
        while True:
            try:
                self._connect()
                return super().finish()
            except ConnectionError:
                self.close()

    # The coordinator is a rank, which may die at any time. Who waits for no answer of it goes on.

    def tell(self, what: str, **more: object) -> None:
        """Say something, if there is anybody who listens."""
        if self._channel is not None:
            try:
                super().tell(what, **more)
            except ConnectionError:
                self.close()

    def look(self) -> None:
        if self._channel is not None:
            try:
                super().look()
            except ConnectionError:
                self.close()

    def ask(self, message: Message) -> list[bytes]:
        try:
            return super().ask(message)
        except ConnectionError:
            self.close()
            raise PeerDiedError("the rank that coordinates has died while the ranks met") from None

    def _connect(self) -> None:
        if self._channel is not None:
            return
        for key in sorted(self._addresses):
            try:
                self._channel = Channel(reach(self._addresses[key]))
            except BlockingIOError:
                time.sleep(_LOOK_EVERY)  # it is stopped; it may go on
                raise ConnectionAbortedError from None
            except OSError:
                continue
            hello: Message = {"say": "hello", "key": self._rank}
            hello["secret"] = self._addresses[key].secret
            self._channel.send({**hello, "generation": self._generation, "keys": list(self._keys)})
            return
        raise LauncherError("elastic: this process cannot reach its own listener")
