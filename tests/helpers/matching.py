"""Random programs of messages in several threads, and what MPI's rules of matching allow of them.

A program is made from a seed, the same on all ranks. Its receives never take each other's
messages, whatever the order, so that it ends: the messages to a rank are divided into classes, by
source or tag or both, and there are as many receives of a class as messages. Several threads may
share a class. Then its messages have one length, because nobody knows which of them comes.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

ANY = -1
# Of no bytes; as long as a header, which a probe has to read; at the end of what goes through a
# ring unasked, and of what goes to a receiver that waits; and past each.
LENGTHS = [8, 16, 16, 16, 24, 32, 100, 0, 3, 4096, 65536, 65537, 200_000, 1 << 20]
WEIGHTS = [6, 8, 8, 8, 6, 4, 4, 2, 2, 4, 1, 1, 0.4, 0.2]
NAMED = 8  # bytes of a message that say which it is
STAMPED = 16  # and when it was sent
SMALL = 1000  # so many bytes may be sent in a call that waits


@dataclass
class Message:
    number: int  # among those to its receiver
    source: int
    sender: int  # the thread
    dest: int
    tag: int
    length: int
    place: int = 0  # among those that its thread sends


@dataclass(frozen=True)
class Class:
    """Messages to a rank, and the receives that take them."""

    source: int
    tag: int
    length: int  # of all messages; -1: they differ, and one thread receives them

    def has(self, message: Message) -> bool:
        return self.source in (ANY, message.source) and self.tag in (ANY, message.tag)


@dataclass
class Program:
    sends: dict[tuple[int, int], list[Message]]  # by rank and thread, in their order
    receives: dict[tuple[int, int], list[Class]]  # by rank and thread
    messages: dict[int, list[Message]]  # by receiver

    def order(self, dest: int, of: Class) -> list[Message] | None:
        """In which order one thread receives a class; None: that is not determined."""
        those = [m for m in self.messages[dest] if of.has(m)]
        if of.source == ANY or len({m.sender for m in those}) > 1:
            return None
        return [m for m in self.sends[of.source, those[0].sender] if m.dest == dest and of.has(m)]


def program_of(seed: int, size: int) -> Program:
    choice = random.Random(seed)
    made = Program({}, {}, {})
    senders, receivers = choice.choice([(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)])
    lists: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for dest in range(size):
        made.messages[dest] = []
        programs: list[list[Class]] = [[] for _ in range(receivers)]
        by_source, by_tag = choice.choice([(1, 1), (1, 1), (1, 0), (0, 1), (0, 0)])
        for source in range(size) if by_source else [ANY]:
            for tag in range(choice.randint(1, 3)) if by_tag else [ANY]:
                count = choice.randint(1, 30)
                threads = choice.sample(range(receivers), choice.randint(1, receivers))
                length = choice.choices(LENGTHS, WEIGHTS)[0]
                if len(threads) == 1 and choice.random() < 0.7:
                    length = -1
                of = Class(source, tag, length)
                for _ in range(count):
                    programs[choice.choice(threads)].append(of)
                    message = Message(
                        number=len(made.messages[dest]),
                        source=choice.randrange(size) if source == ANY else source,
                        sender=choice.randrange(senders),
                        dest=dest,
                        tag=choice.randrange(3) if tag == ANY else tag,
                        length=choice.choices(LENGTHS, WEIGHTS)[0] if length < 0 else length,
                    )
                    made.messages[dest].append(message)
                    lists[message.source, message.sender].append(message)
        for thread, program in enumerate(programs):
            choice.shuffle(program)
            made.receives[dest, thread] = program
    for key in [(rank, thread) for rank in range(size) for thread in range(senders)]:
        choice.shuffle(lists[key])
        made.sends[key] = lists[key]
        for place, message in enumerate(lists[key]):
            message.place = place
    return made


@dataclass
class Receive:
    """What became of a receive. The times are those of one clock for all ranks."""

    of: Class  # what it asked for
    called: int
    posted: int  # by then it was posted
    over: int = 0
    source: int = ANY
    content: bytes = field(default=b"", repr=False)
    got: Message | None = None  # None: too short to tell
    sent: int = 0  # when; 0: it does not say


def content_of(message: Message, now: int) -> np.ndarray[Any, Any]:
    content = np.full(message.length, message.number % 251, np.uint8)
    words = np.array([message.number, now]).view(np.uint8)
    if message.length >= NAMED:
        stamp = words[: STAMPED if message.length >= STAMPED else NAMED]
        content[: len(stamp)] = stamp
    return content


class Run:
    """A rank's part of a program."""

    def __init__(self, dist: ModuleType, group: Any, program: Program, rank: int, seed: int):
        self.dist, self.group, self.program, self.rank = dist, group, program, rank
        self.seed = seed
        self.receives: list[Receive] = []
        self.wrong: list[str] = []

    def carry_out(self) -> list[str]:
        """Carry it out; return what was wrong."""
        programs: list[tuple[str, Any, dict[tuple[int, int], Any]]] = [
            ("send", self.send_all, self.program.sends),
            ("receive", self.receive_all, self.program.receives),
        ]
        calls = [
            threading.Thread(target=self.guarded, args=(call, items, f"{self.seed} {kind} {key}"))
            for kind, call, program in programs
            for key, items in program.items()
            if key[0] == self.rank
        ]
        for thread in calls:
            thread.start()
        for thread in calls:
            thread.join()
        return self.wrong or judge(self.program.messages[self.rank], self.receives)

    def guarded(self, call: Any, items: Any, seed: str) -> None:
        try:
            call(items, random.Random(seed))
        except Exception as error:  # whatever it is
            self.wrong.append(repr(error))

    def send_all(self, messages: list[Message], choice: random.Random) -> None:
        works = []
        for message in messages:
            content = content_of(message, time.monotonic_ns())
            if message.length > SMALL or choice.random() < 0.4:
                works.append(self.dist.isend(content, message.dest, self.group, message.tag))
            else:
                self.dist.send(content, message.dest, self.group, message.tag)
        for work in works:
            work.wait()

    def receive_all(self, classes: list[Class], choice: random.Random) -> None:
        orders = {of: self.program.order(self.rank, of) for of in set(classes)}
        counts: Counter[Class] = Counter()
        under_way: list[tuple[Any, Any, Receive]] = []
        for of in classes:
            order, length = orders[of], of.length
            expected = order[counts[of]] if order and length < 0 else None
            counts[of] += 1
            if choice.random() < 0.3 or (length < 0 and expected is None):
                found = self.dist.probe(self.source(of), self.group, of.tag)
                if of.length < 0:  # nobody else takes it
                    of, length = Class(found.source, found.tag, -1), found.nbytes
                if expected and found != (expected.source, expected.length, expected.tag):
                    self.wrong.append(f"probe found {found}, not {expected}")
                elif of.length >= 0 and found.nbytes != of.length:
                    self.wrong.append(f"probe found {found}, not {of}")
            elif expected:
                length = expected.length
            into, called = np.empty(length, np.uint8), time.monotonic_ns()
            if choice.random() < 0.4:
                work = self.dist.irecv(into, self.source(of), self.group, of.tag)
                under_way.append((work, into, Receive(of, called, time.monotonic_ns())))
            else:
                source = self.dist.recv(into, self.source(of), self.group, of.tag)
                now = time.monotonic_ns()
                self.note(Receive(of, called, now, now, source), into)
            while under_way and choice.random() < 0.3:
                self.wait(*under_way.pop(choice.randrange(len(under_way))))
        choice.shuffle(under_way)
        for one in under_way:
            self.wait(*one)

    @staticmethod
    def source(of: Class) -> int | None:
        return None if of.source == ANY else of.source

    def wait(self, work: Any, into: Any, receive: Receive) -> None:
        work.wait()
        receive.over, receive.source = time.monotonic_ns(), work.source_rank()
        self.note(receive, into)

    def note(self, receive: Receive, into: Any) -> None:
        receive.content = into.tobytes()
        self.receives.append(receive)


