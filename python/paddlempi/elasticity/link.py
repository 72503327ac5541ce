"""A rank's end of the connection to the coordinator, and the store in which the ranks meet."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from .._exit import PREEMPTED
from ..errors import PeerDiedError
from ..startup.rendezvous.stores import Store
from .wire import Channel, Message, packed, unpacked

__all__ = ["Link", "LinkStore", "Stopped", "World", "watched"]

_ASK_EVERY = 0.1
"""Seconds between two questions whether all members of an announced world live."""


class Stopped(PeerDiedError):
    """The coordinator says that the job cannot go on."""


class World(NamedTuple):
    """A world that the coordinator has announced to this process."""

    generation: int
    rank: int
    size: int
    least: int
    """How many ranks the job needs."""
    keys: tuple[int, ...]
    """Its members, by rank: numbers that the coordinator has given to the processes."""


class Link:
    """The connection to the coordinator.

    ``ConnectionError`` says that the coordinator is gone.

    Thread-safety: one thread at a time, but for ``ask``.
    """

    def __init__(self, channel: Channel | None) -> None:
        self.newcomer = False
        """Whether a process waits to be taken into the world."""
        self.asked = False
        """Whether the whole job was asked to end."""
        self._channel = channel
        self._asking = threading.Lock()
        self._stopped: str | None = None
        self._ended = False
        self._fresh = False  # in a muster, of a process that has nothing to lose
        self._answers: list[Message] = []

    def look(self) -> None:
        """Take up what has come, without waiting.

        Raises Stopped; SystemExit if the training is over or asked to end, and this process was
        not in it.
        """
        for message in self._there().receive():
            what = message.get("say")
            if what == "newcomer":
                self.newcomer = True
            elif what == "end":
                self.asked = True
            elif what == "ended":
                self._ended = True
            elif what == "stop":
                self._stopped = str(message.get("why"))
            else:
                self._answers.append(message)
        if self._ended:
            sys.exit(0)
        if self.asked and self._fresh:
            self._fresh = False
            self.tell("leave", preempted=True)
            sys.exit(PREEMPTED)
        if self._stopped is not None:
            raise Stopped(f"the elastic job cannot go on: {self._stopped}")

    def tell(self, what: str, **more: object) -> None:
        """Say something that has no answer."""
        self._there().send({"say": what, **more})

    def muster(self, least: int, fixed: bool, fresh: bool) -> World:
        """Say that this process waits for the next world, and return it.

        Args:
            least: how many ranks this rank wants at least.
            fixed: whether it needs as many as before.
            fresh: whether it has not been in the world yet. If the job is asked to end, it leaves.
        """
        self._fresh = fresh
        self._answers.clear()  # such as a muster that was on its way
        self.tell("ready", least=least, fixed=fixed)
        said = self._wait("world")
        self._fresh = False
        self.newcomer = False
        generation, rank, size, least = (int(said[name]) for name in World._fields[:4])
        return World(generation, rank, size, least, tuple(int(key) for key in said["keys"]))

    def members(self, world: World) -> tuple[int, ...] | None:
        """Return the ranks of MPI's world that are in a world; None: it is without MPI."""
        return None

    def finish(self) -> bool:
        """Say that this rank's last step counts; return whether that is so for all.

        If not, a rank is to muster again.
        """
        self.tell("finished")
        return bool(self._wait("over", "muster")["say"] == "over")

    def ask(self, message: Message) -> list[bytes]:
        """Ask the store. Raises PeerDiedError if a member of the announced world is gone."""
        with self._asking:
            self._there().send(message)
            said = self._wait("values", "lost")
        if said["say"] == "lost":
            raise PeerDiedError("a rank has died, or has given up, while the ranks met")
        return unpacked(said["values"])

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _there(self) -> Channel:
        if self._channel is None:
            raise ConnectionError("there is no connection to the coordinator")
        return self._channel

    def _wait(self, *wanted: str) -> Message:
        """Wait for an answer. What is none, of an earlier question, is dropped."""
        while True:
            while self._answers:
                message = self._answers.pop(0)
                if message.get("say") in wanted:
                    return message
            self.look()
            if not self._answers:
                self._there().wait()


@contextmanager
def watched(link: Link, give_up: Callable[[str], None]) -> Iterator[None]:
    """Call ``give_up`` from another thread if a member of the announced world is gone.

    A member may die when it has exchanged its words. Then the others wait for it in the core, and
    ask the coordinator nothing.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_ASK_EVERY):
            try:
                link.ask({"say": "get", "keys": []})
            except PeerDiedError as error:
                if not over.is_set():
                    give_up(str(error))
                return
            except ConnectionError:
                return

    thread = threading.Thread(target=watch, name="paddlempi-meeting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class LinkStore(Store):
    """The store of an announced world. The coordinator has it, so it outlives every rank."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def get(self, keys: Sequence[str]) -> list[bytes]:
        return self._link.ask({"say": "get", "keys": list(keys)})

    def set(self, key: str, value: bytes) -> None:
        self._link.ask({"say": "set", "keys": [key], "values": packed([value])})

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        question = {"say": "swap", "keys": [key], "values": packed([old, new])}
        return bool(self._link.ask(question)[0])

    def delete(self, keys: Sequence[str]) -> None:
        self._link.ask({"say": "delete", "keys": list(keys)})
