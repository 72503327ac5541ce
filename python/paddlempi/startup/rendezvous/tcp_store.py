"""A store that rank 0 serves at a TCP port (``tcp://HOST:PORT``), for programs without torch.

A request is a head and three byte strings: an operation, and the lengths of the key, of a value and
of the value that a swap expects. The answer to ``get`` is a length and the value, to ``swap`` one
byte. Any process that reaches the port can read and write, as with torch's TCPStore: nothing that
is secret stands in a store (docs/security.md).

Rank 0 serves until all clients that have come are gone, or its process ends. If it opens the store
again before that, because the job begins its next world, it goes on to serve the same one: clients
of the next world may have come already.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from ...errors import ArgumentError, LauncherError, TimeoutError
from .stores import Store

__all__ = ["TCPStore", "serve_here"]

_REQUEST = struct.Struct("<BHII")
_LENGTH = struct.Struct("<I")
_GET, _SET, _SWAP, _DELETE = range(4)
_LARGEST = 64 << 20
"""The most bytes of a value."""


class TCPStore(Store):
    """A client of the store at ``host`` and ``port``. Rank 0 serves it too.

    Args:
        host, port: where rank 0 serves it.
        serve: whether this process is rank 0.
        deadline: until when a client tries to reach it, as :func:`time.monotonic`.
        one_host: whether all ranks are on this host. Then rank 0 listens at all addresses, because
            the ranks may know this host by different ones, and takes clients of this host only.

    Raises:
        ArgumentError: rank 0 cannot listen there.
        TimeoutError: the other ranks do not reach it by the deadline; ``ranks`` is 0.
    """

    def __init__(
        self, host: str, port: int, serve: bool, deadline: float, one_host: bool = False
    ) -> None:
        self._address = f"{host}:{port}"
        if serve:
            _serve(host, port, min(deadline, time.monotonic() + _FREED), one_host)
        self._connection = self._connect(host, port, deadline)

    def _connect(self, host: str, port: int, deadline: float) -> socket.socket:
        while True:
            try:
                connection = self._answered(host, port)
            except OSError as error:
                if time.monotonic() >= deadline:
                    late = TimeoutError(
                        f"init_process_group: the store that rank 0 serves at {self._address} "
                        f"cannot be reached: {error}: look whether rank 0 runs, and whether the "
                        "address is right"
                    )
                    late.ranks = (0,)
                    raise late from error
                time.sleep(0.02)
                continue
            connection.settimeout(max(1.0, deadline - time.monotonic() + 5.0))
            return connection

    def _answered(self, host: str, port: int) -> socket.socket:
        """Return a connection by which the server has answered.

        One that has ended closes connections that the kernel has made for it meanwhile.
        """
        connection = socket.create_connection((host, port), 5.0)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(_request(_GET, ""))
            _exactly(connection, _LENGTH.size)  # 0: the key has no value
        except BaseException:
            connection.close()
            raise
        return connection

    def get(self, keys: Sequence[str]) -> list[bytes]:
        # All requests are sent before the first answer is read.
        with self._failing():
            self._connection.sendall(b"".join(_request(_GET, key) for key in keys))
            return [self._value() for _ in keys]

    def set(self, key: str, value: bytes) -> None:
        with self._failing():
            self._connection.sendall(_request(_SET, key, value))
            self._value()  # so that it stands when this returns

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        with self._failing():
            self._connection.sendall(_request(_SWAP, key, new, old))
            return self._value() == b"1"

    def delete(self, keys: Sequence[str]) -> None:
        with self._failing():
            self._connection.sendall(b"".join(_request(_DELETE, key) for key in keys))
            for _ in keys:
                self._value()

    def close(self) -> None:
        self._connection.close()

    def _value(self) -> bytes:
        return _exactly(self._connection, _LENGTH.unpack(_exactly(self._connection, 4))[0])

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LauncherError(
                f"init_process_group: the store of rank 0 at {self._address} is gone: {error}: "
                "look for what has ended rank 0"
            ) from error


def serve_here() -> int:
    """Serve a store to processes of this host, at a port that is free; return the port.

    It is served as by rank 0. Who wants it to last keeps a client.
    """
    return _serve("127.0.0.1", 0, time.monotonic(), True)


_FREED = 3.0
"""For how many seconds rank 0 waits for a port that a job before may still have."""


def _family(host: str, port: int) -> int:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]


_lock = threading.Lock()
_servers: dict[tuple[str, int], _Server] = {}
"""Those of this process that have not ended. A process that is forked has none."""


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _servers.clear()


os.register_at_fork(after_in_child=_after_fork)


def _serve(host: str, port: int, until: float, one_host: bool) -> int:
    """Serve a store until all clients are gone that come from now on. Return its port."""
    with _lock:
        server = _servers.get((host, port))
        if server is not None:
            server.came = False
            return port
    server = _Server(host, port, until, one_host)
    with _lock:
        _servers[server.address] = server
    threading.Thread(target=server.run, name="paddlempi-store", daemon=True).start()
    return server.address[1]


def _listen(host: str, port: int, one_host: bool) -> socket.socket:
    if one_host:
        socket.create_server((host, 0), family=_family(host, port)).close()  # it is of this host
    if one_host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # a host without IPv6
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True
            )
    if one_host:
        return socket.create_server(("", port), backlog=1024)
    # As create_connection of the clients: a name may have several addresses.
    return socket.create_server((host, port), family=_family(host, port), backlog=1024)


def _is_here(client: socket.socket) -> bool:
    """Whether a client is on this host: at a loopback address, or at the one that it has called."""
    there = ipaddress.ip_address(client.getpeername()[0].partition("%")[0])
    mapped = getattr(there, "ipv4_mapped", None)
    return (mapped or there).is_loopback or client.getsockname()[0] == client.getpeername()[0]


class _Server:
    """Serves a dictionary to all clients, in one thread.

    Attributes:
        came: whether a client has come; until then the server waits for one.
        address: the host and the port.
    """

    def __init__(self, host: str, port: int, until: float, one_host: bool) -> None:
        self._one_host, self.came = one_host, False
        while True:
            try:
                self._listener = _listen(host, port, one_host)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= until:
                    raise ArgumentError(
                        f"init_process_group: rank 0 cannot listen at {host}:{port}: {error}: name "
                        "an address of this host and a port that is free; two jobs at once need "
                        "two ports"
                    ) from error
                time.sleep(0.02)
        self.address = host, port or int(self._listener.getsockname()[1])
        self._values: dict[bytes, bytes] = {}
        self._selector = selectors.DefaultSelector()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until no client is left."""
        received: dict[socket.socket, bytearray] = {}
        while not self._is_over(received):
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept(received)
                    continue
                client: Any = key.fileobj
                try:
                    data = client.recv(1 << 16)
                    received[client] += data
                    whole = bool(data) and self._answer(client, received[client])
                except OSError:
                    whole = False
                if not whole:
                    self._selector.unregister(client)
                    client.close()
                    del received[client]
        self._selector.close()
        self._listener.close()

    def _is_over(self, received: dict[socket.socket, bytearray]) -> bool:
        """Whether no client is left, also none that waits to be accepted. It has no place then."""
        if received:
            return False
        self._accept(received)
        with _lock:
            if received or not self.came:
                return False
            del _servers[self.address]
            return True

    def _accept(self, received: dict[socket.socket, bytearray]) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = self._listener.accept()
            if self._one_host and not _is_here(client):
                client.close()
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.settimeout(30.0)  # for answers; a client that reads none is dropped
            self._selector.register(client, selectors.EVENT_READ)
            received[client], self.came = bytearray(), True

    def _answer(self, client: socket.socket, data: bytearray) -> bool:
        """Answer the whole requests in ``data``; return False if one is damaged."""
        answers = []
        while len(data) >= _REQUEST.size:
            code, key_length, new_length, old_length = _REQUEST.unpack_from(data)
            if code > _DELETE or max(new_length, old_length) > _LARGEST:
                return False
            first = _REQUEST.size + key_length
            end = first + new_length + old_length
            if len(data) < end:
                break
            name = bytes(data[_REQUEST.size : first])
            new, old = (
                bytes(data[first : first + new_length]),
                bytes(data[first + new_length : end]),
            )
            del data[:end]
            answers.append(self._do(code, name, new, old))
        if answers:
            client.sendall(b"".join(_LENGTH.pack(len(answer)) + answer for answer in answers))
        return True

    def _do(self, code: int, name: bytes, new: bytes, old: bytes) -> bytes:
        there = self._values.get(name, b"")
        if code == _GET:
            return there
        if code == _SET or (code == _SWAP and there == old):
            self._values[name] = new
            return b"1"
        if code == _DELETE:
            self._values.pop(name, None)
        return b""


def _request(code: int, key: str, new: bytes = b"", old: bytes = b"") -> bytes:
    name = key.encode()
    return _REQUEST.pack(code, len(name), len(new), len(old)) + name + new + old


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), 1 << 20))
        if not part:
            raise ConnectionResetError("it has closed the connection")
        data += part
    return bytes(data)
