"""The server of the exchange, with a socket in place of the core."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from paddlempi.errors import LauncherError, TimeoutError
from paddlempi.startup import worlds
from paddlempi.startup.rendezvous import joining
from paddlempi.startup.rendezvous.exchange import Abandoned, Exchange, Server
from paddlempi.startup.rendezvous.stores import MemoryStore

WORLD = "0123456789abcdef" * 2


class Core:
    """The core's side of one rank's exchange."""

    def __init__(self, store: MemoryStore, rank: int, size: int, seconds: float = 20) -> None:
        deadline = time.monotonic() + seconds
        self.server = Server(lambda wanted: Exchange(store, rank, size, WORLD, deadline, wanted))
        self.socket = socket.socket(fileno=self.server.descriptor)
        self.socket.settimeout(20)

    def ask(self, mine: bytes) -> None:
        self.socket.sendall(struct.pack("<I", len(mine)) + mine)

    def answer(self) -> list[bytes] | str:
        """Return the bytes of all ranks, or the text of an error."""
        number = self.number()
        if number == 0xFFFFFFFF:
            return self.read(self.number()).decode()
        return [self.read(self.number()) for _ in range(number)]

    def number(self) -> int:
        number: int = struct.unpack("<I", self.read(4))[0]
        return number

    def read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = self.socket.recv(length - len(data))
            assert part, "the server has closed its end"
            data += part
        return data

    def end(self, failed: bool = False) -> Exception | None:
        """Close the core's end, and return why the exchange failed."""
        self.socket.close()
        self.server.end(failed)
        return self.server.failure


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def test_requests_of_all_ranks() -> None:
    store = MemoryStore()
    cores = [Core(store, rank, 3) for rank in range(3)]
    for length in (0, 1, 100_000, 5):
        words = [bytes([rank]) * (length + rank) for rank in range(3)]
        for core, word in zip(cores, words, strict=True):
            core.ask(word)
        for core in cores:
            assert core.answer() == words
    assert [core.end() for core in cores] == [None] * 3


def test_one_rank() -> None:
    core = Core(MemoryStore(), 0, 1)
    core.ask(b"mine")
    assert core.answer() == [b"mine"]
    assert core.end() is None


@pytest.mark.parametrize(("rank", "missing"), [(0, 1), (1, 0)])
def test_the_deadline(rank: int, missing: int) -> None:
    core = Core(MemoryStore(), rank, 2, 0.3)
    core.ask(b"")
    assert f"rank(s) [{missing}] of 2 had not come" in core.answer()
    failure = core.end(failed=True)
    assert isinstance(failure, TimeoutError) and failure.ranks == (missing,)


def test_the_core_gives_up() -> None:
    core = Core(MemoryStore(), 0, 2)
    core.ask(b"")
    began = time.monotonic()
    assert isinstance(core.end(), Abandoned)
    assert time.monotonic() - began < 5


def test_the_core_does_not_use_its_end() -> None:
    core = Core(MemoryStore(), 0, 2)
    core.server.end(failed=True)
    assert core.server.failure is None
    core.socket.close()


def test_a_request_that_is_too_long() -> None:
    core = Core(MemoryStore(), 0, 1)
    core.socket.sendall(struct.pack("<I", 0xFFFFFFF0))
    assert "a request of 4294967280 bytes" in core.answer()
    assert core.end(failed=True) is not None


def test_a_file_serves_one_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = iter(["one", "other"])
    monkeypatch.setattr(joining, "host", lambda: next(hosts))
    errors: list[LauncherError] = []

    def join(rank: int) -> None:
        world = worlds.World("store", "", rank, 2, f"file://{tmp_path / 'meeting'}")
        with pytest.raises(LauncherError) as caught:
            joining.Joining(world, None, 20, "1")
        errors.append(caught.value)

    ranks = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    for error in errors:
        assert "of which file:// serves one only" in str(error) and error.ranks == (1,)
    assert len(errors) == 2
