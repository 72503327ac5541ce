"""``get_future``: futures complete without a wait, with the value or with the error."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from paddlempi import errors
from paddlempi.torch import work as torch_work

SOON = 20.0


def total(size: int) -> float:
    return size * (size + 1) / 2


def test_callbacks_run_without_a_wait(dist: ModuleType, rank: int, size: int) -> None:
    done = threading.Event()
    seen: list[Any] = []
    x = torch.full((3,), rank + 1.0)
    future = dist.all_reduce(x, async_op=True).get_future()

    def look(ended: Any) -> None:
        seen.append((ended.value()[0].tolist(), threading.get_ident()))
        done.set()

    future.add_done_callback(look)
    assert done.wait(SOON)
    assert seen[0][0] == [total(size)] * 3
    assert future.done()


def test_then(dist: ModuleType, rank: int, size: int) -> None:
    x = torch.full((3,), rank + 1.0)
    future = dist.all_reduce(x, async_op=True).get_future()
    assert isinstance(future, torch.futures.Future)
    halved = future.then(lambda ended: ended.value()[0] / 2).then(lambda ended: ended.value() + 1)
    assert halved.wait().tolist() == [total(size) / 2 + 1] * 3
    assert future.wait()[0].data_ptr() == x.data_ptr()


def test_a_receive_has_a_future_too(dist: ModuleType, rank: int, size: int) -> None:
    into = torch.zeros(2)
    arrived = threading.Event()
    work = dist.irecv(into, src=(rank - 1) % size, tag=11)
    work.get_future().add_done_callback(lambda _: arrived.set())
    assert not arrived.wait(0.02)
    dist.barrier()
    dist.send(torch.full((2,), rank + 1.0), dst=(rank + 1) % size, tag=11)
    assert arrived.wait(SOON)
    assert into.tolist() == [(rank - 1) % size + 1.0] * 2


class Promise:
    """A replacement of torch's future, which takes no CUDA devices without a GPU."""

    def __init__(self, work: Any, devices: list[Any]) -> None:
        self.devices = devices
        self.done = threading.Event()

    def set_result(self, value: Any) -> None:
        self.value, self.current = value, list(streams)
        self.done.set()


streams: list[Any] = []
"""What is current while a future is completed."""


@contextmanager
def current(stream: Any) -> Iterator[None]:
    streams.append(stream)
    yield
    streams.remove(stream)


