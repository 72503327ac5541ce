"""What an elastic job is made of, in one process: messages, parts, which errors are of a loss."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from paddlempi import errors
from paddlempi.elasticity import wire
from paddlempi.elasticity.hub import Hub
from paddlempi.elasticity.link import Link, watched
from paddlempi.elasticity.lost import is_lost
from paddlempi.elasticity.parts import ArraysPart, part_of


@pytest.fixture
def ends() -> Iterator[tuple[wire.Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield wire.Channel(ours), theirs


def test_messages_come_whole(ends: tuple[wire.Channel, socket.socket]) -> None:
    channel, other = ends
    there = wire.Channel(other)
    messages = [{"say": "a"}, {"say": "b", "values": wire.packed([b"", b"\xff\0"])}]
    for message in messages:
        there.send(message)
    found: list[wire.Message] = []
    for byte in channel.connection.recv(1 << 16):
        other.send(bytes([byte]))
        found += channel.receive()
    assert found == messages
    assert wire.unpacked(messages[1]["values"]) == [b"", b"\xff\0"]


def test_what_does_not_go_at_once_goes_later(ends: tuple[wire.Channel, socket.socket]) -> None:
    channel, other = ends
    there, long = wire.Channel(other), {"say": "x" * 4_000_000}
    channel.send(long)
    assert not channel.flush()
    found: list[wire.Message] = []
    while not found:
        found = there.receive()
        channel.flush()
    assert found == [long] and channel.flush()


def test_a_process_that_reads_nothing(ends: tuple[wire.Channel, socket.socket]) -> None:
    channel, _ = ends
    with pytest.raises(ConnectionError, match="does not read"):
        for _ in range(10):
            channel.send({"say": "x" * 4_000_000})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff\xff\xff\x7f", "a message of 2147483647 bytes"),
        (b"\x02\0\0\0[]", "no message"),
        (b"\x02\0\0\0\xff\xfe", "no message"),
    ],
)
def test_what_is_no_message(
    ends: tuple[wire.Channel, socket.socket], data: bytes, text: str
) -> None:
    channel, other = ends
    other.send(data)
    with pytest.raises(ConnectionError, match=text):
        channel.receive()


def test_the_last_words_come_before_the_end(ends: tuple[wire.Channel, socket.socket]) -> None:
    channel, other = ends
    wire.Channel(other).send({"say": "over"})
    other.close()
    assert channel.receive() == [{"say": "over"}]
    with pytest.raises(ConnectionError, match="closed"):
        channel.receive()


def test_last_words_of_who_has_not_read_all(ends: tuple[wire.Channel, socket.socket]) -> None:
    channel, other = ends
    wire.Channel(other).send({"say": "leave"})
    channel.send({"say": "end"})
    other.close()
    assert channel.receive() == [{"say": "leave"}]
    with pytest.raises(ConnectionError, match="closed"):
        channel.receive()


def test_last_words_count(ends: tuple[wire.Channel, socket.socket]) -> None:
    """A process may be known to have ended before what it has said last was read."""
    channel, other = ends
    with selectors.DefaultSelector() as selector:
        hub = Hub(selector, 1, lambda line: None, lambda key, nonsense: None)
        hub.coordinator.started(3, "rank 0")
        hub.add(3, channel.connection)
        there = wire.Channel(other)
        for message in ({"say": "ready"}, {"say": "leave"}):
            there.send(message)
        other.close()
        hub.hear(3)
        assert hub.coordinator.leaves(3)
        hub.drop(3)
        hub.hear(3)


def test_arrays_go_back() -> None:
    """Nested ones too, of any dtype and shape; empty ones need nothing."""
    arrays = {"b": [np.ones((2, 3), np.float16), np.zeros(0)], "a": np.array(3), "c": bytearray(2)}
    part = ArraysPart(arrays)
    part.before()
    arrays["a"][...] = 4
    arrays["b"][0][1, 2] = 7
    arrays["c"][0] = 9
    assert part.whole()
    part.back()
    assert arrays["a"] == 3 and (arrays["b"][0] == 1).all() and arrays["c"] == bytearray(2)


def test_arrays_that_cannot_be_taken() -> None:
    for array, text in (
        (np.ones((4, 4))[:, ::2], "is not contiguous"),
        (b"abc", "cannot be written to"),
        (3.0, "a float is neither an array"),
    ):
        with pytest.raises(errors.DtypeError, match=text):
            part_of([array] if isinstance(array, np.ndarray) else array)


def test_what_is_lost() -> None:
    died = errors.PeerDiedError("rank 1 died")
    wrapped = RuntimeError("Exception raised from wait: paddlempi.errors.PeerDiedError: rank 1")
    later = ValueError("no gradient")
    later.__context__ = errors.RevokedError("revoked")
    for error in (died, wrapped, later, errors.RefusedError("rank 1")):
        assert is_lost(error), error
    for other in (
        ValueError("no"),
        RuntimeError("PeerDiedError"),
        errors.MismatchError("other calls"),
        errors.TimeoutError("nobody has died"),
        KeyboardInterrupt(),
    ):
        assert not is_lost(other), other
    circle = ValueError("one")
    circle.__context__ = RuntimeError("two")
    circle.__context__.__context__ = circle
    assert not is_lost(circle)


def test_a_member_that_dies_while_the_others_wait_in_the_core(
    ends: tuple[wire.Channel, socket.socket],
) -> None:
    """The coordinator is asked now and then, until it says so, or until the meeting is over."""
    channel, other = ends
    coordinator, given, asked = wire.Channel(other), list[str](), 0

    def answer() -> None:
        nonlocal asked
        with suppress(OSError, ValueError):  # it is closed
            while True:
                coordinator.wait(10)
                for message in coordinator.receive():
                    assert message == {"say": "get", "keys": []}
                    asked += 1
                    lost = {"say": "lost"}
                    coordinator.send(lost if asked == 2 else {"say": "values", "values": []})

    threading.Thread(target=answer, daemon=True).start()
    link = Link(channel)
    for questions in (2, 3):
        with watched(link, given.append):
            until = time.monotonic() + 10
            while asked < questions and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.05)
    assert asked >= 3 and len(given) == 1 and "while the ranks met" in given[0]
