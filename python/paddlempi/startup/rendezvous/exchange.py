"""The words that the ranks of a world exchange over the store while the core starts.

The core writes requests into a socket: a length of 4 bytes, little-endian, and as many bytes, which
all ranks shall have. :class:`Server` answers in a thread, as the core waits without the GIL: the
number of ranks, and for each rank a length and its bytes; or 0xFFFFFFFF, a length, and the text of
an error, with which init fails. Requests come one after the other, on every rank as many.

Each rank writes its bytes below a key of its own, rank 0 puts those of all ranks together below one
more, and all read that. These keys are used again for the next request: a rank that has read what
rank 0 wrote knows that rank 0 has read all keys, and rank 0 that has all keys of a request knows
that all ranks have read its answer to the request before.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ...errors import Error, LauncherError
from . import meeting
from .meeting import PREFIX, Pause
from .stores import Store

__all__ = ["Abandoned", "Exchange", "Server"]

_U32 = struct.Struct("<I")
_FAILED = 0xFFFF_FFFF
_LARGEST = 64 << 20
"""The most bytes of a request."""

_LOOK_EVERY = 0.5
"""Seconds between two looks whether another rank 0 has taken the store over."""


class Abandoned(Exception):
    """Nobody wants the answer any more: the core has an error of its own."""


class Exchange:
    """Everybody's bytes for everybody, over a store.

    Args:
        store: the job's; nobody else uses this client of it meanwhile.
        rank, size: this rank, and the number of ranks.
        world: the id of the world.
        deadline: until when it waits, as :func:`time.monotonic`.
        wanted: whether somebody still wants the answer.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        world: str,
        deadline: float,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._rank, self._size, self._world = store, rank, size, world
        self._deadline, self._wanted = deadline, wanted
        self._count = 0

    def gather(self, mine: bytes) -> list[bytes]:
        """Return the bytes of all ranks, by rank. Collective over the world.

        Raises:
            TimeoutError: some ranks did not come.
            LauncherError: another rank 0 has taken the store over.
            Abandoned: the answer is not wanted any more.
        """
        self._count += 1
        parts = [mine]
        if self._rank == 0:
            if self._size > 1:
                keys = [self._key(rank) for rank in range(1, self._size)]
                parts += self._wait_for(keys)
                self._store.set(self._key("all"), self._numbered(_packed(parts)))
            return parts
        self._store.set(self._key(self._rank), self._numbered(mine))
        return _unpacked(self._wait_for([self._key("all")])[0], self._size)

    def end(self) -> None:
        """Remove this rank's words. Rank 0 also removes the store, if it is this job's alone.

        All ranks have given their last words by then. The client of the store stays open.
        """
        if self._rank > 0:
            self._store.delete([self._key(self._rank)])
        elif meeting.still_leads(self._store, self._world)[0]:
            self._store.remove()

    def _key(self, name: object) -> str:
        return f"{PREFIX}{self._world}/{name}"

    def _numbered(self, data: bytes) -> bytes:
        return _U32.pack(self._count) + data

    def _wait_for(self, keys: list[str]) -> list[bytes]:
        """Return the values that ``keys`` have for this request."""
        began = looked = time.monotonic()
        number, pause = _U32.pack(self._count), Pause(self._size)
        while True:
            values = self._store.get(keys)
            missing = [i for i, value in enumerate(values) if value[:4] != number]
            if not missing:
                return [value[4:] for value in values]
            now = time.monotonic()
            ranks = [i + 1 for i in missing] if self._rank == 0 else [0]
            if now >= self._deadline:
                raise meeting.timeout_error(ranks, self._size, now - began)
            if now - looked >= _LOOK_EVERY:
                looked = now
                leads, state = meeting.still_leads(self._store, self._world)
                if not leads:
                    error = LauncherError(
                        f"init_process_group: {state.get('who')} has begun another meeting as rank "
                        f"0 in the same store, before rank(s) {ranks} had joined this one: give "
                        "every job a file, a port or a store of its own. If the job was started "
                        "anew, this process is of the attempt before"
                    )
                    error.ranks = tuple(ranks[:32])
                    raise error
            if not self._wanted():
                raise Abandoned
            pause.wait()


class Server:
    """Answers the core's requests until it closes its end.

    ``failure`` is the error with which the exchange failed; None if it did not.

    Args:
        exchange: makes the exchange, given the function that it asks whether its answer is wanted.
    """

    def __init__(self, exchange: Callable[[Callable[[], bool]], Exchange]) -> None:
        self.failure: Exception | None = None
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.descriptor = theirs.detach()
        """The core's end. The core closes it."""
        self._exchange = exchange(self._wanted)
        self._thread = threading.Thread(target=self._serve, name="paddlempi-exchange", daemon=True)
        self._thread.start()

    def end(self, failed: bool) -> None:
        """Wait until the core has closed its end.

        Args:
            failed: the core's init has failed. It may not have come to use its end then.
        """
        if failed:
            with suppress(OSError):  # the core has closed its end
                self._ours.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._ours.close()

    def _wanted(self) -> bool:
        try:
            return self._ours.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return True

    def _serve(self) -> None:
        try:
            while (head := _received(self._ours, 4)) is not None:
                length = _U32.unpack(head)[0]
                if length > _LARGEST:
                    raise LauncherError(f"init_process_group: a request of {length} bytes")
                mine = _received(self._ours, length)
                if mine is None:
                    break
                self._ours.sendall(_packed(self._exchange.gather(mine)))
        except Exception as error:  # a store may raise anything
            self.failure = error
            text = str(error) if isinstance(error, Error) else f"the store of the ranks: {error}"
            with suppress(OSError):
                data = text.encode()
                self._ours.sendall(_U32.pack(_FAILED) + _U32.pack(len(data)) + data)
            with suppress(OSError):
                self._ours.shutdown(socket.SHUT_RDWR)
        finally:
            with suppress(Exception):
                self._exchange.end()


def _received(connection: socket.socket, length: int) -> bytes | None:
    """Receive that many bytes; None if the other end is closed."""
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), 1 << 20))
        if not part:
            return None
        data += part
    return bytes(data)


def _packed(parts: list[bytes]) -> bytes:
    pieces: list[Any] = [_U32.pack(len(parts))]
    for part in parts:
        pieces += [_U32.pack(len(part)), part]
    return b"".join(pieces)


def _unpacked(data: bytes, size: int) -> list[bytes]:
    """Take apart what rank 0 has put together."""
    parts, at = [], 4
    if _U32.unpack(data[:4])[0] == size:
        for _ in range(size):
            length = _U32.unpack(data[at : at + 4])[0] if len(data) >= at + 4 else len(data)
            parts.append(data[at + 4 : at + 4 + length])
            at += 4 + length
    if at != len(data) or len(parts) != size:
        raise LauncherError("init_process_group: what rank 0 has put together is damaged")
    return parts
