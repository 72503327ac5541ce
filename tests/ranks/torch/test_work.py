"""The Work that torch's functions return: its end, its errors, the tensors it keeps alive."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest
import torch
from paddlempi import errors

NO_TIMEOUT = timedelta(0)
"""torch's kNoTimeout, as it arrives from C++."""

SOON = 10.0


def reached(condition: Any) -> bool:
    """Return whether a condition comes true within SOON, without a wait for an operation."""
    end = time.monotonic() + SOON
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return bool(condition())


def held(dist: ModuleType, rank: int, size: int) -> tuple[Any, Any, Any]:
    """Return a receive, its tensor, and a function that sends the next rank its message."""
    into = torch.zeros(4)
    work = dist.irecv(into, src=(rank - 1) % size, tag=71)

    def send() -> None:
        dist.send(torch.full((4,), rank + 1.0), dst=(rank + 1) % size, tag=71)

    return work, into, send


@pytest.mark.parametrize(
    "timeout",
    [(), (None,), (timedelta(seconds=30),), (NO_TIMEOUT,), (timedelta(milliseconds=-1),)],
    ids=["left out", "None", "30 s", "kNoTimeout", "negative"],
)
def test_wait_ends_with_the_operation(
    dist: ModuleType, rank: int, size: int, timeout: tuple[Any, ...]
) -> None:
    x = torch.full((3,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    assert work.wait(*timeout) is True
    assert x.tolist() == [size * (size + 1) / 2] * 3
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert work.wait(*timeout) is True
    work.synchronize()
    work.block_current_stream()


def test_a_wait_that_runs_out_leaves_the_work(dist: ModuleType, rank: int, size: int) -> None:
    work, into, send = held(dist, rank, size)
    for _ in range(2):
        with pytest.raises(dist.DistBackendError) as caught:
            work.wait(timedelta(milliseconds=30))
        assert isinstance(caught.value, errors.NotReadyError)
        assert isinstance(caught.value, RuntimeError)
    assert not work.is_completed() and not work.is_success()
    assert work.exception() is None
    dist.barrier()
    send()
    work.wait()
    assert into.tolist() == [(rank - 1) % size + 1.0] * 4
    assert work.is_success()


def test_it_ends_without_anybody_waiting(dist: ModuleType, rank: int, size: int) -> None:
    x = torch.full((5,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    assert reached(work.is_completed)
    assert x.tolist() == [size * (size + 1) / 2] * 5


def test_result_and_kind(dist: ModuleType, rank: int, size: int) -> None:
    x, y = torch.full((2,), rank + 1.0), torch.empty(2 * size)
    first = dist.all_reduce(x, async_op=True)
    assert [t.data_ptr() for t in first.result()] == [x.data_ptr()]
    second = dist.all_gather_into_tensor(y, torch.full((2,), float(rank)), async_op=True)
    assert [t.data_ptr() for t in second.result()] == [y.data_ptr()]
    assert y.tolist() == [float(r) for r in range(size) for _ in range(2)]
    third = dist.barrier(async_op=True)
    assert third.result() == []
    # The numbers of c10d::OpType.
    assert [w._get_op_type() for w in (first, second, third)] == [1, 4, 15]


def test_source_rank(dist: ModuleType, rank: int, size: int, reversed_group: Any) -> None:
    for group in (None, reversed_group):
        if rank:
            dist.send(torch.full((1,), float(rank)), 0, group=group, tag=3)
            continue
        seen = set()
        for _ in range(size - 1):
            x = torch.zeros(1)
            work = (group or dist.group.WORLD).recv_anysource([x], 3)
            source = work.source_rank()
            assert source == work._source_rank()
            sender = dist.get_global_rank(group or dist.group.WORLD, source)
            assert x.item() == sender
            seen.add(sender)
        assert seen == set(range(1, size))
    work = dist.all_reduce(torch.ones(1), async_op=True)
    with pytest.raises(ValueError, match="source_rank"):
        work.source_rank()


def test_boxed(dist: ModuleType, size: int) -> None:
    """TorchScript's custom operators hold a boxed work. unbox returns the same work."""
    x = torch.ones(2)
    work = dist.all_reduce(x, async_op=True)
    again = type(work).unbox(work.boxed())
    assert again.wait()
    assert x.tolist() == [size] * 2


def test_errors_arrive_in_every_wait(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    work = dist.all_reduce(torch.ones(2 + (rank == 0)), group=group, async_op=True)
    seen = []
    for _ in range(3):
        with pytest.raises(dist.DistBackendError) as caught:
            work.wait()
        seen.append(caught.value)
    assert all(isinstance(error, errors.MismatchError) for error in seen)
    assert seen[0] is seen[1] is seen[2] is work.exception()
    assert work.is_completed() and not work.is_success()
    with pytest.raises(errors.MismatchError):
        work.result()
    # The error also arrives in a thread that waits later.
    caught_there: list[BaseException] = []

    def elsewhere() -> None:
        try:
            work.wait()
        except Exception as error:
            caught_there.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(SOON)
    assert caught_there == [seen[0]]
    dist.destroy_process_group(group)


def test_a_joined_work(dist: ModuleType, rank: int, size: int) -> None:
    xs = [torch.full((n,), rank + 1.0) for n in (1, 2)]
    pg = dist.group.WORLD
    pg._start_coalescing(torch.device("cpu"))
    for x in xs:
        pg.allreduce([x])
    work = pg._end_coalescing(torch.device("cpu"))
    work.wait()
    assert [x.tolist() for x in xs] == [[size * (size + 1) / 2] * n for n in (1, 2)]
    assert work.is_completed() and work.is_success()
    assert [t.data_ptr() for t in work.result()] == [x.data_ptr() for x in xs]
    with pytest.raises(ValueError, match="source_rank"):
        work.source_rank()


def test_dropped_works_come_to_their_end(dist: ModuleType, rank: int, size: int) -> None:
    """The caller keeps neither works nor tensors. The tensors live until the operation is over."""
    alive = []
    for i in range(8):
        x = torch.full((64,), float(rank + i))
        alive.append(weakref.ref(x))
        dist.all_reduce(x, async_op=True)
        del x
    into = torch.zeros(1)
    work = dist.irecv(into, src=(rank - 1) % size, tag=72)
    del work
    dist.barrier()
    dist.send(torch.full((1,), rank + 1.0), dst=(rank + 1) % size, tag=72)
    assert reached(lambda: into.item() == (rank - 1) % size + 1.0)

    def gone() -> bool:
        dist.all_reduce(torch.zeros(1), async_op=True).wait()  # drops works that are over
        return all(ref() is None for ref in alive)

    # Every rank makes the same number of calls.
    for _ in range(20):
        last = gone()
        time.sleep(0.01)
    assert last


def test_tensors_live_until_the_end(dist: ModuleType, rank: int, size: int) -> None:
    x = torch.full((64,), rank + 1.0)
    view = weakref.ref(x)
    work = dist.irecv(x, src=(rank - 1) % size, tag=73)
    del x
    gc.collect()
    assert view() is not None
    dist.barrier()
    dist.send(torch.full((64,), rank + 1.0), dst=(rank + 1) % size, tag=73)
    (result,) = work.result()
    assert result.tolist() == [(rank - 1) % size + 1.0] * 64


def test_no_cycles(dist: ModuleType) -> None:
    """A work that is over is freed without the garbage collector, and so is its future."""
    gc.collect()
    gc.disable()
    try:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        work.get_future().wait()
        work.wait()
        there = weakref.ref(work)
        del work
        assert reached(lambda: there() is None)
    finally:
        gc.enable()


def test_a_work_outlives_its_group(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    x = torch.full((2,), rank + 1.0)
    work = dist.all_reduce(x, group=group, async_op=True)
    work.wait()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    assert work.wait() and work.is_success()
    assert work.result()[0].tolist() == [size * (size + 1) / 2] * 2


def test_versions(dist: ModuleType, rank: int, size: int) -> None:
    """No version counter changes, as with gloo and nccl, so autograd notices no write."""
    root, parts = torch.ones(2), [torch.ones(2) for _ in range(size)]
    for async_op in (False, True):
        works = [
            dist.all_reduce(root, async_op=async_op),
            dist.broadcast(root, size - 1, async_op=async_op),
            dist.all_gather(parts, torch.ones(2), async_op=async_op),
            dist.irecv(parts[0], (rank - 1) % size) if size > 1 else None,
            dist.isend(torch.ones(2), (rank + 1) % size) if size > 1 else None,
        ]
        for work in works:
            if work is not None:
                work.wait()
    assert [tensor._version for tensor in (root, *parts)] == [0] * (size + 1)
    with torch.inference_mode():
        plain = torch.full((2,), rank + 1.0)
    dist.all_reduce(plain)
    dist.all_reduce(plain, async_op=True).wait()
    assert plain.tolist() == [size * size * (size + 1) / 2] * 2
    # A tensor that a graph has saved may be written to, for instance with the values it has.
    factor = torch.full((3,), 2.0)
    x = torch.ones(3, requires_grad=True)
    product = x * factor
    dist.broadcast(factor, 0)
    product.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3


def test_waits_on_the_autograd_thread(dist: ModuleType, rank: int, size: int) -> None:
    """Backward hooks call a collective and wait. The gradients are the mean over the ranks."""
    weights = [torch.full((3,), 1.0, requires_grad=True) for _ in range(4)]
    waited = []

    def reduce(grad: Any) -> Any:
        total = grad.clone()
        work = dist.all_reduce(total, async_op=True)
        work.wait()
        waited.append(threading.get_ident())
        return total / size

    for weight in weights:
        weight.register_hook(reduce)
    loss = sum((weight * (rank + 1.0) * (i + 1)).sum() for i, weight in enumerate(weights))
    thread = threading.Thread(target=loss.backward)  # type: ignore[union-attr]
    thread.start()
    thread.join(30)
    assert len(waited) == 4
    for i, weight in enumerate(weights):
        assert weight.grad is not None
        assert weight.grad.tolist() == [(i + 1) * (size + 1) / 2] * 3
