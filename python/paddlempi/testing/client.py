"""How a rank connects to the hub.

On one host the hub listens on an abstract Unix socket. Its name is made of the launcher's name of
the job, and the kernel tells which user is at the other end.

Over several hosts the hub listens on TCP. The other hosts do not know rank 0's address, so rank 0
broadcasts its addresses and a token once through paddlempi. Nothing else here uses MPI.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import time
from typing import Any, NamedTuple

from .hub import ADVICE, CONNECTION_SECONDS, MEET_SECONDS, Connection, fork_hub
from .place import Place, initialise


class HubError(Exception):
    """This rank cannot meet the other ranks. The text says why."""


class Endpoint(NamedTuple):
    """Where the hub listens, and the token by which it knows the ranks of its job."""

    family: socket.AddressFamily
    addresses: list[Any]
    token: str


def join(place: Place, idle_seconds: float) -> tuple[Connection, Connection]:
    """Connect this rank with the hub of its job. Rank 0 starts the hub first.

    Call it before MPI is loaded.

    Args:
        place: what the launcher says of this process.
        idle_seconds: deadline of a round between two tests. 0: no deadline.

    Returns:
        Two connections: one for the rounds, one for the thread that answers the hub.

    Raises:
        HubError: this rank cannot reach the hub.
        OSError: rank 0 cannot listen.
    """
    job = f"pid {os.getpid()}" if place.size == 1 else place.job
    if place.rank != 0:
        return connect(_local(job) if job else _broadcast(place), place.rank, MEET_SECONDS)
    if job:
        endpoint = _local(job)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(endpoint.addresses[0])
        listener.listen(2 * place.size)
    else:
        listener = socket.create_server(("", 0), backlog=2 * place.size)
        endpoint = Endpoint(socket.AF_INET, [listener.getsockname()], secrets.token_hex(32))
    with listener:  # MPI does not run yet: a process that runs MPI must not fork
        connections = fork_hub(place.size, listener, endpoint.token, idle_seconds)
    if not job:
        _broadcast(place, endpoint)
    return connections


def _local(job: str) -> Endpoint:
    digest = hashlib.sha256(job.encode()).hexdigest()
    return Endpoint(socket.AF_UNIX, [f"\0paddlempi-testing-{os.getuid()}-{digest[:32]}"], digest)


def _broadcast(place: Place, endpoint: Endpoint | None = None) -> Endpoint:
    """Return rank 0's endpoint on every rank, with the addresses that other hosts can reach."""
    from paddlempi import _native

    dist = initialise(place)
    box: list[Any] = [None]
    if endpoint is not None:
        port = endpoint.addresses[0][1]
        one_host = dist.get_local_size() == place.size
        try:
            hosts = _native.control("addresses", one_host=one_host)["addresses"]
            # The listener is an IPv4 socket, so IPv6 addresses are left out.
            box[0] = endpoint._replace(
                addresses=[(host, port) for host in hosts if ":" not in host]
            )
        except dist.errors.Error as error:  # the other ranks wait for the broadcast
            box[0] = str(error)
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], str):
        raise HubError(box[0])
    return Endpoint(*box[0])


def connect(endpoint: Endpoint, rank: int, seconds: float) -> tuple[Connection, Connection]:
    """Connect a rank with the hub. Try again while the hub does not listen yet.

    Raises HubError if that does not succeed within ``seconds``.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for address in endpoint.addresses:
            rounds = Connection(socket.socket(endpoint.family))
            watch = Connection(socket.socket(endpoint.family))
            pair = rounds, watch
            if all(_greet(c, address, rank, endpoint.token, c is watch) for c in pair):
                return pair
            for connection in pair:
                connection.sock.close()
        time.sleep(0.02)
    raise HubError(f"rank {rank} cannot reach rank 0's pytest within {seconds:g} s: {ADVICE}")


def _greet(connection: Connection, address: Any, rank: int, token: str, watch: bool) -> bool:
    """Connect, and return whether the hub has accepted this rank."""
    with contextlib.suppress(OSError):
        connection.sock.settimeout(CONNECTION_SECONDS)
        connection.sock.connect(address)
        connection.sock.sendall(token.encode())
        connection.send({"rank": rank, "watch": watch})
        if connection.is_same_user() and connection.receive():
            connection.sock.settimeout(None)
            return True
    return False
