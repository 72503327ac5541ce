"""The connections between a coordinator and the processes of its job."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from .coordinator import Coordinator
from .wire import Channel, Message

__all__ = ["Hub"]


class Hub:
    """Hands messages on, both ways. It waits for nobody.

    Args:
        selector: in which its connections are; their data is what to call when they are ready.
        least: of the coordinator.
        say: of the coordinator.
        broken: is called with the key of a process that has closed its connection, and whether it
            had sent nonsense.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        least: int,
        say: Callable[[str], None],
        broken: Callable[[int, bool], None],
    ) -> None:
        self.coordinator = Coordinator(least, self._send, say)
        self._selector, self._broken = selector, broken
        self._channels: dict[int, Channel] = {}

    def add(self, key: int, connection: socket.socket) -> None:
        """Take up the connection of a process."""
        self.adopt(key, Channel(connection))

    def adopt(self, key: int, channel: Channel, heard: Sequence[Message] = ()) -> None:
        """Take up a connection from which messages have been read already."""
        self._channels[key] = channel
        self._selector.register(channel, selectors.EVENT_READ, lambda: self.hear(key))
        self._take(key, heard)

    def drop(self, key: int) -> None:
        """Close the connection of a process."""
        channel = self._channels.pop(key, None)
        if channel is not None:
            self._selector.unregister(channel)
            channel.close()

    def close(self) -> None:
        """Close all connections."""
        for key in list(self._channels):
            self.drop(key)

    def _send(self, key: int, message: Message) -> None:
        channel = self._channels.get(key)
        # Who is gone is known by its end, or by the connection when that is read.
        with suppress(OSError):
            if channel is not None:
                channel.send(message)
                self._watch(key, channel)

    def _watch(self, key: int, channel: Channel) -> None:
        """Wait for what is to be waited for next."""
        events = selectors.EVENT_READ
        if not channel.flush():
            events |= selectors.EVENT_WRITE
        if self._selector.get_key(channel).events != events:
            self._selector.modify(channel, events, lambda: self.hear(key))

    def hear(self, key: int) -> None:
        """Take up what a process has said, also one that has ended: its last words."""
        channel = self._channels.get(key)
        if channel is None:
            return
        try:
            messages = channel.receive()
        except OSError:
            self.drop(key)
            self._broken(key, False)
            return
        with suppress(OSError):  # it reads nothing any more; what it has said counts
            self._watch(key, channel)
        self._take(key, messages)

    def _take(self, key: int, messages: Sequence[Message]) -> None:
        try:
            for message in messages:
                self.coordinator.take(key, message)
        except (ValueError, KeyError, TypeError, IndexError):
            self.drop(key)
            self._broken(key, True)
