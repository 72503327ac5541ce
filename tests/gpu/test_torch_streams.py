"""Torch's streams and its caching allocator: order, lifetime, graphs, expandable segments.

``torch.cuda._sleep`` keeps a stream busy for a number of clock cycles. A tensor that is written
after it on that stream gets its values late. An operation that does not wait for the stream reads
the old values.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

LATE = 50_000_000  # clock cycles, about 30 ms
COUNT = 300_001


def total(size: int) -> float:
    return size * (size + 1) / 2


def late(torch: Any, value: float) -> Any:
    """Return a tensor whose value the current stream writes only after a while."""
    t = torch.full((COUNT,), -1.0, device="cuda")
    torch.cuda._sleep(LATE)
    return t.fill_(value)


@pytest.mark.parametrize("front", ["paddlempi", "torch"])
@pytest.mark.parametrize("side", [False, True], ids=["default", "side"])
def test_after_the_producer(
    dist: ModuleType, tdist: ModuleType, torch: Any, rank: int, size: int, side: bool, front: str
) -> None:
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        t = late(torch, rank + 1.0)
        (dist if front == "paddlempi" else tdist).all_reduce(t)
        got = t.clone()  # only the stream orders this
        t.fill_(-2)
    stream.synchronize()
    assert bool((got == total(size)).all())


@pytest.mark.parametrize("front", ["paddlempi", "torch"])
def test_wait_orders_the_waiting_stream(
    dist: ModuleType, tdist: ModuleType, torch: Any, rank: int, size: int, front: str
) -> None:
    producer, consumer = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(producer):
        t = late(torch, rank + 1.0)
        work = (dist if front == "paddlempi" else tdist).all_reduce(t, async_op=True)
    with torch.cuda.stream(consumer):
        work.wait()
        got = t.clone()
    consumer.synchronize()
    assert bool((got == total(size)).all())


@pytest.mark.mpi(min=2)
def test_a_sent_tensor_lives_until_it_was_read(tdist: ModuleType, torch: Any, rank: int) -> None:
    """The allocator must not give the memory to another tensor before the send has read it."""
    if rank == 0:
        works = [tdist.isend(late(torch, 5.0), 1)]
        junk = [torch.full((COUNT,), -3.0, device="cuda") for _ in range(4)]
        works[0].wait()
        assert bool((junk[0] == -3).all())
    elif rank == 1:
        taken = torch.zeros(COUNT, device="cuda")
        tdist.recv(taken, 0)
        assert bool((taken == 5).all())


def test_a_tensor_may_go_after_wait(tdist: ModuleType, torch: Any, rank: int, size: int) -> None:
    """record_stream tells the allocator that the stream that waited still uses the memory."""
    consumer = torch.cuda.Stream()
    for _ in range(3):
        t = torch.full((COUNT,), rank + 1.0, device="cuda")
        work = tdist.all_reduce(t, async_op=True)
        with torch.cuda.stream(consumer):
            work.wait()
            torch.cuda._sleep(LATE)
            got = t.clone()
        del t, work
        torch.full((COUNT,), -3.0, device="cuda")  # gets the memory if it is free
        consumer.synchronize()
        assert bool((got == total(size)).all())


def test_the_device_is_not_synchronised(dist: ModuleType, torch: Any, rank: int) -> None:
    """When a call returns, the work of other streams may still be under way."""
    other = torch.cuda.Stream()
    t = torch.ones(10, device="cuda")
    dist.all_reduce(t)
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        torch.cuda._sleep(40 * LATE)
    dist.all_reduce(t)
    assert not other.query()
    other.synchronize()


def test_a_graph_is_refused(dist: ModuleType, torch: Any, size: int) -> None:
    t = torch.ones(10, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        t.mul_(2)
        with pytest.raises(dist.errors.Error, match="captur"):
            dist.all_reduce(t)
    graph.replay()
    dist.all_reduce(t)
    assert t.tolist() == [2.0 * size] * 10


def test_expandable_segments(dist: ModuleType, torch: Any, rank: int, size: int) -> None:
    """Expandable segments have no IPC handle, so another path serves them."""
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    try:
        torch.cuda.empty_cache()
        for count in (10, 5 << 20):
            t = torch.full((count,), rank + 1.0, device="cuda")
            dist.all_reduce(t)
            assert bool((t == total(size)).all())
    finally:
        del t
        torch.cuda.empty_cache()
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")


def test_the_cache_hands_memory_out_again(
    dist: ModuleType, torch: Any, rank: int, size: int
) -> None:
    """Tensors inside one allocation, and new allocations at addresses that were freed."""
    for step in range(20):
        count = 1 << (10 + step % 5)
        tensors = [torch.full((count,), rank + step + 0.0, device="cuda") for _ in range(3)]
        for t in tensors:
            dist.all_reduce(t)
        for t in tensors:
            assert bool((t == sum(range(size)) + step * size).all())
        if step % 4 == 3:
            del tensors, t
            torch.cuda.empty_cache()
