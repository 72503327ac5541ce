"""Messages of more than 16 MiB, which may go in fragments, and messages of several tensors."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from paddlempi.errors import ArgumentError, TimeoutError, TruncateError
from ranks_tools import impatient_group, over_nodes

COUNT = 5 * 2**20  # 20 MiB of float32
KINDS = ["contiguous", "columns", "transposed", "list"]
VALUES = np.arange(COUNT, dtype=np.float32)


class Room:
    """The tensors of a message of 20 MiB."""

    def __init__(self, kind: str) -> None:
        rows = COUNT // 1024
        self.whole = np.zeros(2 * COUNT, np.float32)
        if kind == "contiguous":
            self.given = self.whole[:COUNT]
        elif kind == "columns":
            self.given = self.whole.reshape(rows, 2048)[:, ::2]
        elif kind == "transposed":
            self.given = self.whole[:COUNT].reshape(1024, rows).T
        else:
            # The first tensor ends within an element of the others.
            ends = self.whole[1:COUNT].reshape(-1)[::-1]
            self.given = [
                self.whole[COUNT:].view(np.int8)[:3],
                self.whole[-1:].view(np.int8)[:1],
                ends,
            ]

    def fill(self, offset: float = 0) -> Room:
        values = VALUES + np.float32(offset)
        if isinstance(self.given, list):
            first = values[:1].view(np.int8)
            self.given[0][...], self.given[1][...], self.given[2][...] = (
                first[:3],
                first[3:],
                values[1:],
            )
        else:
            self.given[...] = values.reshape(self.given.shape)
        return self

    def has(self, offset: float = 0) -> bool:
        values = VALUES + np.float32(offset)
        if not isinstance(self.given, list):
            return bool((self.given.reshape(-1) == values).all())
        first = np.concatenate(self.given[:2]).view(np.float32)
        return bool(first[0] == values[0] and (self.given[2] == values[1:]).all())


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("into", KINDS)
@pytest.mark.parametrize("of", KINDS)
def test_from_layout_to_layout(dist: ModuleType, rank: int, of: str, into: str) -> None:
    if rank == 0:
        dist.send(Room(of).fill().given, 1, tag=3)
    elif rank == 1:
        room = Room(into)
        if into == "columns":
            assert dist.probe(tag=3) == (0, 4 * COUNT, 3)
        assert dist.recv(room.given, None if of == "columns" else 0, tag=3) == 0
        assert room.has()
        if into == "columns":
            assert (room.whole[1::2] == 0).all(), "written to between the elements"


def test_ring(dist: ModuleType, rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    rooms = [Room(kind) for kind in KINDS]
    works = [dist.irecv(room.given, before, tag=tag) for tag, room in enumerate(rooms)]
    sent = [Room(kind).fill(rank) for kind in reversed(KINDS)]
    works += [dist.isend(room.given, after, tag=tag) for tag, room in enumerate(sent)]
    for work in works:
        assert work.wait()
    assert all(room.has(before) for room in rooms)


def test_sendrecv(dist: ModuleType, rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    room = Room("columns").fill(rank)
    assert dist.sendrecv(room.given, after, room.given, before) == before
    assert room.has(before)
    between = room.whole.reshape(-1, 2048)[:, 1::2]  # what lies between the elements of the other
    dist.sendrecv(room.given, after, between, before)
    assert (between.reshape(-1) == VALUES + (rank - 2) % size).all()
    assert room.has(before)


@pytest.mark.mpi(min=2)
def test_another_length(dist: ModuleType, rank: int) -> None:
    sent = [Room("columns").fill().given, VALUES, VALUES, np.zeros(100), np.zeros(2)]
    taken = [np.zeros(COUNT - 1, np.float32), np.zeros(9), np.zeros(2), *(Room("list").given,) * 2]
    sent += [VALUES, VALUES, VALUES, VALUES, VALUES[:3], VALUES[:3]]
    taken += [np.zeros(1), np.zeros(0), np.zeros(15, np.uint8), np.zeros(6, np.int16)[::2]]
    taken += [np.zeros(1), np.zeros(0)]
    sent += [Room("list").fill().given, Room("columns").fill().given]
    taken += [np.zeros(8, np.uint8), np.zeros(0)]
    for give, take in zip(sent, taken, strict=True):
        if rank == 0:
            dist.send(give, 1)
        elif rank == 1:
            with pytest.raises(TruncateError) as raised:
                dist.recv(take, 0)
            length = 4 * COUNT if isinstance(give, list) else give.nbytes
            if not over_nodes():  # not every MPI tells the length
                assert f"{length} bytes" in str(raised.value)
    dist.barrier()


@pytest.mark.mpi(min=2)
def test_probe_keeps_the_order(dist: ModuleType, rank: int) -> None:
    """A probe tells the length of a long message, and takes nothing out of the order."""
    if rank == 0:
        sent = [(np.full(3, 5.0), 1), (VALUES, 2), (np.full(2, 7.0), 3), (np.full(2, 8.0), 2)]
        for work in [dist.isend(tensor, 1, tag=tag) for tensor, tag in sent]:
            work.wait()
    elif rank == 1:
        for _ in range(2):
            assert dist.probe(0, tag=2) == (0, 4 * COUNT, 2)
        first, room, two = np.zeros(3), Room("columns"), np.zeros(2)
        assert dist.probe(0, tag=-1) == (0, 24, 1)
        dist.recv(first, 0, tag=-1)
        assert (first == 5).all()
        assert dist.recv(room.given, tag=-1) == 0
        assert room.has()
        assert dist.probe(0, tag=2) == (0, 16, 2)
        dist.recv(two, 0, tag=2)
        assert (two == 8).all()
        dist.recv(two, 0, tag=3)
        assert (two == 7).all()


@pytest.mark.mpi(min=2)
def test_several_tensors(dist: ModuleType, rank: int) -> None:
    """The bytes of a list are one message: neither the number of tensors nor dtypes must agree."""
    bytes_of = np.arange(40, dtype=np.uint8)
    if rank == 0:
        dist.send([bytes_of[:8], bytes_of[8:8], bytes_of[8:]], 1)
        dist.send(bytes_of, 1)
    elif rank == 1:
        assert dist.probe(0).nbytes == 40
        taken = [np.zeros((2, 4), np.int16).T, np.zeros(6, np.float64)[::2]]
        dist.recv(taken, 0)
        assert b"".join(t.tobytes() for t in taken) == bytes_of.tobytes()
        taken = (np.zeros(1, np.float64), np.zeros(8, np.float32))
        work = dist.irecv(taken, 0)
        assert work.wait()
        assert b"".join(t.tobytes() for t in taken) == bytes_of.tobytes()
    with pytest.raises(ArgumentError, match="one tensor, or a list"):
        dist.send([], 0)


@pytest.mark.mpi(min=2)
def test_a_receive_that_is_given_up(dist: ModuleType, rank: int) -> None:
    """The next receive takes the message then."""
    room = Room("columns")
    group = impatient_group(0.3)
    if rank == 1:
        with pytest.raises(TimeoutError):
            dist.recv(room.given, 0, group)
    dist.barrier()
    if rank == 0:
        dist.send(Room("list").fill().given, 1)
    elif rank == 1:
        dist.recv(room.given, 0)
        assert room.has()
    dist.barrier()
    dist.destroy_process_group(group)


@pytest.mark.mpi(min=2)
def test_no_bytes_are_a_mark(dist: ModuleType, rank: int) -> None:
    """A message of 16 bytes is 16 bytes, whatever they are."""
    words = np.array([0x9D3C51E70B86F24D, (20 << 20) << 16 | 5], np.uint64)
    if rank == 0:
        dist.send(words, 1)
        dist.send(VALUES, 1)
        dist.send(words, 1)
    elif rank == 1:
        taken, room = np.zeros(2, np.uint64), Room("columns")
        assert dist.probe(0) == (0, 16, 0)
        dist.recv(taken, 0)
        assert (taken == words).all()
        assert dist.probe(0) == (0, 4 * COUNT, 0)
        dist.recv(room.given, 0)
        assert room.has()
        dist.recv(taken)
        assert (taken == words).all()


@pytest.mark.mpi(min=2)
def test_many_short_messages_around_long_ones(dist: ModuleType, rank: int) -> None:
    """Probes and receives of any source and any tag see them in the order of each sender."""
    tags = [0, 5, 32767]
    if rank != 0:
        works = []
        for i in range(24):
            tag = tags[i % 3]
            works.append(dist.isend(np.full(3, i), 0, tag=tag))
            if i % 8 == 3:
                works.append(dist.isend([VALUES[:7], VALUES[7:]], 0, tag=tag))
        for work in works:
            work.wait()
    else:
        size = dist.get_world_size()
        seen = [0] * size
        for _ in range(24 * (size - 1)):
            source, nbytes, tag = dist.probe(tag=-1)
            assert (nbytes, tag) == (24, tags[seen[source] % 3])
            small = np.zeros(3, np.int64)
            assert dist.recv(small, source, tag=-1) == source
            assert (small == seen[source]).all()
            if seen[source] % 8 == 3:
                assert dist.probe(source, tag=tag) == (source, 4 * COUNT, tag)
                room = Room("columns")
                assert dist.recv(room.given, source, tag=-1) == source
                assert room.has()
            seen[source] += 1
    dist.barrier()
