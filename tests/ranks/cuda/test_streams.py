"""Works and futures: which streams they order, when they complete, what they keep alive.

The tensors behave like those of a framework. In each thread one stream is current; tensors are
made and used on it. The allocator can be told which other streams use a tensor. A read on a stream
that is not ordered after the writes may find old values, or 0xEE. It does not find them every
time, so the tests repeat it.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import device
import numpy as np
import pytest
from paddlempi import _buffer
from paddlempi.tensors import dlpack

TIMES = 8
COUNT = 3000  # three pieces of 4 KiB, the last piece shorter
DEADLINE = 30.0

_here = threading.local()


def current() -> int:
    """Return the handle of this thread's current stream."""
    return int(getattr(_here, "stream", device.LEGACY))


@contextmanager
def on(stream: int) -> Iterator[int]:
    """Make the stream current in the block."""
    before, _here.stream = current(), stream
    yield stream
    _here.stream = before


class Tensor(device.DeviceTensor):
    """A tensor on the stream that is current when the tensor is made."""

    def __init__(self, array: Any, **how: Any) -> None:
        super().__init__(array, stream=current(), **how)

    def read(self) -> np.ndarray[Any, Any]:
        """Return its values, read on the current stream."""
        view = self[:]
        view.stream = current()
        return view.numpy()


class Mute(Tensor):
    """A tensor of a framework whose allocator cannot be told which streams use it."""


def _describe(tensor: Tensor) -> _buffer.Description:
    return (*dlpack.describe(tensor)[:7], current())


def _stream(_: Tensor) -> Callable[[], int]:
    return current


def _record(tensor: Tensor) -> bool:
    tensor.record_stream(current())
    return True


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """Both classes are registered, as a front registers its tensors."""
    for kind, record in ((Tensor, _record), (Mute, None)):
        _buffer.register(kind, _buffer.Kind(_describe, None, kind, _stream, record))
    yield
    for kind in (Tensor, Mute):
        del _buffer._kinds[kind]


@pytest.fixture
def streams() -> tuple[int, int]:
    """The producer's stream, and another stream."""
    return _streams()


def _streams(made: list[int] = []) -> tuple[int, int]:  # noqa: B006 (made once)
    if not made:
        made += [device.new_stream(), device.new_stream()]
    return made[0], made[1]


def mine(rank: int, step: int = 0) -> np.ndarray[Any, Any]:
    return np.arange(COUNT, dtype=np.float32) * (rank + 1) + step


def summed(size: int, step: int = 0) -> np.ndarray[Any, Any]:
    return sum((mine(rank, step) for rank in range(size)), np.zeros(COUNT, np.float32))


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not done():
        assert time.monotonic() < end
        time.sleep(0.001)


def until_gone(dist: ModuleType, alone: Any, ref: Callable[[], Any]) -> None:
    """Wait until the library has dropped a tensor. It does so in a later call."""
    until(lambda: dist.barrier(alone) or ref() is None)


@pytest.mark.parametrize("stream", [0, device.LEGACY, device.PER_THREAD])
def test_default_streams(dist: ModuleType, rank: int, size: int, stream: int) -> None:
    for step in range(TIMES):
        with on(stream):
            tensor = Tensor(mine(rank, step))
            tensor.add(1)
            dist.all_reduce(tensor)
            tensor.add(1)
            np.testing.assert_array_equal(tensor.read(), summed(size, step) + size + 1)
            tensor.fill_from(mine(rank, step))
            work = dist.all_reduce(tensor, async_op=True)
            assert work.wait()
            np.testing.assert_array_equal(tensor.read(), summed(size, step))


def test_wait_orders_the_stream_that_waits(
    dist: ModuleType, rank: int, size: int, streams: tuple[int, int]
) -> None:
    producer, consumer = streams
    for step in range(TIMES):
        with on(producer):
            tensor = Tensor(mine(rank, step))
            tensor.add(1)
            work = dist.all_reduce(tensor, async_op=True)
        with on(consumer):
            with device.hold(consumer):
                assert work.wait(), "wait must not block the host until the stream is free"
            np.testing.assert_array_equal(tensor.read(), summed(size, step) + size)
        with on(producer):
            assert work.result()[0] is tensor
            np.testing.assert_array_equal(tensor.read(), summed(size, step) + size)


def test_completed_when_the_device_is(
    dist: ModuleType, rank: int, size: int, streams: tuple[int, int]
) -> None:
    """A completed work needs no wait: every stream may read its tensor."""
    producer, other = streams
    for step in range(TIMES):
        with on(producer):
            tensor = Tensor(mine(rank, step))
            work = dist.all_reduce(tensor, async_op=True)
        if step % 2:
            work.wait()
        until(work.is_completed)
        assert work.is_success()
        with on(other):
            np.testing.assert_array_equal(tensor.read(), summed(size, step))