def judge(messages: list[Message], receives: list[Receive]) -> list[str]:
    """What of the receives of a rank is against the rules."""
    wrong = []
    nameless: Counter[tuple[int, int, bytes]] = Counter(
        (m.source, m.length, content_of(m, 0).tobytes()) for m in messages if m.length < NAMED
    )
    taken = set()
    for one in receives:
        length = len(one.content)
        if length < NAMED:
            nameless[one.source, length, one.content] -= 1
            continue
        words = np.frombuffer(one.content[: STAMPED if length >= STAMPED else NAMED], np.int64)
        number = int(words[0])
        if not 0 <= number < len(messages) or number in taken:
            wrong.append(f"{one} has message {number}, which is none, or was received before")
            continue
        taken.add(number)
        one.got = message = messages[number]
        one.sent = int(words[1]) if length >= STAMPED else 0
        if content_of(message, one.sent).tobytes() != one.content:
            wrong.append(f"{one} has other bytes than {message}")
        if one.source != message.source or not one.of.has(message):
            wrong.append(f"{one} got {message} from {one.source}")
    wrong += [f"{key[:2]}: {n} too few or many" for key, n in nameless.items() if n]
    named = [one for one in receives if one.got]
    if len(named) != sum(m.length >= NAMED for m in messages):
        wrong.append(f"{len(named)} receives of {len(messages)} messages")
    for first in named:
        for second in named:
            if first.posted < second.called:
                wrong += overtaken(first, second)
    return wrong


def overtaken(first: Receive, second: Receive) -> list[str]:
    """What is wrong with two receives of which the first was posted before the second."""
    one, other = first.got, second.got
    assert one
    assert other
    if not first.of.has(other):
        return []
    if (one.source, one.sender) == (other.source, other.sender) and other.place < one.place:
        return [f"{first} has {one}, and {second} has {other}, which was sent before it"]
    if first.sent > second.over:
        return [f"{first} has {one}, sent when {second} had {other}, which it had to take"]
    return []
