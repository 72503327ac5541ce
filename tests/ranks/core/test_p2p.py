"""send, recv, isend, irecv, sendrecv, batch_isend_irecv, probe; tags and any source."""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import _native, errors
from tensors import Kind, every, noise


@pytest.mark.mpi(min=2)
def test_ring(dist: ModuleType, rank: int, size: int, kind: Kind) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype, layout in every(kind):
        sent = kind.make(dtype, layout).fill(noise(dtype, layout.size, rank))
        taken = kind.make(dtype, layout).fill(noise(dtype, layout.size))
        if rank == 0:
            dist.send(sent.given, after)
            assert dist.recv(taken.given, before) == before
        else:
            assert dist.recv(taken.given, before) == before
            dist.send(sent.given, after)
        assert taken.bits() == noise(dtype, layout.size, before).tobytes()


def test_sendrecv(dist: ModuleType, rank: int, size: int, kind: Kind) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    for dtype, layout in every(kind):
        sent = kind.make(dtype, layout).fill(noise(dtype, layout.size, rank))
        taken = kind.make(dtype, layout).fill(noise(dtype, layout.size))
        source = dist.sendrecv(sent.given, after, taken.given, before, send_tag=3, recv_tag=3)
        assert source == before
        assert taken.bits() == noise(dtype, layout.size, before).tobytes()


def test_isend_irecv(dist: ModuleType, rank: int, size: int, kind: Kind) -> None:
    for dtype, layout in every(kind):
        works, taken = [], []
        for other in range(size):
            into = kind.make(dtype, layout).fill(noise(dtype, layout.size))
            taken.append(into)
            works.append(dist.irecv(into.given, other))
        given = kind.make(dtype, layout).fill(noise(dtype, layout.size, rank))
        sends = [dist.isend(given.given, other) for other in range(size)]
        for work in sends + works:
            assert work.wait()
        for other in range(size):
            assert works[other].source_rank() == other
            assert taken[other].bits() == noise(dtype, layout.size, other).tobytes()


@pytest.mark.mpi(min=2)
def test_any_source(dist: ModuleType, rank: int, size: int) -> None:
    if rank:
        dist.send(np.array([rank]), 0, tag=9)
        return
    seen = set()
    for attempt in range(size - 1):
        tensor = np.zeros(1, int)
        if attempt % 2:
            work = dist.irecv(tensor, tag=9)
            work.wait()
            source = work.source_rank()
        else:
            source = dist.recv(tensor, tag=9)
        assert tensor[0] == source
        seen.add(source)
    assert seen == set(range(1, size))


@pytest.mark.mpi(min=2)
def test_tags_keep_messages_apart(dist: ModuleType, rank: int) -> None:
    if rank == 0:
        works = [dist.isend(np.array([tag]), 1, tag=tag) for tag in range(5)]
        for work in works:
            work.wait()
    elif rank == 1:
        for tag in (3, 0, 4, 2, 1):
            tensor = np.zeros(1, int)
            dist.recv(tensor, 0, tag=tag)
            assert tensor[0] == tag


@pytest.mark.mpi(min=2)
def test_the_greatest_tag(dist: ModuleType, rank: int) -> None:
    """Without MPI all of int32; an MPI says what it takes, which is at least 32767."""
    greatest, tensor = 2**31 - 1, np.zeros(1)
    if rank == 1:
        dist.send(np.ones(1), 0, tag=32767)
        try:
            dist.send(np.full(1, 2.0), 0, tag=greatest)
        except errors.ArgumentError as error:
            assert _native.control("info")["transport"] == "mpi", error
            assert f"tag is {greatest}; it must be from 0 to" in str(error)
            dist.send(np.full(1, 2.0), 0, tag=1)
    elif rank == 0:
        dist.recv(tensor, 1, tag=32767)
        assert tensor[0] == 1
        assert dist.recv(tensor, 1, tag=-1) == 1
        assert tensor[0] == 2


@pytest.mark.mpi(min=2)
def test_order_of_one_tag(dist: ModuleType, rank: int) -> None:
    if rank == 0:
        for number in range(200):
            dist.send(np.array([number]), 1)
    elif rank == 1:
        for number in range(200):
            tensor = np.zeros(1, int)
            dist.recv(tensor, 0)
            assert tensor[0] == number


@pytest.mark.mpi(min=2)
def test_probe(dist: ModuleType, rank: int, size: int) -> None:
    last = size - 1
    if rank == 0:
        found = dist.probe(last, tag=4)
        assert found == (last, 24, 4)
        assert found.nbytes == 24
        assert dist.probe(tag=4).source == last
        assert dist.probe(tag=-1).tag == 4
        tensor = np.zeros(3)
        assert dist.recv(tensor, found.source, tag=found.tag) == last
        assert (tensor == 7).all()
    elif rank == last:
        dist.send(np.full(3, 7.0), 0, tag=4)


def test_batch(dist: ModuleType, rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    given, taken = np.full(1000, rank), np.zeros(1000, int)
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, given, after), dist.P2POp(dist.irecv, taken, before)]
    )
    for work in works:
        work.wait()
    assert (taken == before).all()


@pytest.mark.mpi(min=2)
def test_ranks_of_a_group(dist: ModuleType, rank: int, size: int, reversed_group: Any) -> None:
    # Group rank 0 is the last rank of the world.
    if rank == size - 1:
        dist.send(np.array([5]), 0, reversed_group)
        dist.send(np.array([6]), group=reversed_group, group_dst=size - 1)
    elif rank == 0:
        tensor = np.zeros(1, int)
        assert dist.recv(tensor, size - 1, reversed_group) == size - 1
        assert tensor[0] == 5
        work = dist.irecv(tensor, group=reversed_group)
        work.wait()
        assert work.source_rank() == size - 1
        assert tensor[0] == 6


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("room", [3, 5])
def test_a_message_of_another_length(dist: ModuleType, rank: int, room: int) -> None:
    if rank == 0:
        dist.send(np.zeros(4), 1)
        dist.send(np.full(4, 2.0), 1)
    elif rank == 1:
        with pytest.raises(dist.errors.TruncateError):
            dist.recv(np.zeros(room), 0)
        tensor = np.zeros(4)
        dist.recv(tensor, 0)
        assert (tensor == 2).all()


@pytest.mark.mpi(min=2)
def test_point_to_point_passes_by_collectives(dist: ModuleType, rank: int) -> None:
    tensor, token = np.ones(4), np.zeros(1)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        dist.recv(token, 1)  # rank 1 sends this before it joins the collective
        work.wait()
    else:
        if rank == 1:
            dist.send(token, 0)
        dist.all_reduce(tensor)
    assert tensor[0] == dist.get_world_size()


@pytest.mark.mpi(min=2)
def test_big_message(dist: ModuleType, rank: int) -> None:
    wanted = noise("float64", (1 << 21) + 5, "big")
    if rank == 0:
        dist.send(wanted, 1)
    elif rank == 1:
        taken = np.zeros_like(wanted)
        dist.recv(taken, 0)
        assert taken.tobytes() == wanted.tobytes()


@pytest.mark.mpi(min=2)
def test_threads(dist: ModuleType, rank: int) -> None:
    """Every thread uses a tag of its own and gets only the messages with this tag."""
    wrong: list[object] = []

    def talk(tag: int) -> None:
        for step in range(50):
            if rank == 0:
                dist.send(np.array([tag, step]), 1, tag=tag)
            elif rank == 1:
                tensor = np.zeros(2, int)
                dist.recv(tensor, 0, tag=tag)
                if tensor.tolist() != [tag, step]:
                    wrong.append((tag, step, tensor))

    threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