def test_future(dist: ModuleType, rank: int, size: int, streams: tuple[int, int]) -> None:
    producer, consumer = streams
    for step in range(TIMES):
        with on(producer):
            tensor = Tensor(mine(rank, step))
            future = dist.all_reduce(tensor, async_op=True).get_future()
        seen: list[Any] = []

        def callback(done: Any, seen: list[Any] = seen) -> None:
            with on(device.PER_THREAD):
                seen.append(done.value()[0].read())

        after = future.then(callback)
        with on(consumer):
            (result,) = future.wait()
            assert result is tensor
            np.testing.assert_array_equal(result.read(), summed(size, step))
        after.result(DEADLINE)
        np.testing.assert_array_equal(seen[0], summed(size, step))


def test_await(dist: ModuleType, rank: int, size: int, streams: tuple[int, int]) -> None:
    producer, consumer = streams

    async def main(step: int) -> Any:
        with on(producer):
            tensor = Tensor(mine(rank, step))
            work = dist.all_reduce(tensor, async_op=True)
        with on(consumer):
            (result,) = await work
            return result.read()

    for step in range(TIMES):
        np.testing.assert_array_equal(asyncio.run(main(step)), summed(size, step))


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("made", [Tensor, Mute])
def test_dropped(dist: ModuleType, rank: int, streams: tuple[int, int], made: Any) -> None:
    """The caller drops a work and its tensor at once, and then allocates memory again."""
    alone = dist.new_group([rank])
    with on(streams[0]):
        for step in range(TIMES):
            if rank == 0:
                tensor = made(mine(5, step))
                gone = weakref.ref(tensor)
                dist.isend(tensor, 1)
                del tensor
                gc.collect()
                junk = made(mine(9))
                np.testing.assert_array_equal(junk.read(), mine(9))
            elif rank == 1:
                into = made(mine(7))
                dist.recv(into, 0)
                np.testing.assert_array_equal(into.read(), mine(5, step))
        if rank == 0:
            until_gone(dist, alone, gone)
    dist.barrier()


@pytest.mark.mpi(min=2)
def test_the_allocator_is_told(dist: ModuleType, rank: int, streams: tuple[int, int]) -> None:
    """A tensor may be dropped after wait: its memory is reused when the waiting stream is done."""
    producer, consumer = streams
    for step in range(TIMES):
        with on(producer):
            tensor = Tensor(mine(rank, step))
            work = dist.all_reduce(tensor, async_op=True)
        gone = weakref.ref(tensor)
        with on(consumer), device.hold(consumer):
            work.wait()
            del tensor, work
            assert gone() is None
            with on(producer):
                following = Tensor(mine(9, step))
            time.sleep(0.005)
            assert device.is_busy(producer)
        with on(producer):
            np.testing.assert_array_equal(following.read(), mine(9, step))


@pytest.mark.fake_driver
@pytest.mark.mpi(min=2)
def test_an_allocator_that_cannot_be_told(
    dist: ModuleType, rank: int, streams: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work keeps the tensor until the device is done."""
    producer, consumer = streams
    alone = dist.new_group([rank])
    kept = 0
    monkeypatch.setenv("PMPI_FAKECUDA_DELAY", "10000")
    for step in range(TIMES):
        with on(producer):
            tensor = Mute(mine(rank, step))
            work = dist.all_reduce(tensor, async_op=True)
        gone = weakref.ref(tensor)
        with on(consumer):
            work.wait()
        del tensor, work
        kept += gone() is not None
        until_gone(dist, alone, gone)
    assert kept, "the device was never late, so this test has shown nothing"


def test_source_of_a_receive(
    dist: ModuleType, rank: int, size: int, streams: tuple[int, int]
) -> None:
    with on(streams[0]):
        work = dist.isend(Tensor(mine(rank)), (rank + 1) % size)
        into = Tensor(mine(9))
        came = dist.irecv(into)
        before = (rank - 1) % size
        assert came.source_rank() == before
        np.testing.assert_array_equal(into.read(), mine(before))
        work.wait()


@pytest.mark.mpi(min=2)
def test_two_streams_on_one_rank(
    dist: ModuleType, rank: int, size: int, streams: tuple[int, int]
) -> None:
    """The send side and the receive side are on two streams. The other ranks get RefusedError."""
    tensor = device.DeviceTensor(mine(rank), stream=streams[0])
    into = device.DeviceTensor(np.zeros((size, COUNT), np.float32), stream=streams[rank == 0])
    error, text = dist.errors.RefusedError, r"\[0\] refused"
    if rank == 0:
        error, text = dist.errors.ArgumentError, "two CUDA streams"
    with pytest.raises(error, match=text):
        dist.all_gather_into_tensor(into, tensor)
    dist.barrier()
