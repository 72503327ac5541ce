"""Messages within a node: the shorter ones mostly go without Go, among others that do not."""

from __future__ import annotations

import random
import threading
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from paddlempi import errors

# Of no bytes; at a line's end and past it; as long as a header; at the end of what lies in a ring,
# of a piece, of what goes to a receiver that does not wait, and to one that does; and past each.
LENGTHS = [0, 1, 8, 16, 24, 25, 64, 100, 1000, 4095, 4096, 5000, 16384, 16385, 65536, 65537]
LENGTHS += [262144, 262145, 300000, 524288, 524289, 1500000]
TAGS = 3


class Message(NamedTuple):
    tag: int
    content: bytes


def messages_of(choice: random.Random, count: int) -> list[Message]:
    """Messages that go from one rank to another, in this order; most are short."""
    made = []
    for _ in range(count):
        length = choice.choice(LENGTHS[:8] if choice.random() < 0.7 else LENGTHS)
        made.append(Message(choice.randrange(TAGS), choice.randbytes(length)))
    return made


def send_all(dist: ModuleType, choice: random.Random, messages: list[Message], to: int) -> None:
    works = []
    for tag, content in messages:
        tensor = np.frombuffer(bytearray(content), np.uint8)
        if len(content) > 65536 or choice.random() < 0.4:
            works.append(dist.isend(tensor, to, tag=tag))
        else:
            dist.send(tensor, to, tag=tag)
    for work in works:
        work.wait()


def receive_all(
    dist: ModuleType, choice: random.Random, messages: list[Message], source: int
) -> None:
    """Receive them by calls of all kinds. Each call gets the first message that it matches."""
    left, open_works = list(messages), []
    while left:
        tag = -1 if choice.random() < 0.2 else choice.choice(left).tag
        expected = next(one for one in left if tag in (-1, one.tag))
        if choice.random() < 0.1 and not open_works:
            found = dist.probe(source, tag=tag)
            assert found == (source, len(expected.content), expected.tag)
        left.remove(expected)  # the first one that is equal: nobody can tell them apart
        into = np.zeros(len(expected.content), np.uint8)
        if choice.random() < 0.3:
            start = None if choice.random() < 0.3 else source
            open_works.append((dist.irecv(into, start, tag=tag), into, expected))
        else:
            start = None if choice.random() < 0.2 else source
            assert dist.recv(into, start, tag=tag) == source
            assert into.tobytes() == expected.content
        while open_works and (choice.random() < 0.3 or not left):
            work, taken, of = open_works.pop(0)
            work.wait()
            assert taken.tobytes() == of.content


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("seed", range(12))
def test_calls_of_all_kinds(dist: ModuleType, rank: int, seed: int) -> None:
    """As MPI has it: messages of one tag do not overtake each other, whatever calls take them."""
    choice = random.Random(seed)  # the same on both ranks
    for sender in (0, 1):
        messages = messages_of(choice, 200)
        own = random.Random(choice.random() + rank)
        if rank == sender:
            send_all(dist, own, messages, 1 - sender)
        elif rank == 1 - sender:
            receive_all(dist, own, messages, sender)


@pytest.mark.mpi(min=2)
def test_many_before_the_first_is_received(dist: ModuleType, rank: int) -> None:
    """More than a ring holds, and then an answer for each."""
    count = 5000
    if rank == 0:
        works = [dist.isend(np.array([i]), 1, tag=i % 2) for i in range(count)]
        for work in works:
            work.wait()
        for i in range(count):
            answer = np.zeros(1, int)
            dist.recv(answer, 1)
            assert answer[0] == i
    elif rank == 1:
        for tag in (1, 0):
            for i in range(tag, count, 2):
                got = np.zeros(1, int)
                dist.recv(got, 0, tag=tag)
                assert got[0] == i
        for i in range(count):
            dist.send(np.array([i]), 0)


@pytest.mark.mpi(min=2)
def test_a_receive_that_waits_is_first(dist: ModuleType, rank: int) -> None:
    if rank == 0:
        for i in range(50):
            dist.send(np.array([2 * i]), 1)
            dist.send(np.array([2 * i + 1]), 1)
            dist.recv(np.zeros(1, int), 1)
    elif rank == 1:
        for i in range(50):
            first, second = np.zeros(1, int), np.zeros(1, int)
            work = dist.irecv(first, 0)
            dist.recv(second, 0)
            work.wait()
            assert (first[0], second[0]) == (2 * i, 2 * i + 1)
            dist.send(first, 0)