def test_a_future_of_cuda_tensors(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The future knows the devices. It completes under a new stream of each device."""
    devices = [torch.device("cuda", 1), torch.device("cuda", 0)]
    monkeypatch.setattr(torch_work, "_cuda_devices", lambda _: devices)
    monkeypatch.setattr(torch_work, "Promise", Promise)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: ("new", device))
    monkeypatch.setattr(torch.cuda, "stream", current)
    ordered: list[Any] = []
    settle = torch_work.OperationWork.result
    monkeypatch.setattr(
        torch_work.OperationWork,
        "result",
        lambda work: ordered.append(list(streams)) or settle(work),
    )
    x = torch.full((3,), rank + 1.0)
    promise = dist.all_reduce(x, async_op=True).get_future()
    assert promise.devices == devices
    assert promise.done.wait(SOON)
    assert promise.value[0].tolist() == [total(size)] * 3
    assert ordered == [promise.current] == [[("new", device) for device in devices]]
    assert not streams


def test_devices_of_tensors() -> None:
    class OnCuda(torch.Tensor):
        is_cuda, device = True, torch.device("cuda", 1)

    there = torch.zeros(2).as_subclass(OnCuda)
    assert torch_work._cuda_devices([torch.zeros(1), there, there]) == [torch.device("cuda", 1)]
    assert torch_work._cuda_devices(()) == []


def test_there_is_one(dist: ModuleType, rank: int, size: int) -> None:
    x = torch.full((1,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(work.get_future())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert len(found) == 4 and all(future is found[0] for future in found)
    assert work.get_future() is found[0]
    assert found[0].wait()[0].tolist() == [total(size)]


def test_after_the_end(dist: ModuleType, rank: int, size: int) -> None:
    x = torch.full((1,), rank + 1.0)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    future = work.get_future()
    assert future.done()
    ran: list[Any] = []
    future.add_done_callback(lambda ended: ran.append(ended.value()[0].item()))
    assert ran == [total(size)]


def test_of_several_operations(dist: ModuleType, rank: int, size: int) -> None:
    xs = [torch.full((2,), rank + 1.0), torch.full((3,), rank + 1, dtype=torch.int64)]
    work = dist.group.WORLD.allreduce_coalesced(xs)
    value = work.get_future().wait()
    assert [t.tolist() for t in value] == [[total(size)] * 2, [size * (size + 1) // 2] * 3]
    assert [t.data_ptr() for t in value] == [t.data_ptr() for t in xs]


def test_of_a_barrier(dist: ModuleType) -> None:
    assert dist.barrier(async_op=True).get_future().wait() == []


def test_collect_all(dist: ModuleType, rank: int, size: int) -> None:
    xs = [torch.full((2,), float(rank + i)) for i in range(5)]
    futures = [dist.all_reduce(x, async_op=True).get_future() for x in xs]
    ended = torch.futures.collect_all(futures).wait()
    expected = [[size * (size - 1) / 2 + i * size] * 2 for i in range(5)]
    assert [future.value()[0].tolist() for future in ended] == expected
    assert [value[0].tolist() for value in torch.futures.wait_all(futures)] == expected


def test_errors_keep_their_class(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    future = dist.all_reduce(torch.ones(2 + (rank == 0)), group=group, async_op=True).get_future()
    for read in (future.wait, future.wait, future.value):
        with pytest.raises(errors.MismatchError) as caught:
            read()
        assert isinstance(caught.value, dist.DistBackendError)
    seen: list[BaseException] = []

    def look(ended: Any) -> str:
        try:
            ended.value()
        except Exception as error:
            seen.append(error)
        return "looked"

    assert future.then(look).wait() == "looked"
    assert isinstance(seen[0], errors.MismatchError)
    # A callback that reads the value and does not catch the error fails with it.
    with pytest.raises(RuntimeError, match="all_reduce"):
        future.then(lambda ended: ended.value()[0]).wait()
    with pytest.raises(errors.MismatchError):
        torch.futures.wait_all([future])
    dist.destroy_process_group(group)


def test_an_error_after_the_end(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group(list(range(size)))
    work = dist.all_reduce(torch.ones(2 + (rank == 0)), group=group, async_op=True)
    with pytest.raises(errors.MismatchError):
        work.wait()
    with pytest.raises(errors.MismatchError):
        work.get_future().wait()
    dist.destroy_process_group(group)


def test_ddp_raises_what_the_operation_ended_with(dist: ModuleType, rank: int, size: int) -> None:
    """C++ reads the future's value, and backward raises the error of the operation."""
    group = dist.new_group(list(range(size)))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2), process_group=group)
    work: Any = None

    def hook(state, bucket):  # type: ignore[no-untyped-def] # torch inspects annotations as types
        nonlocal work
        wrong = torch.ones(2 + (rank == 0))
        work = dist.all_reduce(wrong, group=group, async_op=True)
        return work.get_future()

    model.register_comm_hook(None, hook)
    with pytest.raises(RuntimeError, match="all_reduce"):
        model(torch.ones(1, 3)).sum().backward()
    assert isinstance(work.exception(), errors.MismatchError)
    dist.destroy_process_group(group)


def test_many_in_flight(dist: ModuleType, rank: int, size: int) -> None:
    count, done = 1000, threading.Event()
    values: dict[int, float] = {}

    def note(i: int) -> Any:
        def look(ended: Any) -> None:
            values[i] = ended.value()[0].item()
            if len(values) == count:
                done.set()

        return look

    works = []
    for i in range(count):
        work = dist.all_reduce(torch.full((1,), float(rank + i)), async_op=True)
        work.get_future().add_done_callback(note(i))
        works.append(work)
    assert done.wait(60)
    assert values == {i: size * (size - 1) / 2 + i * size for i in range(count)}
    assert all(work.is_success() for work in works)
