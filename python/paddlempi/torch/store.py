"""The store under torch's default group: served by rank 0, at an address that all ranks reach."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .. import _native, group, objects
from ..errors import Error
from . import environment
from .errors import LauncherError

__all__ = ["candidates", "new_store"]

_KEY = "paddlempi"
_TRIAL = 3.0
"""Seconds that a rank tries to reach one address."""


def new_store(timeout: timedelta) -> Any:
    """A TCPStore that all ranks share. Collective over the world.

    On one node it is served at 127.0.0.1. Otherwise rank 0 proposes addresses, one after the
    other, until all ranks have reached one. ``MASTER_ADDR`` and ``MASTER_PORT`` tell it
    afterwards, where they were not set by the user.

    Raises:
        LauncherError: there is no address of rank 0's node that all ranks reach, or
            ``PADDLEMPI_IFNAME`` names nothing there.
    """
    rank, size = group.get_rank(), group.get_world_size()
    local = _gathered(group.get_local_size() == size)
    store: Any = None
    offer: list[Any] = [None]
    if rank == 0:
        # It listens on all interfaces; the address is only where itself connects.
        store = dist.TCPStore("127.0.0.1", 0, size, True, timeout, wait_for_workers=False)
        token = secrets.token_hex(8)
        store.set(_KEY, token)
        hosts, problem = [], ""
        try:
            hosts = list(candidates(all(local)))
        except Error as error:
            problem = f"init_process_group: rank 0 on {socket.gethostname()}: {error}"
        offer = [(hosts, store.port, token, problem)]
    objects.broadcast_object_list(offer, 0)
    hosts, port, token, problem = offer[0]
    if problem:
        raise LauncherError(problem)
    for host in hosts:
        reached = store if rank == 0 else _reach(host, port, size, token, timeout, all(local))
        if all(_gathered(reached is not None)):
            environment.publish(host, port)
            return reached
    raise LauncherError(
        f"init_process_group: rank {rank} on {socket.gethostname()}: not all ranks can reach the "
        f"store of rank 0 at port {port} of any of {', '.join(hosts)}: set MASTER_ADDR, on "
        "rank 0, to an address of its node that the others reach, or open its ports to them"
    )


def candidates(one_host: bool) -> Iterator[str]:
    """Where the ranks may reach this node, likely ones first, none twice.

    ``MASTER_ADDR`` where the user set it and a rank is elsewhere; then what the core says
    (``addresses`` in docs/control.md).

    Raises:
        ArgumentError: ``PADDLEMPI_IFNAME`` names no interface of this host.
    """
    given = os.environ.get("MASTER_ADDR", "")
    loopback = given.startswith("127.") or given == "::1"
    if one_host or loopback or environment.is_ours("MASTER_ADDR"):
        given = ""
    # Programs that are told which interface gloo is to take mean the same here.
    found = _native.control("addresses", one_host=one_host, variable="GLOO_SOCKET_IFNAME")
    yield from dict.fromkeys(filter(None, [given, found["name"], *found["addresses"]]))


def _reach(host: str, port: int, size: int, token: str, timeout: timedelta, sure: bool) -> Any:
    """The store at an address; None where it is not to be reached, or is another's."""
    if not sure:
        # torch's client tries until its deadline what this finds out at once.
        try:
            socket.create_connection((host, port), _TRIAL).close()
        except OSError:
            return None
    trial = timeout if sure else timedelta(seconds=_TRIAL)
    try:
        store = dist.TCPStore(host, port, size, False, trial, wait_for_workers=False)
        if store.get(_KEY).decode() != token:
            return None
    except (RuntimeError, UnicodeDecodeError):
        return None
    store.set_timeout(timeout)
    return store


def _gathered(mine: Any) -> list[Any]:
    everyone = [None] * group.get_world_size()
    objects.all_gather_object(everyone, mine)
    return everyone
