"""Streams, devices and groups: what runs before, after and during an operation."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import device
import numpy as np
import pytest
from device import DeviceTensor
from kinds import side_stream

COUNT = 2500


def ones(value: float, count: int = COUNT, **how: Any) -> DeviceTensor:
    """Return a tensor whose values arrive late. Before that, its memory has other values."""
    return DeviceTensor(np.full(count, value, np.float32), **{"stream": side_stream(), **how})


def has(tensor: DeviceTensor, value: float) -> None:
    np.testing.assert_array_equal(tensor.numpy(), np.full(tensor.shape, value, np.float32))


@contextmanager
def held(stream: int, seconds: float) -> Iterator[None]:
    """Hold the stream for some seconds from the start of the block, at most until its end."""
    over = threading.Event()

    def holding() -> None:
        with device.hold(stream):
            started.set()
            over.wait(seconds)

    started = threading.Event()
    thread = threading.Thread(target=holding)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("late", ["first", "last", "all"])
def test_a_late_producer(dist: ModuleType, rank: int, size: int, late: str, run: Any) -> None:
    """The values of one rank or of all arrive late, but before the operation reads them."""
    stream = side_stream()
    mine = late == "all" or rank == (0 if late == "first" else size - 1)
    for turn in range(2):
        tensor = ones(-1)
        tensor.numpy()
        with held(stream, 0.05 if mine else 0):
            tensor.fill_from(np.full(COUNT, rank + 1 + turn, np.float32))
            run(dist.all_reduce, tensor)
            has(tensor, sum(r + 1 + turn for r in range(size)))


def test_async_does_not_wait_for_the_producer(dist: ModuleType, rank: int, size: int) -> None:
    stream = device.new_stream()
    with device.hold(stream):
        tensors = [ones(rank + 1.0, stream=stream) for _ in range(4)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        assert not any(work.is_completed() for work in works)
    for work, tensor in reversed(list(zip(works, tensors, strict=True))):
        assert work.wait()
        has(tensor, size * (size + 1) / 2)


def test_other_streams_go_on(dist: ModuleType, rank: int, size: int) -> None:
    """A call waits for one stream and not for the device, so it returns while another is held."""
    other = device.new_stream()
    with device.hold(other):
        beside = ones(7, stream=other)
        tensor = ones(rank + 1.0)
        dist.all_reduce(tensor)
        has(tensor, size * (size + 1) / 2)
        assert device.is_busy(other)
    has(beside, 7)


def test_what_comes_after(dist: ModuleType, rank: int, size: int) -> None:
    """The stream writes to the tensor directly after the call, and after the wait."""
    tensor = ones(rank + 1.0)
    for step in range(10):
        tensor.fill_from(np.full(COUNT, rank + step, np.float32))
        if step % 2:
            dist.all_reduce(tensor)
        else:
            dist.all_reduce(tensor, async_op=True).wait()
    has(tensor, sum(r + 9 for r in range(size)))


@pytest.mark.parametrize("stream", [0, device.LEGACY], ids=["null", "legacy"])
def test_the_legacy_default_stream(
    dist: ModuleType, rank: int, size: int, stream: int, run: Any
) -> None:
    """The legacy stream runs after all blocking streams. One of them produces the values."""
    blocking = device.new_stream(blocking=True)
    with held(blocking, 0.03):
        tensor = ones(rank + 1.0, stream=blocking)
        tensor.stream = stream
        run(dist.all_reduce, tensor)
        has(tensor, size * (size + 1) / 2)


def test_the_default_streams_of_threads(dist: ModuleType, rank: int, size: int) -> None:
    """Every thread has its own stream under the same handle; every thread has its own group."""
    groups = [dist.new_group(range(size)) for _ in range(3)]
    wrong: list[object] = []
    kept: list[object] = []  # memory is reused by the stream's handle, which all threads share

    def work(index: int) -> None:
        try:
            for step in range(5):
                tensor = ones(rank + index + step, COUNT + 1, stream=device.PER_THREAD)
                kept.append(tensor)
                dist.all_reduce(tensor, group=groups[index])
                has(tensor, sum(r + index + step for r in range(size)))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    for group in groups:
        dist.destroy_process_group(group)


def test_a_capture_is_refused(dist: ModuleType, rank: int, size: int) -> None:
    stream = device.new_stream()
    tensor = ones(rank + 1.0, stream=stream)
    tensor.numpy()
    with device.capture(stream):
        for later in (False, True):
            with pytest.raises(dist.errors.UnsupportedError, match="captured into a graph"):
                dist.all_reduce(tensor, async_op=later)
            with pytest.raises(dist.errors.UnsupportedError, match="captured into a graph"):
                dist.isend(tensor, (rank + 1) % size)
    dist.all_reduce(tensor)
    has(tensor, size * (size + 1) / 2)


def test_two_streams_in_one_call(dist: ModuleType, rank: int, size: int) -> None:
    first, second = ones(1.0, stream=device.new_stream()), ones(2.0, stream=device.new_stream())
    with pytest.raises(dist.errors.ArgumentError, match="two CUDA streams"):
        dist.all_reduce_coalesced([first, second])
    dist.all_reduce(first)
    has(first, size)


# Devices


@functools.cache
def stream_on(index: int) -> int:
    return device.new_stream(index)


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize("of", ["the same", "another"])
def test_the_second_device(dist: ModuleType, rank: int, size: int, of: str, run: Any) -> None:
    index = 1 if of == "the same" else rank % 2
    tensor = ones(rank + 1.0, device=index, stream=stream_on(index))
    run(dist.all_reduce, tensor)
    has(tensor, size * (size + 1) / 2)
    taken = [ones(0, device=index, stream=stream_on(index)) for _ in range(size)]
    run(dist.all_gather, taken, ones(rank, device=index, stream=stream_on(index)))
    for source, t in enumerate(taken):
        has(t, source)


@pytest.mark.usefixtures("two_devices")
def test_two_devices_at_once(dist: ModuleType, rank: int, size: int) -> None:
    tensors = [ones(rank + i, device=i % 2, stream=stream_on(i % 2)) for i in range(6)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    for i, tensor in enumerate(tensors):
        has(tensor, sum(r + i for r in range(size)))


@pytest.mark.usefixtures("two_devices")
@pytest.mark.mpi(min=2)
def test_two_devices_in_one_call(dist: ModuleType, rank: int, size: int) -> None:
    """Rank 1 raises ArgumentError, and the others RefusedError, which names rank 1."""
    stream = device.LEGACY  # the same handle on both devices
    tensors = [ones(i, device=i if rank == 1 else 0, stream=stream) for i in range(2)]
    error = dist.errors.ArgumentError if rank == 1 else dist.errors.RefusedError
    with pytest.raises(
        error, match=r"CUDA device 1, another tensor" if rank == 1 else r"rank\(s\) \[1\]"
    ):
        dist.all_reduce_coalesced(tensors)
    dist.all_reduce(tensors[0])
    has(tensors[0], 0)


# Memory


@pytest.mark.parametrize("memory", sorted(device.KINDS))
@pytest.mark.parametrize("offset", [0, 4, 20])
def test_every_memory(
    dist: ModuleType, rank: int, size: int, memory: str, offset: int, run: Any
) -> None:
    """Memory of every kind of allocation, with tensors that begin at several offsets."""
    tensor = ones(rank + 1.0, kind=memory, offset=offset)
    run(dist.all_reduce, tensor)
    has(tensor, size * (size + 1) / 2)


def test_a_device_that_is_not_there(dist: ModuleType, rank: int) -> None:
    tensor = ones(1.0)
    tensor.device = 9
    with pytest.raises(dist.errors.ArgumentError, match="9"):
        dist.broadcast(_Empty(tensor), 0)
    dist.barrier()


class _Empty:
    """A tensor without elements, so that only the device can be wrong."""

    def __init__(self, tensor: DeviceTensor) -> None:
        self._tensor = tensor[:0]

    def __dlpack__(self, **arguments: Any) -> object:
        return self._tensor.__dlpack__(**{**arguments, "stream": -1})

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()


def test_temporaries(dist: ModuleType, rank: int, size: int) -> None:
    """The caller drops the tensors: their memory must not be reused before the end."""
    results = []
    for step in range(8):
        results.append(dist.all_reduce(ones(rank + step, 700), async_op=True))
        ones(-5, 700)
    for step, work in enumerate(results):
        (tensor,) = work.result()
        has(tensor, sum(r + step for r in range(size)))
    for _ in range(8):
        dist.all_reduce(ones(rank, 700), async_op=True)  # the work is dropped too
        ones(-5, 700)
    dist.barrier()


# Groups


def test_groups(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    for members in ([size - 1], list(range(size - 1, -1, -1)), list(range(0, size, 2))):
        group = dist.new_group(members)
        if rank not in members:
            continue
        tensor = ones(rank + 1.0)
        run(dist.all_reduce, tensor, group=group)
        has(tensor, sum(member + 1.0 for member in members))
        outs = [ones(0) for _ in members]
        run(dist.all_gather, outs, ones(rank), group=group)
        for member, out in zip(members, outs, strict=True):
            has(out, member)
        dist.destroy_process_group(group)


def test_alone(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """A group of one rank copies on the device, after the producer."""
    groups = [dist.new_group([r]) for r in range(size)]
    group, stream = groups[rank], side_stream()
    with held(stream, 0.03):
        tensor, out = ones(3.0), ones(0)
        run(dist.all_reduce, tensor, group=group)
        run(dist.reduce_scatter_tensor, out, tensor, group=group)
        has(out, 3)
    whole = ones(0)
    run(dist.all_gather_into_tensor, whole, tensor, group=group)
    has(whole, 3)
    view = ones(0, 2 * COUNT)[::2]
    run(dist.all_to_all_single, view, tensor, group=group)
    assert (view.numpy() == 3).all()
    run(dist.broadcast, tensor, rank, group=group)
    run(dist.scan, tensor, group=group)
    has(tensor, 3)
    dist.destroy_process_group(group)


@pytest.mark.mpi(ranks=2)
def test_beside_paddle(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    paddle = pytest.importorskip("paddle", reason="paddle is not installed")
    tensor = ones(rank + 1.0) if rank % 2 else paddle.full([COUNT], rank + 1.0)
    run(dist.all_reduce, tensor)
    if rank % 2:
        has(tensor, size * (size + 1) / 2)
    else:
        assert bool((tensor == size * (size + 1) / 2).all())


def test_host_and_device_by_turns(dist: ModuleType, rank: int, size: int) -> None:
    works, tensors = [], []
    for step in range(12):
        values = np.full(COUNT, rank + step, np.float32)
        tensors.append(DeviceTensor(values, stream=side_stream()) if step % 2 else values)
        works.append(dist.all_reduce(tensors[-1], async_op=True))
    for work in works:
        work.wait()
    for step, tensor in enumerate(tensors):
        values = tensor.numpy() if step % 2 else tensor
        assert (values == sum(r + step for r in range(size))).all()
