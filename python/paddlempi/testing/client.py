"""A rank's way to the hub.

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
import time
from typing import Any, NamedTuple

from .hub import LINE_SECONDS, MEET_SECONDS, SAME, Line, fork_hub
from .place import Place, initialise


class HubError(Exception):
    """This rank cannot go on with the others; the text says why."""


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
