"""Handles: how processes that know nothing of each other name each other, for a new world.

A handle is a string that a process gives others by a way of its own. The world of a list of handles
has these processes in this order. They meet at the first one, which serves a store at a port of
this host. A handle has a secret: who does not know the handles finds no key of the meeting.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ArgumentError, UnsupportedError
from . import reform
from .rendezvous.joining import host
from .rendezvous.stores import MemoryStore, Store
from .rendezvous.tcp_store import TCPStore, serve_here

__all__ = ["my_handle", "reform_by_handles"]

_FORM = "paddlempi-1"


class _Handle(NamedTuple):
    host: str
    port: int
    secret: str

    def __str__(self) -> str:
        return "/".join((_FORM, self.host, str(self.port), self.secret))


class _Own:
    """What this process serves: its handle, and the client that keeps the store alive."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.handle: _Handle | None = None
        self.client: TCPStore | None = None
        self.keys: set[str] = set()  # of the last meeting that this process led


_own = _Own()


def my_handle() -> str:
    """Return the handle of this process, in every call the same one."""
    with _own.lock:
        if _own.handle is None:
            port = serve_here()
            _own.client = TCPStore("127.0.0.1", port, False, time.monotonic() + 5.0)
            _own.handle = _Handle(host(), port, secrets.token_hex(16))
        return str(_own.handle)


def reform_by_handles(uuid: int, handles: Sequence[str], timeout: float) -> None:
    """Become a rank of the world of the processes with ``handles``, as :func:`.reform.reform` does.

    All of them call it with the same arguments. Rank i is the process with ``handles[i]``.

    Args:
        uuid: of the new world; a number that was not used for the same handles before.
        handles: one of each process, this one's too.
        timeout: how long this waits for the others, in seconds.

    Raises:
        ArgumentError: a string is no handle, is there twice, or this process's is not there.
        UnsupportedError: a handle is of another host.
        Error: as :func:`.reform.reform`.
    """
    own = my_handle()
    parsed = [_parse(text) for text in handles]
    if own not in handles or len(set(handles)) < len(handles):
        raise ArgumentError(
            f"reconfigure: handles of {[f'{one.host}:{one.port}' for one in parsed]}: that of each "
            "process has to be there once, this one's too"
        )
    others = [handle for handle in parsed if handle.host != parsed[0].host]
    if others:
        raise UnsupportedError(
            f"reconfigure: {len(others)} of the {len(parsed)} handles are of other hosts: a world "
            "goes on in other processes on one host only"
        )
    if len(handles) == 1:
        reform.reform(0, 1, MemoryStore(), timeout=timeout)
        return
    name = hashlib.sha256("\n".join((str(uuid), *handles)).encode()).hexdigest()
    rank = list(handles).index(own)
    deadline = time.monotonic() + timeout
    client = TCPStore("127.0.0.1", parsed[0].port, False, deadline)
    reform.reform(rank, len(handles), _Part(client, f"{name}/", rank == 0), timeout=timeout)


def _parse(text: str) -> _Handle:
    parts = text.split("/") if isinstance(text, str) else []
    if len(parts) != 4 or parts[0] != _FORM or not parts[2].isdecimal():
        raise ArgumentError(f"reconfigure: {text!r} is no handle of this version of paddlempi")
    return _Handle(parts[1], int(parts[2]), parts[3])


class _Part(Store):
    """The keys of one meeting in the store of the process that leads it.

    Args:
        store: of which this is a part.
        prefix: of all keys.
        leads: this process serves the store, and removes the keys at its next meeting: all have
            come out of this one by then.
    """

    def __init__(self, store: Store, prefix: str, leads: bool) -> None:
        self._store, self._prefix, self._leads = store, prefix, leads
        if leads:
            store.delete(sorted(_own.keys))
            _own.keys.clear()

    def _full(self, keys: Sequence[str]) -> list[str]:
        full = [f"{self._prefix}{key}" for key in keys]
        if self._leads:
            _own.keys.update(full)
        return full

    def get(self, keys: Sequence[str]) -> list[bytes]:
        return self._store.get(self._full(keys))

    def set(self, key: str, value: bytes) -> None:
        self._store.set(self._full([key])[0], value)

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        return self._store.swap(self._full([key])[0], old, new)

    def delete(self, keys: Sequence[str]) -> None:
        self._store.delete(self._full(keys))

    def close(self) -> None:
        self._store.close()
