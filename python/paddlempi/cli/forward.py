"""Hands on what the ranks of ``run -np`` print, by whole lines: lines of two ranks do not mix."""

from __future__ import annotations

import os
import re
import select
import selectors
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

__all__ = ["Forwarder", "Place"]

_ENDS = (b"\n", b"\r")

_PATIENCE = 0.2
"""After how many seconds a line without an end is handed on, such as a prompt."""


class Place(NamedTuple):
    """Where the lines of a rank go."""

    descriptor: int
    prefix: bytes = b""
    """What each line begins with there."""


class Forwarder:
    """The pipes of all ranks. ``wakeup`` is a descriptor that ends a wait when something comes."""

    def __init__(self, wakeup: int) -> None:
        self.selector = selectors.DefaultSelector()
        """In which others may wait, too: the data of theirs is what to call when one is ready."""
        self.selector.register(wakeup, selectors.EVENT_READ)
        self._wakeup = wakeup
        self._pipes: dict[int, _Pipe] = {}

    def add(self, pipe: int, to: Sequence[Place]) -> None:
        """Hand on what comes out of ``pipe``, which this object closes, to all places."""
        os.set_blocking(pipe, False)
        self._pipes[pipe] = _Pipe(to)
        self.selector.register(pipe, selectors.EVENT_READ)

    def wait(self, seconds: float | None = None) -> None:
        """Hand on what there is, and wait until there is more, or until ``wakeup`` is ready.

        Args:
            seconds: the longest wait.
        """
        if any(one.rest for one in self._pipes.values()):
            seconds = _PATIENCE if seconds is None else min(seconds, _PATIENCE)
        for key, _ in self.selector.select(seconds):
            if key.data is not None:
                key.data()
            elif key.fd == self._wakeup:
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
        self.selector.close()

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
        if not data:
            return
        one = self._pipes[pipe]
        try:
            for place in one.to:
                rest = one.marked(data, place.prefix)
                while rest:
                    try:
                        rest = rest[os.write(place.descriptor, rest) :]
                    except BlockingIOError:  # a program on the same terminal wants it so
                        select.select([], [place.descriptor], [])
        except OSError:  # `| head` has read enough: the rank shall see that, too
            one.rest = b""
            self._end(pipe)
        one.begins = data.endswith(_ENDS)

    def _end(self, pipe: int) -> None:
        one = self._pipes.get(pipe)
        if one is not None:
            rest = one.take(whole=False)
            if rest:
                self._write(pipe, rest)
        if self._pipes.pop(pipe, None) is not None:
            with suppress(KeyError):
                self.selector.unregister(pipe)
            os.close(pipe)


class _Pipe:
    """What has come out of one pipe and was not handed on."""

    def __init__(self, to: Sequence[Place]) -> None:
        self.to, self.rest, self.since = to, b"", 0.0
        self.begins = True  # what comes next is at the beginning of a line

    def put(self, data: bytes) -> None:
        if not self.rest:
            self.since = time.monotonic()
        self.rest += data

    def take(self, whole: bool) -> bytes:
        """Take what is there; with ``whole`` only lines that have an end, by LF or CR."""
        end = max(self.rest.rfind(b"\n"), self.rest.rfind(b"\r")) + 1 if whole else len(self.rest)
        data, self.rest = self.rest[:end], self.rest[end:]
        return data

    def marked(self, data: bytes, prefix: bytes) -> bytes:
        """Return what was taken, with a prefix in front of each line that begins in it."""
        if not prefix:
            return data
        lines = re.sub(rb"(\r\n|\r|\n)(?=.)", rb"\1" + prefix, data, flags=re.DOTALL)
        return prefix + lines if self.begins else lines
