"""Messages from and to device memory: order, late producers, tags, lengths."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import device
import numpy as np
import pytest
from device import DeviceTensor
from kinds import side_stream
from test_order import COUNT, has, held, ones

pytestmark = pytest.mark.mpi(min=2)


@pytest.mark.parametrize("to", ["device", "host"])
@pytest.mark.parametrize("of", ["device", "host"])
@pytest.mark.parametrize("count", [0, 1, 5000])
def test_from_memory_to_memory(dist: ModuleType, rank: int, of: str, to: str, count: int) -> None:
    values = np.arange(count, dtype=np.float32)
    if rank == 0:
        dist.send(DeviceTensor(values, stream=side_stream()) if of == "device" else values, 1)
    elif rank == 1:
        taken = np.full(count, -1, np.float32)
        if to == "host":
            dist.recv(taken, 0)
        else:
            room = DeviceTensor(taken, stream=side_stream())
            assert dist.recv(room, 0) == 0
            taken = room.numpy()
        np.testing.assert_array_equal(taken, values)


def test_order_of_one_tag(dist: ModuleType, rank: int) -> None:
    """Messages arrive in the order of the sends, even if their values are late."""
    if rank == 0:
        stream = device.new_stream()
        with device.hold(stream):
            late = [ones(value, stream=stream) for value in (0, 1)]
            works = [dist.isend(tensor, 1) for tensor in late]
            host = np.full(COUNT, 2, np.float32)
            works.append(dist.isend(host, 1))
            works.append(dist.isend(ones(3), 1))  # on a stream that is not held
            other = np.full(COUNT, 9, np.float32)
            works.append(dist.isend(other, 1, tag=5))
            assert not works[0].is_completed()
        for work in works:
            assert work.wait()
    elif rank == 1:
        taken = np.zeros(COUNT, np.float32)
        dist.recv(taken, 0, tag=5)
        assert (taken == 9).all()
        for value in range(4):
            if value % 2:
                dist.recv(taken, 0)
                assert (taken == value).all()
            else:
                room = ones(-1)
                dist.recv(room, 0)
                has(room, value)


def test_order_of_receives(dist: ModuleType, rank: int) -> None:
    """A receive whose tensor is still in use comes before receives that were posted later."""
    if rank == 0:
        for value in range(3):
            dist.send(np.full(COUNT, value, np.float32), 1)
    elif rank == 1:
        stream = device.new_stream()
        with held(stream, 0.05):
            rooms: list[Any] = [ones(-1, stream=stream), ones(-1, stream=stream)]
            rooms.insert(1, np.full(COUNT, -1, np.float32))
            works = [dist.irecv(room, 0) for room in rooms]
            for work in works:
                work.wait()
        for value, room in enumerate(rooms):
            values = room if value == 1 else room.numpy()
            assert (values == value).all()


def test_late_producers(dist: ModuleType, rank: int) -> None:
    stream = side_stream()
    if rank == 0:
        tensor = ones(-1)
        tensor.numpy()
        with held(stream, 0.04):
            tensor.fill_from(np.full(COUNT, 5, np.float32))
            dist.send(tensor, 1)
            tensor.fill_from(np.full(COUNT, 6, np.float32))  # send has returned, so this is allowed
        dist.isend(ones(7), 1)  # the caller drops it
        ones(-5)
    elif rank == 1:
        room = ones(-1)
        dist.recv(room, 0)
        has(room, 5)
        dist.recv(room, 0)
        has(room, 7)
    dist.barrier()


def test_any_source_and_probe(dist: ModuleType, rank: int, size: int) -> None:
    if rank:
        dist.send(ones(rank), 0, tag=3)
    else:
        found = dist.probe(tag=3)
        assert found.nbytes == 4 * COUNT
        seen = set()
        for _ in range(size - 1):
            room = ones(-1)
            source = dist.recv(room, tag=3)
            has(room, source)
            seen.add(source)
        assert seen == set(range(1, size))
    dist.barrier()


@pytest.mark.parametrize("room", [3, 5])
def test_a_message_of_another_length(dist: ModuleType, rank: int, room: int) -> None:
    if rank == 0:
        dist.send(ones(1, 4), 1)
        dist.send(ones(2, 4), 1)
    elif rank == 1:
        with pytest.raises(dist.errors.TruncateError):
            dist.recv(ones(0, room), 0)
        tensor = ones(0, 4)
        dist.recv(tensor, 0)
        has(tensor, 2)


def test_sendrecv_in_a_ring(dist: ModuleType, rank: int, size: int) -> None:
    """First one side is on the device, then the other, then both sides are one tensor."""
    after, before = (rank + 1) % size, (rank - 1) % size
    host = np.full(COUNT, -1, np.float32)
    assert dist.sendrecv(ones(rank), after, host, before) == before
    assert (host == before).all()
    room = ones(-1)
    assert dist.sendrecv(np.full(COUNT, rank, np.float32), after, room, before) == before
    has(room, before)
    assert dist.sendrecv(room, after, room, before) == before
    has(room, (before - 1) % size)


def test_batch(dist: ModuleType, rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    given, taken = ones(rank), ones(-1)
    host = np.full(COUNT, rank + 50, np.float32)
    host_taken = np.zeros(COUNT, np.float32)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, given, after),
            dist.P2POp(dist.irecv, taken, before),
            dist.P2POp(dist.irecv, host_taken, before),
            dist.P2POp(dist.isend, host, after),
        ]
    )
    for work in works:
        work.wait()
    has(taken, before)
    assert (host_taken == before + 50).all()


@pytest.mark.usefixtures("two_devices")
def test_on_the_second_device(dist: ModuleType, rank: int) -> None:
    stream = device.new_stream(1)
    if rank == 0:
        dist.send(ones(4, device=1, stream=stream), 1)
    elif rank == 1:
        room = ones(-1, device=1, stream=stream)
        dist.recv(room, 0)
        has(room, 4)


def test_passes_by_collectives(dist: ModuleType, rank: int, size: int) -> None:
    """A message does not wait for a collective that was submitted before it."""
    tensor, token = ones(rank + 1.0), ones(-1)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        dist.recv(token, 1)  # rank 1 sends this before it joins the collective
        work.wait()
        has(token, 8)
    else:
        if rank == 1:
            dist.send(ones(8), 0)
        dist.all_reduce(tensor)
    has(tensor, size * (size + 1) / 2)
