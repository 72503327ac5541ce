"""What a rank and the coordinator of an elastic job say to each other: messages over a stream.

A message is a dictionary, written as JSON behind its length of 4 bytes, little-endian. The bytes of
the store in which ranks meet are in it as base64.
"""

from __future__ import annotations

import base64
import json
import select
import socket
import struct
from collections.abc import Sequence
from typing import Any

__all__ = ["Channel", "Message", "packed", "unpacked"]

Message = dict[str, Any]

_LENGTH = struct.Struct("<I")
_LARGEST = 16 << 20
"""The most bytes of a message, and of what waits to be sent to a process that reads nothing."""


class Channel:
    """One end of a connection. It waits only in :meth:`wait`.

    ``ConnectionError`` says that the other end is gone, or sends what is no message.

    Thread-safety: one thread at a time.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.setblocking(False)
        self._received = bytearray()
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self.connection.fileno()

    def send(self, message: Message) -> None:
        """Send a message; what does not go at once goes by :meth:`flush`."""
        data = json.dumps(message).encode()
        self._unsent += _LENGTH.pack(len(data)) + data
        self.flush()

    def flush(self) -> bool:
        """Send what goes without waiting; return whether that was all."""
        while self._unsent:
            try:
                sent = self.connection.send(self._unsent, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                if len(self._unsent) > _LARGEST:
                    raise ConnectionError("it does not read what is sent to it") from None
                return False
            del self._unsent[:sent]
        return True

    def receive(self) -> list[Message]:
        """Return the messages that have come."""
        gone = False
        while not gone:
            try:
                data = self.connection.recv(1 << 16)
            except BlockingIOError:
                break
            except ConnectionResetError:  # it has not read all that was sent to it
                data = b""
            self._received += data
            gone = not data
        messages = []
        while len(self._received) >= _LENGTH.size:
            length = _LENGTH.unpack_from(self._received)[0]
            if length > _LARGEST:
                raise ConnectionError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._received) < end:
                break
            messages.append(_decoded(bytes(self._received[_LENGTH.size : end])))
            del self._received[:end]
        if gone and not messages:
            raise ConnectionError("it has closed the connection")
        return messages

    def wait(self, seconds: float | None = None) -> None:
        """Wait until something can be received, or what is unsent can be sent."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.poll(None if seconds is None else seconds * 1000)
        self.flush()

    def close(self) -> None:
        self.connection.close()


def _decoded(data: bytes) -> Message:
    try:
        message = json.loads(data)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ConnectionError(f"it sends what is no message: {data[:40]!r}")
    return message


def packed(values: Sequence[bytes]) -> list[str]:
    """Return bytes as they are in a message."""
    return [base64.b64encode(value).decode() for value in values]


def unpacked(values: Sequence[str]) -> list[bytes]:
    """Return the bytes of a message. Raises ValueError if they are none."""
    return [base64.b64decode(value) for value in values]
