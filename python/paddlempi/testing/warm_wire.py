"""What a warm server and its clients tell each other over a Unix socket.

A client sends one request with two descriptors, the job's stdout and stderr. The answers are lines
of JSON: ``{"begun": true}`` and ``{"status": n}``, or ``{"error": text}``. A client that closes the
connection, or sends anything more, ends the job.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

__all__ = ["answer", "is_same_user", "peer", "receive_answer", "receive_request", "send_request"]

_MOST_REQUEST = 16 << 20
_MOST_ANSWER = 1 << 16
_SECONDS = 30.0
"""Within which a request must have come whole."""
_LENGTH = struct.Struct("!I")


def peer(sock: socket.socket) -> tuple[int, int]:
    """Return the pid and the uid of the process at the other end."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def is_same_user(sock: socket.socket) -> bool:
    """Whether a process of this user is at the other end."""
    return peer(sock)[1] == os.getuid()


def send_request(sock: socket.socket, request: Mapping[str, Any], files: list[int]) -> None:
    """Send a request. Raises OSError if the server has gone, ValueError if it is too long."""
    text = json.dumps(request).encode()
    if len(text) > _MOST_REQUEST:
        raise ValueError(f"the environment and the arguments have {len(text)} bytes: too many")
    socket.send_fds(sock, [_LENGTH.pack(len(text))], files)
    sock.sendall(text)


def receive_request(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return a request and its two descriptors, which the caller owns.

    Raises EOFError if the client has gone, OSError if it is late, ValueError if that is no request.
    """
    sock.settimeout(_SECONDS)
    head, files, _, _ = socket.recv_fds(sock, _LENGTH.size, 2)
    head += _exactly(sock, _LENGTH.size - len(head)) if head else b""
    if not head:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    if length > _MOST_REQUEST or len(files) != 2:
        raise ValueError("this is no request")
    request = json.loads(_exactly(sock, length))
    sock.settimeout(None)
    return request, files


def _exactly(sock: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = sock.recv(min(length - len(data), 1 << 16))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def answer(sock: socket.socket, message: Mapping[str, Any]) -> None:
    """Send an answer. The client may have gone."""
    with contextlib.suppress(OSError):
        sock.sendall(json.dumps(message).encode()[: _MOST_ANSWER - 1] + b"\n")


def receive_answer(sock: socket.socket) -> dict[str, Any]:
    """Return the next answer.

    Raises EOFError or ConnectionError if the other end has gone, TimeoutError at the timeout of
    the socket, ValueError if that is no answer.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        if len(line) > _MOST_ANSWER:
            raise ValueError("the answer is too long")
        part = sock.recv(1)  # the next answer must stay in the socket
        if not part:
            raise EOFError
        line += part
    message: dict[str, Any] = json.loads(line)
    return message
