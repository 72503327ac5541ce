"""Ranks that meet over a store, each a thread: for the tests of ``paddlempi.startup``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from paddlempi.startup.rendezvous import meeting
from paddlempi.startup.rendezvous.exchange import Exchange
from paddlempi.startup.rendezvous.file_store import FileStore
from paddlempi.startup.rendezvous.stores import Store

Open = Callable[[int, float], Store]
"""Opens a rank's client of one store, which rank 0 may serve, until a deadline."""


def in_file(path: str) -> Open:
    """Return what opens a store in a file."""
    return lambda rank, deadline: FileStore(path)


class Rank(threading.Thread):
    """A rank: it meets the others, and exchanges ``rounds`` times. ``result``: id, or an error."""

    def __init__(
        self,
        opener: Open,
        rank: int,
        size: int,
        seconds: float,
        rounds: int = 3,
        late: float = 0.0,
        same: dict[str, str] | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self.opener, self.rank, self.size, self.seconds = opener, rank, size, seconds
        self.rounds, self.late, self.same = rounds, late, same
        self.result: Any = None
        self.start()

    def run(self) -> None:
        time.sleep(self.late)
        deadline = time.monotonic() + self.seconds
        try:
            with closing(self.opener(self.rank, deadline)) as store:
                world, _ = meeting.meet(store, self.rank, self.size, deadline, self.same)
                exchange = Exchange(store, self.rank, self.size, world, deadline)
                for count in range(1, self.rounds + 1):
                    words = [f"{rank} {count}".encode() * count for rank in range(self.size)]
                    assert exchange.gather(words[self.rank]) == words
                exchange.end()
                self.result = world
        except Exception as error:
            self.result = error


def ended(ranks: Sequence[Rank], seconds: float = 30.0) -> list[Any]:
    """Wait for ranks and return their results."""
    end = time.monotonic() + seconds
    for rank in ranks:
        rank.join(max(0.0, end - time.monotonic()))
        assert not rank.is_alive(), f"rank {rank.rank} hangs"
    return [rank.result for rank in ranks]


def assert_one_world(results: Sequence[Any]) -> str:
    worlds = set(results)
    assert len(worlds) == 1, results
    world = worlds.pop()
    assert isinstance(world, str), world
    assert len(bytes.fromhex(world)) == 16
    return world
