"""Who is in the next world of an elastic job: the coordinator, without its connections.

It hears what the processes say and how they end, and says to each when the next world is, and which
rank it has there. It waits until every process that lives is out of the old world:

==============  ================================================================================
a process says  when
==============  ================================================================================
``ready``       it is out of its world, or has none, and waits for the next
``in``          it is in the world that was announced, and has the state of the training
``finished``    its last step counts; it waits until that is so for all
``raised``      an exception of the program's own ends it
``leave``       it leaves in order
``get``, ...    the store in which the ranks of the announced world meet (``store`` in ``link``)
==============  ================================================================================

============  ==================================================================================
it is told    what it does
============  ==================================================================================
``world``     it joins this world
``lost``      a member of the announced world is gone: it gives the meeting up and says ``ready``
``newcomer``  a process waits: all say ``ready`` after the step that they are in
``end``       the job is asked to end, after that step
``muster``    others are not finished: it says ``ready``
``over``      all are finished
``ended``     the training is over: a process that was not in it is not needed
``stop``      the job cannot go on; why
============  ==================================================================================

*Who has the state.* A process that was in the first world has it, as long as no step counts: all
begin alike. Others have it when they say ``in``. If nobody who lives has it, the job is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from .wire import Message, packed, unpacked

__all__ = ["Coordinator"]


_ENDED: Message = {"say": "ended"}


class _Is(Enum):
    """What a process does, as far as is known."""

    COMING = auto()  # it has not said anything: it imports, or prepares its objects
    READY = auto()
    WORKING = auto()  # in the world that was announced, or on its way into it, or out of it
    FINISHED = auto()
    ENDING = auto()  # it leaves, or has raised an exception


@dataclass
class _Process:
    name: str
    is_: _Is = _Is.COMING
    world: int = -1  # the last one that was announced to it
    rank: int = -1  # there
    came_in: bool = False  # into that one
    has_state: bool = False
    fixed: bool = False  # it can go on only with as many ranks as before


class Coordinator:
    """The members of an elastic job.

    Args:
        least: how many ranks the job needs.
        send: sends a message to the process of a key.
        say: writes a line about what has happened.
    """

    def __init__(
        self, least: int, send: Callable[[int, Message], None], say: Callable[[str], None]
    ) -> None:
        self.generation = -1
        self.expected = 0
        """How many processes will be started that have not been."""
        self.stopped = ""
        """Why the job cannot go on; "": it can."""
        self.over = False
        """Whether those that had the state have left in order."""
        self.asked = False
        """Whether the job was asked to end."""
        self._least, self._send, self._say = least, send, say
        self._processes: dict[int, _Process] = {}
        self._store: dict[str, bytes] = {}  # of the announced world
        self._size = 0  # of the announced world
        self._lost = False  # a member of it is gone, or has given it up
        self._trained = False  # some process has come in: not all are at the beginning any more
        self._told = False  # that there is a newcomer
        self._left = False  # who went last from the announced world has left in order
        self._events: list[str] = []  # since the last world that all came into
        self._since = 0.0  # when the first of them happened
        self._raised: tuple[int, Any] = (0, None)  # the last exception of the program's own

    # What happens

    def resume(self, generation: int, names: Mapping[int, str]) -> None:
        """Take a world over that another coordinator had announced.

        Each of its members says which was the last that it has heard of. They may differ by one.

        Args:
            names: of its members, by key, in the order of their ranks.
        """
        if generation <= self.generation:
            return
        if self.generation < 0:
            self._size, self._trained = len(names), True
            for rank, (key, name) in enumerate(names.items()):
                self._processes[key] = _Process(name, _Is.WORKING, rank=rank, has_state=True)
        for process in self._members(self.generation):
            process.world, process.came_in = generation, True
        self.generation = generation

    def keys(self) -> list[int]:
        """The processes that have not ended."""
        return list(self._processes)

    def started(self, key: int, name: str) -> None:
        """Take up a process that has been started."""
        self._processes[key] = _Process(name)

    def was_in(self, key: int) -> bool:
        """Whether a process has come into a world."""
        process = self._processes.get(key)
        return process is not None and process.has_state

    def leaves(self, key: int) -> bool:
        """Whether a process has said that it leaves, or has told of the exception that ends it."""
        process = self._processes.get(key)
        return process is not None and process.is_ is _Is.ENDING

    @property
    def calm(self) -> bool:
        """Whether all members of the world have come in, and nothing has happened since."""
        return self._trained and not self._events and all(p.came_in for p in self._of_world())

    def ended(self, key: int, why: str) -> bool:
        """Take up that a process has ended.

        Args:
            why: a sentence that says how.

        Returns:
            Whether the line about the next world will have the sentence.
        """
        process = self._processes.pop(key, None)
        if process is None:
            return False
        told = process.is_ is _Is.ENDING
        if not told and (process.world >= 0 or self.generation < 0):
            self._happened(why)
            self._gone(process)
            self._left, told = False, True
        self.decide()
        return told

    def end_job(self) -> None:
        """Ask all to end after the step that they are in."""
        self.asked = True
        for key in self._processes:
            self._send(key, {"say": "end"})

    def stop(self, why: str) -> None:
        """Tell all that the job cannot go on."""
        if not self.stopped and not self.over:
            self.stopped = why
            self._say("; ".join([*self._events, why]))
            for key in self._processes:
                self._send(key, {"say": "stop", "why": why})

    def take(self, key: int, message: Message) -> None:
        """Take up what a process says. Raises ValueError, KeyError, TypeError at nonsense."""
        process = self._processes.get(key)
        if process is None:
            return
        what = message["say"]
        if what in ("get", "set", "swap", "delete"):
            self._send(key, self._of_store(process, what, message))
            return
        if self.stopped:
            self._send(key, {"say": "stop", "why": self.stopped} if not self.over else _ENDED)
            return
        if what == "ready":
            if process.world == self.generation and not process.came_in:
                self._lost = True  # the others would wait for it in the meeting
            process.is_, process.fixed = _Is.READY, bool(message.get("fixed"))
            self._least = max(self._least, int(message.get("least", 0)))
        elif what == "in":
            self._came_in(process, int(message["generation"]), int(message["step"]))
        elif what == "finished":
            process.is_ = _Is.FINISHED
        elif what == "leave":
            if message.get("preempted") and not self.asked:
                self._happened(f"{process.name} was asked to end, and has left")
            process.is_, self._left = _Is.ENDING, True
        elif what == "raised":
            process.is_ = _Is.ENDING
            if process.world >= 0 and not self.asked:
                self._has_raised(process, message)
                self._gone(process)
        else:
            raise ValueError(f"{what!r} is no word of a rank")
        self.decide()

    def _happened(self, what: str) -> None:
        if not self._events:
            self._since = time.monotonic()
        self._events.append(what)

    def _gone(self, process: _Process) -> None:
        if process.world == self.generation:
            self._lost = True

    def _has_raised(self, process: _Process, message: Message) -> None:
        step, kind, text = int(message["step"]), message["kind"], message["text"]
        where = f"in step {step}" if step >= 0 else "outside of a step"
        said = f"{process.name} has raised {str(kind)[:80]} {where}: {str(text)[:300]}"
        self._happened(said)
        if (step, kind) == self._raised:
            self.stop("the same exception has come again")
        self._raised = step, kind

    def _came_in(self, process: _Process, generation: int, step: int) -> None:
        if generation != process.world:
            return
        process.came_in = process.has_state = self._trained = True
        members = self._of_world()
        if generation != self.generation or not all(member.came_in for member in members):
            return
        if self._events:
            took = time.monotonic() - self._since
            ranks = "1 rank goes" if len(members) == 1 else f"{len(members)} ranks go"
            said = "; ".join(self._events)
            self._say(f"{said}: {ranks} on with step {step} after {took:.2f} s")
        self._events = []

    # What follows

    def _of_world(self) -> list[_Process]:
        """The members of the announced world."""
        return self._members(self.generation) if self.generation >= 0 else []

    def _members(self, generation: int) -> list[_Process]:
        """The processes of a world that live and do not leave, by rank."""
        found = (p for p in self._processes.values() if p.world == generation)
        return sorted((p for p in found if p.is_ is not _Is.ENDING), key=lambda p: p.rank)

    def decide(self) -> None:
        """Tell the processes what follows from what is known. It may be called at any time."""
        if self.stopped or self.over:
            return
        members = self._of_world()
        new = [p for p in self._processes.values() if p.is_ is _Is.READY and p not in members]
        coming = any(p.is_ is _Is.COMING for p in self._processes.values()) or self.expected > 0
        if self._trained and not self._somebody_has_state():
            if self._left:
                self._end_quietly()
            else:
                self.stop("no process that lives has the state of the training")
            return
        busy = any(p.is_ is _Is.WORKING for p in members)
        ready = [p for p in members if p.is_ is _Is.READY]
        finished = [p for p in members if p.is_ is _Is.FINISHED]
        if finished and (ready or self._lost or not busy):
            for process in finished:
                process.is_ = _Is.WORKING
            word = "muster" if ready or self._lost else "over"
            self._send_all(finished, {"say": word})
            return
        if busy or finished:
            if new and not ready and not self._told:
                self._told = True
                self._send_all(members, {"say": "newcomer"})
            return
        if self.generation < 0 and coming:
            return
        ranks = ready + new
        if not ranks:
            return
        needed = max(self._least, self._size if any(p.fixed for p in ranks) else 0)
        if len(ranks) < needed:
            if not coming:
                self.stop(f"{len(ranks)} rank(s) live, and the job needs {needed}")
            return
        self._announce(ranks, len(new))

    def _end_quietly(self) -> None:
        """Send the processes away that have not come in: the training is over."""
        self.over, self.stopped = True, "the training is over"
        for key in self._processes:
            self._send(key, _ENDED)

    def _somebody_has_state(self) -> bool:
        return any(p.has_state and p.is_ is not _Is.ENDING for p in self._processes.values())

    def _announce(self, ranks: Sequence[_Process], new: int) -> None:
        if self.generation >= 0 and new:
            self._happened("1 process has come" if new == 1 else f"{new} processes have come")
        self.generation += 1
        self._store, self._size = {}, len(ranks)
        self._lost = self._told = self._left = False
        keys = {id(process): key for key, process in self._processes.items()}
        said: Message = {
            "say": "world",
            "generation": self.generation,
            "size": len(ranks),
            "least": self._least,
            "keys": [keys[id(process)] for process in ranks],
        }
        for rank, process in enumerate(ranks):
            process.is_, process.world, process.rank = _Is.WORKING, self.generation, rank
            process.came_in = False
            process.has_state |= not self._trained
            self._send(keys[id(process)], {**said, "rank": rank})

    def _send_all(self, processes: Sequence[_Process], message: Message) -> None:
        for key, process in list(self._processes.items()):
            if any(process is one for one in processes):
                self._send(key, message)

    def _of_store(self, process: _Process, what: str, message: Message) -> Message:
        if self._lost or self.stopped or process.world != self.generation:
            return {"say": "lost"}
        keys, store = [str(key) for key in message["keys"]], self._store
        if what == "get":
            return {"say": "values", "values": packed([store.get(key, b"") for key in keys])}
        values = unpacked(message.get("values", []))
        done = True
        if what == "set":
            store[keys[0]] = values[0]
        elif what == "swap":
            done = store.get(keys[0], b"") == values[0]
            if done:
                store[keys[0]] = values[1]
        else:
            for key in keys:
                store.pop(key, None)
        return {"say": "values", "values": packed([b"1" if done else b""])}
