"""Ports for servers that a test starts later."""

from __future__ import annotations

import contextlib
import random
import socket


def unused() -> int:
    """Return a TCP port on which no process listens.

    The kernel does not give it to a connection, which could take it before the server starts:
    ephemeral ports begin at 32768.
    """
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_server(("127.0.0.1", random.randrange(10_000, 32_000))) as found,
        ):
            return int(found.getsockname()[1])