@pytest.mark.mpi(min=2)
def test_threads_of_a_rank(dist: ModuleType, rank: int) -> None:
    """Both ranks send and receive in several threads, with short messages and longer ones."""
    if rank > 1:
        return
    wrong: list[Any] = []

    def talk(tag: int) -> None:
        length = [1, 4095, 20000, 400000][tag]
        for step in range(200):
            sent, taken = np.full(length, step % 251, np.uint8), np.zeros(length, np.uint8)
            if rank == 0:
                dist.send(sent, 1, tag=tag)
                dist.recv(taken, 1, tag=tag)
            else:
                dist.recv(taken, 0, tag=tag)
                dist.send(taken, 0, tag=tag)
            if (taken != sent).any():
                wrong.append((tag, step))

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.mpi(min=2)
def test_more_groups_than_go_without_go(dist: ModuleType, rank: int) -> None:
    """Every group carries its own messages, and none after its end."""
    groups = [dist.new_group([1, 0]) for _ in range(80)]
    if rank > 1:
        return
    for number, group in enumerate(groups):
        if rank == 0:
            dist.send(np.array([number]), 1, group=group)
    for number, group in reversed(list(enumerate(groups))):
        got = np.zeros(1, int)
        if rank == 1:
            assert dist.recv(got, 0, group=group) == 0
            assert got[0] == number
    for group in groups:
        dist.destroy_process_group(group)
    for group in groups:
        with pytest.raises(errors.GroupDestroyedError):
            dist.send(np.zeros(1), 1 - rank, group=group)
        with pytest.raises(errors.GroupDestroyedError):
            dist.recv(np.zeros(1), 1 - rank, group=group)


@pytest.mark.mpi(min=2)
def test_wrong_arguments(dist: ModuleType, rank: int, size: int) -> None:
    tensor = np.zeros(1)
    for peer, tag, named in [(size, 0, "dst"), (-1, 0, "dst"), (0, -2, "tag")]:
        with pytest.raises(ValueError, match=named):
            dist.send(tensor, peer, tag=tag)


@pytest.mark.mpi(min=2)
def test_of_another_length(dist: ModuleType, rank: int) -> None:
    """The message is lost, and the next one comes."""
    if rank == 0:
        for length in (8, 16, 24, 4095):
            dist.send(np.zeros(length, np.uint8), 1)
            dist.send(np.array([length]), 1)
    elif rank == 1:
        for length in (8, 16, 24, 4095):
            with pytest.raises(errors.TruncateError, match=f"{length} bytes"):
                dist.recv(np.zeros(length + 1, np.uint8), 0)
            got = np.zeros(1, int)
            dist.recv(got, 0)
            assert got[0] == length


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize(("count", "length"), [(300, 256 << 10), (1500, 64 << 10)])
def test_many_before_the_one_that_is_received(
    dist: ModuleType, rank: int, count: int, length: int
) -> None:
    """They are more than a rank keeps while nobody waits, and keep no other message from it."""
    if rank == 0:
        content = np.arange(length // 8)
        works = [dist.isend(content, 1, tag=1) for _ in range(count)]
        dist.send(np.array([7]), 1, tag=2)
        for work in works:
            work.wait()
    elif rank == 1:
        got, into = np.zeros(1, int), np.zeros(length // 8, int)
        dist.recv(got, 0, tag=2)
        assert got[0] == 7
        for _ in range(count):
            dist.recv(into, 0, tag=1)
        assert (into == np.arange(length // 8)).all()


@pytest.mark.mpi(min=2)
def test_what_comes_behind_many_messages(dist: ModuleType, rank: int) -> None:
    """More messages than a rank keeps, and then what this library sends itself, and a probe."""
    count, length = 1400, 64 << 10
    works, content = [], np.arange(length // 8)
    if rank == 0:
        works = [dist.isend(content, 1, tag=1) for _ in range(count)]
    group = dist.new_group(timeout=20)
    dist.monitored_barrier(timeout=20)
    if rank == 0:
        dist.send(np.array([7, 8, 9]), 1, tag=2)
        dist.send(np.array([7]), 1, group=group)
        for work in works:
            work.wait()
    elif rank == 1:
        got, into = np.zeros(1, int), np.zeros(length // 8, int)
        dist.recv(got, 0, group=group)
        assert got[0] == 7
        assert dist.probe(0, tag=2) == (0, 24, 2)
        dist.recv(np.zeros(3, int), 0, tag=2)
        for _ in range(count):
            dist.recv(into, 0, tag=1)
        assert (into == content).all()
    dist.destroy_process_group(group)
