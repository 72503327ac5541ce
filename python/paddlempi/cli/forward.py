"""Hands on what the ranks of ``run -np`` print, by whole lines: lines of two ranks do not mix."""

from __future__ import annotations

import os
import selectors
import time
from contextlib import suppress

__all__ = ["Forwarder"]

_PATIENCE = 0.2
"""After how many seconds a line without an end is handed on, such as a prompt."""


class Forwarder:
    """The pipes of all ranks. ``wakeup`` is a descriptor that ends a wait when something comes."""

    def __init__(self, wakeup: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(wakeup, selectors.EVENT_READ)
        self._wakeup = wakeup
        self._pipes: dict[int, _Pipe] = {}

    def add(self, pipe: int, to: int) -> None:
        """Hand on what comes out of ``pipe`` to the descriptor ``to``. This object closes it."""
        os.set_blocking(pipe, False)
        self._pipes[pipe] = _Pipe(to)
        self._selector.register(pipe, selectors.EVENT_READ)

    def wait(self) -> None:
        """Hand on what there is, and wait until there is more, or until ``wakeup`` is ready."""
        late = any(one.rest for one in self._pipes.values())
        for key, _ in self._selector.select(_PATIENCE if late else None):
            if key.fd == self._wakeup:
                os.read(self._wakeup, 4096)
            else:
                self._read(key.fd)
        now = time.monotonic()
        for pipe, one in list(self._pipes.items()):
            if one.rest and now - one.since >= _PATIENCE:
                self._write(pipe, one.take(whole=False))

    def close(self) -> None:
        """Hand on what ranks have left that have ended. Their children may have pipes open."""
        for pipe in list(self._pipes):
            while pipe in self._pipes and self._read(pipe):
                pass
            self._end(pipe)
        self._selector.close()

    def _read(self, pipe: int) -> bool:
        try:
            data = os.read(pipe, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._end(pipe)
            return False
        one = self._pipes[pipe]
        one.put(data)
        self._write(pipe, one.take(whole=True))
        return pipe in self._pipes

    def _write(self, pipe: int, data: bytes) -> None:
        to = self._pipes[pipe].to
        try:
            while data:
                data = data[os.write(to, data) :]
        except OSError:  # `| head` has read enough: the rank shall see that, too
            self._pipes[pipe].rest = b""
            self._end(pipe)

    def _end(self, pipe: int) -> None:
        one = self._pipes.get(pipe)
        if one is not None:
            rest = one.take(whole=False)
            if rest:
                self._write(pipe, rest)
        if self._pipes.pop(pipe, None) is not None:
            with suppress(KeyError):
                self._selector.unregister(pipe)
            os.close(pipe)


class _Pipe:
    """What has come out of one pipe and was not handed on."""

    def __init__(self, to: int) -> None:
        self.to, self.rest, self.since = to, b"", 0.0

    def put(self, data: bytes) -> None:
        if not self.rest:
            self.since = time.monotonic()
        self.rest += data

    def take(self, whole: bool) -> bytes:
        """Take what is there; with ``whole`` only lines that have an end, by LF or CR."""
        end = max(self.rest.rfind(b"\n"), self.rest.rfind(b"\r")) + 1 if whole else len(self.rest)
        data, self.rest = self.rest[:end], self.rest[end:]
        return data
