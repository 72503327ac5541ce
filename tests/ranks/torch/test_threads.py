"""Collectives from several threads, and waits that let other threads run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

SOON = 60.0


def together(*calls: Callable[[], object]) -> None:
    """Run every call in a thread, and raise the error of the first that failed."""
    failed: list[BaseException] = []

    def guarded(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive(), "a thread hangs"
    if failed:
        raise failed[0]


def test_groups_in_threads(dist: ModuleType, rank: int, size: int) -> None:
    """Every thread has its own group. The order among the threads differs between the ranks."""
    groups = [dist.new_group(list(range(size))) for _ in range(4)]

    def train(i: int) -> None:
        for step in range(25):
            x = torch.full((i + 1,), float(rank + step))
            dist.all_reduce(x, group=groups[i])
            assert x.tolist() == [size * (size - 1) / 2 + size * step] * (i + 1)
            y = torch.empty(size)
            work = dist.all_gather_into_tensor(
                y, torch.full((1,), float(rank * step)), group=groups[i], async_op=True
            )
            work.wait()
            assert y.tolist() == [float(r * step) for r in range(size)]

    order = [(i + rank) % len(groups) for i in range(len(groups))]
    together(*(lambda i=i: train(i) for i in order))  # type: ignore[misc]
    for group in groups:
        dist.destroy_process_group(group)


def test_a_wait_in_another_thread(dist: ModuleType, rank: int, size: int) -> None:
    xs = [torch.full((2,), float(rank + i)) for i in range(20)]
    works = [dist.all_reduce(x, async_op=True) for x in xs]
    together(*(work.wait for work in reversed(works)))
    expected = [[size * (size - 1) / 2 + size * i] * 2 for i in range(20)]
    assert [x.tolist() for x in xs] == expected


def test_many_wait_for_one(dist: ModuleType, rank: int, size: int) -> None:
    x = torch.zeros(2)
    work = dist.irecv(x, (rank - 1) % size, tag=21)
    seen: list[Any] = []

    def wait() -> None:
        work.wait()
        seen.append(x.tolist())

    def send() -> None:
        time.sleep(0.05)
        dist.send(torch.full((2,), rank + 1.0), (rank + 1) % size, tag=21)

    together(wait, wait, wait, send)
    assert seen == [[(rank - 1) % size + 1.0] * 2] * 3


def test_waits_drop_the_gil(dist: ModuleType, rank: int, size: int) -> None:
    """Rank 0 waits for the others, which join only after another thread of rank 0 tells them."""

    def tell() -> None:
        for _ in range(50):  # by then rank 0 waits
            time.sleep(0.001)
        for other in range(1, size):
            dist.send(torch.ones(1), other, tag=22)

    x = torch.full((2,), rank + 1.0)
    waits: list[Callable[[], object]] = [
        lambda: dist.all_reduce(x),
        lambda: dist.all_reduce(x, async_op=True).wait(),
        lambda: dist.all_reduce(x, async_op=True).get_future().wait(),
        lambda: dist.barrier(),
    ]
    for wait in waits:
        if rank:
            dist.recv(torch.zeros(1), 0, tag=22)
            wait()
            continue
        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        wait()
        thread.join(SOON)
        assert not thread.is_alive()
    assert x.tolist() == [size**2 * size * (size + 1) / 2] * 2


def test_callbacks_may_use_torch_and_the_group(dist: ModuleType, rank: int, size: int) -> None:
    """A function given to ``then`` starts another operation, in the thread of futures."""
    done = threading.Event()
    x, y = torch.full((2,), rank + 1.0), torch.full((2,), 2.0)
    works: list[Any] = []

    def go_on(ended: Any) -> None:
        works.append(dist.all_reduce(y, async_op=True))
        done.set()

    dist.all_reduce(x, async_op=True).get_future().then(go_on)
    assert done.wait(SOON)
    works[0].wait()
    assert y.tolist() == [2.0 * size] * 2
