"""Which world a process joins, and how its ranks meet: :func:`find`.

==================================================  ============================================
what is found; the first match counts               the world
==================================================  ============================================
``comm=`` was given                                 that communicator's ranks, over MPI
an MPI's launcher is the nearest program that       its ranks, over MPI. ``init_method``, ``store``
started ranks                                       and the variables of other starters do not
                                                    count
another starter is nearest                          its ranks; they meet where it says, or where the
                                                    arguments say
variables of an MPI's launcher that a container      its ranks, over MPI
hides, if no other number of ranks was given
``store``, ``init_method``, or ``world_size``       the ranks that the arguments say
above 1, with ``rank``
``WORLD_SIZE`` above 1, with ``RANK``               the ranks that the variables say
nothing                                             this process alone, over MPI if there is one
==================================================  ============================================

A world that no MPI's launcher has started needs no MPI if all ranks are on one node; the core
decides, as it sees the nodes. ``PADDLEMPI_TRANSPORT=node`` or ``mpi`` decides instead.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from paddlempi_bootstrap import mpi_launcher, starters
from paddlempi_bootstrap.mpi_launcher import Place
from paddlempi_bootstrap.starters import MEET, TRANSPORT, Starter

from ..errors import ArgumentError, DtypeError, LauncherError

__all__ = ["TRANSPORT", "World", "find", "transport"]


class World(NamedTuple):
    """How a process comes into a world."""

    way: str
    """``mpi``: MPI knows the ranks. ``store``: they meet. ``alone``: there are no others.
    ``reform``: they meet, on one node."""
    why: str
    """What was found, in words."""
    rank: int = 0
    size: int = 1
    """The number of ranks; 1 also if MPI shall say it."""
    method: str = ""
    """Where they meet, an ``init_method``; "": in the store that was given."""


def transport() -> str:
    """Return ``PADDLEMPI_TRANSPORT``: ``node``, ``mpi``, or "" if it is not set.

    Raises:
        ArgumentError: it has another value.
    """
    asked = os.environ.get(TRANSPORT, "")
    if asked not in ("", "node", "mpi"):
        raise ArgumentError(f"{TRANSPORT}={asked!r}: it must be node, mpi, or not set")
    return asked


def find(rank: int = -1, size: int = -1, method: str | None = None, store: Any = None) -> World:
    """Return how this process comes into a world. Does not communicate.

    Args:
        rank, size: the arguments ``rank`` and ``world_size`` of an init; -1: not given.
        method: its ``init_method``; None: not given.
        store: its ``store``; None: not given.

    Raises:
        ArgumentError: an argument or a variable is wrong, or one is missing.
        LauncherError: ``PADDLEMPI_TRANSPORT=node`` under an MPI's launcher.
    """
    _check(rank, size, method, store)
    asked = transport()
    place, starter = starters.nearest()
    if place is not None and (place.size > 1 or not _tell_of_others(size)):
        if asked == "node" and place.size > 1:
            raise _started_for_mpi(place.name, place.size)
        why = f"{place.name} (process {place.pid}) has started this process"
        return World("mpi", why, max(place.rank, 0), place.size)
    if starter is not None:
        return _of_starter(starter, rank, size, method, store)
    hidden = _hidden(size)
    if hidden is not None:
        if asked == "node":
            raise _started_for_mpi(f"a launcher of {hidden.mpi}", hidden.size)
        why = f"variables of a launcher of {hidden.mpi} that is not above this process"
        return World("mpi", why, hidden.rank, hidden.size)
    if method is not None or store is not None or size > 1:
        return _of_arguments(rank, size, method, store)
    if _number("WORLD_SIZE") > 1:
        if _number("RANK") < 0:
            raise LauncherError(
                f"init_process_group: WORLD_SIZE={os.environ['WORLD_SIZE']}, but RANK is not set, "
                "and no launcher has started this process: start the job with mpirun, srun or "
                "torchrun, or set RANK, MASTER_ADDR and MASTER_PORT too"
            )
        method = _address("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE is set")
        return World(
            "store", "RANK and WORLD_SIZE are set", _number("RANK"), _number("WORLD_SIZE"), method
        )
    if asked == "node":
        return World("alone", "no launcher has started this process")
    return World("mpi", "no launcher has started this process")


def _started_for_mpi(name: str, size: int) -> LauncherError:
    return LauncherError(
        f"init_process_group: {TRANSPORT}=node, but {name} has started this process as one of "
        f"{size}: start them with python -m paddlempi run -np {size}, or with torchrun; or unset "
        f"{TRANSPORT}"
    )


def _hidden(size: int) -> Place | None:
    """Return the place in a job of several ranks whose launcher a container hides.

    Its variables count if nothing tells of another number of ranks: a process that is no rank may
    have inherited them.
    """
    place = mpi_launcher.find(hidden=True)
    if place is None or place.size < 2:
        return None
    told = [size, _number("WORLD_SIZE")]
    return place if all(number in (-1, place.size) for number in told) else None


def _tell_of_others(size: int) -> bool:
    """Whether the arguments or the variables tell of other ranks than this one."""
    return size > 1 or _number("WORLD_SIZE") > 1


def _of_starter(starter: Starter, rank: int, size: int, method: str | None, store: Any) -> World:
    told_rank, told_size = _number(starter.rank), _number(starter.size)
    if method is not None and not method.startswith("env://"):
        in_url = _from_url(method)
        rank, size = (a if a >= 0 else b for a, b in zip((rank, size), in_url, strict=True))
    rank, size = told_rank if rank < 0 else rank, told_size if size < 0 else size
    if not 0 <= rank < size:
        raise ArgumentError(
            f"init_process_group: rank={rank}, world_size={size}, under {starter.name}: "
            f"{starter.rank} and {starter.size} must say them, or the arguments"
        )
    why = f"{starter.name} has started this process"
    if store is not None:
        return World("store", why, rank, size)
    if method is None or method.startswith("env://"):
        method = _meeting_place(starter)
    return World("store", why, rank, size, method)


def _of_arguments(rank: int, size: int, method: str | None, store: Any) -> World:
    if method is not None:
        in_url = _from_url(method)
        rank, size = (a if a >= 0 else b for a, b in zip((rank, size), in_url, strict=True))
    if method is None or method.startswith("env://"):
        rank = _number("RANK") if rank < 0 else rank
        size = _number("WORLD_SIZE") if size < 0 else size
    if not 0 <= rank < size:
        raise ArgumentError(
            f"init_process_group: rank={rank}, world_size={size}: give both, as arguments or as "
            "?rank=&world_size= of init_method; rank is from 0 to world_size - 1"
        )
    if store is not None:
        return World("store", "a store was given", rank, size)
    if method is None or method.startswith("env://"):
        method = _address("MASTER_ADDR", "MASTER_PORT", "rank and world_size were given")
    return World("store", "rank and world_size were given", rank, size, method)


def _check(rank: Any, size: Any, method: Any, store: Any) -> None:
    for name, value in (("rank", rank), ("world_size", size)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise DtypeError(
                f"init_process_group: {name} is a {type(value).__name__}, it must be an int"
            )
    if method is not None and store is not None:
        raise ArgumentError("init_process_group: init_method and store: give one of them")
    if method is not None and not isinstance(method, str):
        raise DtypeError(
            f"init_process_group: init_method is a {type(method).__name__}, it must be a str"
        )
    if method is not None and not method.startswith(("env://", "tcp://", "file://")):
        raise ArgumentError(
            f"init_process_group: init_method={method!r}: it must begin with env://, tcp:// or "
            "file://"
        )


def _from_url(method: str) -> tuple[int, int]:
    from urllib.parse import parse_qs, urlsplit  # takes 4 ms, which few programs have to spend

    query = parse_qs(urlsplit(method).query)
    numbers = []
    for name in ("rank", "world_size"):
        text = query.get(name, ["-1"])[-1]
        if not text.removeprefix("-").isdecimal():
            raise ArgumentError(f"init_process_group: init_method={method!r}: {name}={text}")
        numbers.append(int(text))
    return numbers[0], numbers[1]


def _meeting_place(starter: Starter) -> str:
    if starter.sign == MEET:
        return os.environ[MEET]
    if not starter.endpoints:
        host, port = starter.address
        return _address(host, port, f"{starter.name} has started this process")
    for name in starter.endpoints:
        first = os.environ.get(name, "").partition(",")[0]
        if ":" in first:
            return f"tcp://{first}"
    raise ArgumentError(
        f"init_process_group: {starter.name} has started this process, but none of "
        f"{', '.join(starter.endpoints)} says where rank 0 can be reached, as HOST:PORT"
    )


def _address(host: str, port: str, because: str) -> str:
    """Return the address that variables name, as ``tcp://HOST:PORT``."""
    names = (host, port)
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        raise ArgumentError(
            f"init_process_group: {because}, but {' and '.join(missing)} not set: rank 0 is "
            "reached there; set them, or give init_method"
        )
    address = os.environ[host]
    return (
        f"tcp://[{address}]:{os.environ[port]}"
        if ":" in address
        else (f"tcp://{address}:{os.environ[port]}")
    )


def _number(name: str) -> int:
    text = os.environ.get(name, "").strip()
    return int(text) if text.isdecimal() else -1
