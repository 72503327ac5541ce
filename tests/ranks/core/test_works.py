"""Works: futures, await, tensors that a work keeps alive, several threads."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from types import ModuleType
from typing import Any

import numpy as np
import pytest


def test_future(dist: ModuleType, rank: int, size: int) -> None:
    done = threading.Event()
    tensors = [np.full(1000, rank + step) for step in range(20)]
    futures = []
    for tensor in tensors:
        work = dist.all_reduce(tensor, async_op=True)
        futures.append(work.get_future().then(lambda future: int(future.value()[0][0])))
    futures[-1].add_done_callback(lambda _: done.set())
    assert done.wait(30), "works must complete although no thread waits for them"
    assert [future.result(30) for future in futures] == [
        sum(range(size)) + size * step for step in range(20)
    ]


def test_await(dist: ModuleType, rank: int, size: int) -> None:
    async def gather() -> list[Any]:
        works = [dist.all_reduce(np.full(9, step), async_op=True) for step in range(5)]
        return [await work for work in works]

    for step, (tensor,) in enumerate(asyncio.run(gather())):
        assert (tensor == size * step).all()


@pytest.mark.mpi(min=2)
def test_await_a_late_one(dist: ModuleType, rank: int) -> None:
    tensor = np.zeros(1)
    if rank == 0:

        async def receive() -> int:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0.01)

            other = asyncio.ensure_future(tick())
            work = dist.irecv(tensor, 1)
            (got,) = await work
            other.cancel()
            assert got is tensor
            return ticks

        assert asyncio.run(receive()) > 3, "the event loop was blocked"
        assert tensor[0] == 4
    elif rank == 1:
        time.sleep(0.2)
        dist.send(np.array([4.0]), 0)


@pytest.mark.mpi(min=2)
def test_a_wait_that_runs_out_does_no_harm(dist: ModuleType, rank: int, size: int) -> None:
    tensor = np.ones(3)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        begin = time.monotonic()
        with pytest.raises(dist.errors.NotReadyError):
            work.wait(0.05)
        assert 0.04 < time.monotonic() - begin < 15
        assert not work.is_completed()
        dist.send(np.zeros(1), 1)
        work.wait()
    else:
        if rank == 1:
            dist.recv(np.zeros(1), 0)
        dist.all_reduce(tensor)
    assert (tensor == size).all()


def test_dropped_works(dist: ModuleType, rank: int, size: int) -> None:
    """The tensors of a work live until it is over, even if the caller keeps no reference."""
    for _ in range(20):
        dist.all_reduce(np.ones(10_000), async_op=True)
    tensor = np.ones(1)
    dist.all_reduce(tensor)
    assert tensor[0] == size


def test_error_of_a_work(dist: ModuleType, rank: int, size: int) -> None:
    if size == 1:
        return
    work = dist.all_reduce(np.zeros(3 if rank else 4), async_op=True)
    with pytest.raises(dist.errors.MismatchError):
        work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert isinstance(work.exception(), dist.errors.MismatchError)
    with pytest.raises(dist.errors.MismatchError):
        work.get_future().result(10)
    dist.barrier()


def test_threads_with_a_group_each(dist: ModuleType, rank: int, size: int) -> None:
    groups = [dist.new_group() for _ in range(3)]
    wrong: list[object] = []

    def work(number: int) -> None:
        for step in range(50):
            tensor = np.array([rank + step * number])
            dist.all_reduce(tensor, group=groups[number])
            if tensor[0] != sum(range(size)) + size * step * number:
                wrong.append((number, step, tensor))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_on_one_group(dist: ModuleType, size: int) -> None:
    """All threads call the same operation, so their order on a rank does not matter."""
    wrong: list[object] = []

    def work() -> None:
        for _ in range(50):
            tensor = np.ones(4)
            dist.all_reduce(tensor)
            if tensor[0] != size:
                wrong.append(tensor)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sync_behind_async(dist: ModuleType, rank: int, size: int) -> None:
    first, second = np.full(100_000, 1.0), np.array([2.0])
    work = dist.all_reduce(first, async_op=True)
    dist.all_reduce(second)
    assert second[0] == 2 * size
    work.wait()
    assert first[-1] == size


@pytest.mark.mpi(min=2)
def test_many_dropped_sends(dist: ModuleType, rank: int) -> None:
    """The tensors live until MPI has finished with them, and no longer."""
    count, length = 300, 40_000  # too long for MPI to send it before the receive
    seen = []
    if rank == 0:
        for step in range(count):
            tensor = np.full(length, float(step))
            seen.append(weakref.ref(tensor))
            dist.isend(tensor, 1, tag=3)
            del tensor
        gc.collect()
    dist.barrier()
    if rank == 1:
        for step in range(count):
            tensor = np.zeros(length)
            dist.recv(tensor, 0, tag=3)
            assert (tensor == step).all()
    dist.barrier()
    end = time.monotonic() + 20
    while any(tensor() is not None for tensor in seen) and time.monotonic() < end:
        dist.isend(np.ones(1), rank).wait()  # a later call frees the tensors of works that are over
        dist.recv(np.zeros(1), rank)
    assert [step for step, tensor in enumerate(seen) if tensor() is not None] == []


@pytest.mark.mpi(min=2)
def test_a_list_that_is_changed_meanwhile(dist: ModuleType, rank: int, size: int) -> None:
    """A work keeps the tensors alive, not the list that contained them."""
    parts = [np.zeros(50_000) for _ in range(size)]
    seen = [weakref.ref(part) for part in parts]
    work = dist.all_gather(parts, np.full(50_000, float(rank)), async_op=True)
    parts.clear()
    gc.collect()
    if rank == 0:
        time.sleep(0.1)
    assert all(part() is not None for part in seen) or work.is_completed()
    work.wait()
    dist.barrier()


def test_threads_that_ask_in_every_way(dist: ModuleType, rank: int, size: int) -> None:
    """The core tells one thread of the end and forgets the work. All threads learn of the end."""
    rounds, threads = 60, 5

    def ask(work: Any, way: int, seen: list[Any]) -> None:
        if way == 0:
            seen.append(work.wait())
        elif way == 1:
            while not work.is_completed():
                time.sleep(0)
            seen.append(work.is_success())
        elif way == 2:
            seen.append(len(work.get_future().result(30)) == 1)
        elif way == 3:
            try:
                seen.append(work.wait(0.0001))
            except dist.errors.NotReadyError:
                seen.append(work.wait())
        else:
            seen.append(len(work.result()) == 1)

    for number in range(rounds):
        tensor = np.full(1 + number % 3, rank + 1.0)
        work = dist.all_reduce(tensor, async_op=True)
        receive = dist.irecv(taken := np.zeros(2), (rank - 1) % size, tag=number)
        seen: list[Any] = []
        asking = [
            threading.Thread(target=ask, args=(one, (way + number) % threads, seen))
            for way in range(threads)
            for one in (work, receive)
        ]
        for thread in asking:
            thread.start()
        sent = dist.isend(np.full(2, float(number)), (rank + 1) % size, tag=number)
        for thread in asking:
            thread.join(60)
        assert seen == [True] * len(asking)
        assert (tensor == size * (size + 1) / 2).all()
        assert (taken == number).all()
        assert receive.source_rank() == (rank - 1) % size
        sent.wait()


def test_works_without_references(dist: ModuleType, rank: int, size: int) -> None:
    """The tensors are freed once the works are over, with a future or without."""
    freed: list[int] = []
    done: list[Any] = []
    for number in range(200):
        tensor = Tracked(np.ones(3), freed)
        work = dist.all_reduce(tensor, async_op=True)
        if number % 2:
            done.append(work.get_future())
        del work, tensor
    for future in done:
        future.result(30)
    done.clear()
    del future
    end = time.monotonic() + 30
    while len(freed) < 200 and time.monotonic() < end:
        dist.sendrecv(np.zeros(1), rank, np.zeros(1), rank)  # frees works that are over
        time.sleep(0.001)
    dist.barrier()
    assert len(freed) == 200


@pytest.mark.mpi(min=2)
def test_a_work_and_its_error_hold_each_other(dist: ModuleType, rank: int) -> None:
    """The collector frees them: the error's traceback has the frame that holds the work."""

    def fail() -> Any:
        work = dist.all_reduce(np.ones(2 + rank), async_op=True)
        try:
            work.wait()
        except dist.errors.MismatchError:
            return weakref.ref(work)
        return None

    seen = fail()
    assert seen is not None
    gc.collect()
    assert seen() is None
    dist.barrier()


class Tracked(np.ndarray):
    """An array that notes in a list when it is freed."""

    _freed: list[int]

    def __new__(cls, values: Any, freed: list[int]) -> Tracked:
        made: Tracked = np.array(values).view(cls)
        made._freed = freed
        return made

    def __del__(self) -> None:
        if hasattr(self, "_freed"):
            self._freed.append(1)
