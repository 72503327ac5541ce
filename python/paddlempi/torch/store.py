"""The store of torch's default group, which rank 0 serves at an address that all ranks reach."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from paddlempi_bootstrap import starters

from .. import _native, group, objects
from ..errors import Error
from . import environment
from .errors import LauncherError

__all__ = ["candidates", "new_store"]

_KEY = "paddlempi"
_TRIAL = 3.0
"""For how many seconds a rank tries to reach an address."""


def new_store(timeout: timedelta) -> Any:
    """Return a store that all ranks share: a part of a TCPStore. Collective over the world.

    On one node rank 0 serves it at 127.0.0.1. Otherwise rank 0 proposes one address after another
    until all ranks have reached one. Then ``MASTER_ADDR`` and ``MASTER_PORT`` are set to the
    address, unless the user has set them.

    Args:
        timeout: the deadline of operations on the store.

    Raises:
        LauncherError: there is no address of rank 0's node that all ranks reach, or
            ``PADDLEMPI_IFNAME`` names no interface there.
    """
    rank, size = group.get_rank(), group.get_world_size()
    local = _gathered(group.get_local_size() == size)
    store: Any = None
    offer: list[Any] = [None]
    if rank == 0:
        store = _served(size, timeout)
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
            # The server may be that of an earlier world (see _served), with the keys of that one.
            return dist.PrefixStore(token, reached)
    raise LauncherError(
        f"init_process_group: rank {rank} on {socket.gethostname()}: not all ranks can reach the "
        f"store of rank 0 at port {port} of any of {', '.join(hosts)}: set MASTER_ADDR, on "
        "rank 0, to an address of its node that the others reach, or open its ports to them"
    )


def _served(size: int, timeout: timedelta) -> Any:
    """Return a store that this rank serves: at ``MASTER_PORT`` if ``run -np`` has set that.

    The server listens on all interfaces. Only its own client uses this address.
    """
    wanted = os.environ.get("MASTER_PORT", "") if starters.MEET in os.environ else ""
    if wanted.isdecimal():
        with suppress(RuntimeError):  # another process has the port meanwhile
            # multi_tenant: torch's own init may serve there too, later in this process.
            return dist.TCPStore(
                "127.0.0.1",
                int(wanted),
                size,
                True,
                timeout,
                wait_for_workers=False,
                multi_tenant=True,
            )
    return dist.TCPStore("127.0.0.1", 0, size, True, timeout, wait_for_workers=False)


def candidates(one_host: bool) -> Iterator[str]:
    """Yield the addresses at which other ranks may reach this node, likely ones first.

    The first is ``MASTER_ADDR`` if the user has set it and some rank is on another host. The others
    come from the core (``addresses`` in docs/control.md).

    Args:
        one_host: all ranks are on this node.

    Raises:
        ArgumentError: ``PADDLEMPI_IFNAME`` names no interface of this host.
    """
    given = os.environ.get("MASTER_ADDR", "")
    loopback = given.startswith("127.") or given == "::1"
    if one_host or loopback or environment.is_ours("MASTER_ADDR"):
        given = ""
    # A user who names an interface for gloo means it for the store too.
    found = _native.control("addresses", one_host=one_host, variable="GLOO_SOCKET_IFNAME")
    yield from dict.fromkeys(filter(None, [given, found["name"], *found["addresses"]]))


def _reach(host: str, port: int, size: int, token: str, timeout: timedelta, sure: bool) -> Any:
    """Return the store at an address; None if it cannot be reached or is another job's.

    Args:
        sure: the address is known to be right, so there is no trial before.
    """
    if not sure:
        # This fails at once if nothing listens. torch's client would try until its deadline.
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


def _gathered(obj: Any) -> list[Any]:
    """Return the objects of all ranks, by rank."""
    of_ranks = [None] * group.get_world_size()
    objects.all_gather_object(of_ranks, obj)
    return of_ranks
