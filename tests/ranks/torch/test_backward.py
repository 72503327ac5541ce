"""The thread of a backward completes the futures of the collectives that the backward starts."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from models import Net, agree, alone, close, loss_of, seeded, train
from paddlempi import future as core_future
from paddlempi.torch import backward as torch_backward
from paddlempi.torch import callback_order
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

SMALL = 0.0005
"""A bucket's size in MB, so that Net has several."""

SOON = 20.0


class Call(torch.autograd.Function):
    """Calls a function in the backward. The gradient passes through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, function: Callable[[], None]) -> torch.Tensor:
        ctx.function = function
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.function()
        return gradients[0], None


def backward_with(function: Callable[[], None]) -> None:
    """Run a backward that calls ``function``."""
    Call.apply(torch.ones(2, requires_grad=True), function).sum().backward()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave all futures of a backward to its thread, however long this thread is not scheduled."""
    when_over = core_future.when_over

    def never_late(operation: Any, ending: Any, awaited: bool = False) -> bool:
        if not awaited:
            return when_over(operation, ending)
        given = [(ending, 0)]

        class Operation:
            done = property(lambda _: operation.done)

            def take_contexts(self) -> list[Any]:
                return [given.pop()] if given else []

            def wait(self, limit: float) -> None:
                operation.wait(limit)

        operations = torch_backward._callbacks[torch._C._current_graph_task_id()].operations
        assert operations.pop() is operation
        operations.append(Operation())
        return True

    monkeypatch.setattr(core_future, "when_over", never_late)


def test_the_backwards_thread_runs_callbacks(dist: ModuleType, rank: int, size: int) -> None:
    """They have run when the backward returns, also those of collectives that callbacks start."""
    ran: list[tuple[float, int]] = []

    def first(future: Any) -> None:
        (reduced,) = future.value()
        ran.append((reduced[0].item(), threading.get_ident()))
        dist.all_reduce(reduced, async_op=True).get_future().add_done_callback(second)

    def second(future: Any) -> None:
        ran.append((future.value()[0][0].item(), threading.get_ident()))

    def start() -> None:
        for i in range(3):
            work = dist.all_reduce(torch.full((2,), i + 1.0), async_op=True)
            work.get_future().add_done_callback(first)
            time.sleep(0.01)  # longer than the core's patience with those who wait

    backward_with(start)
    me = threading.get_ident()
    once, twice = [float(i * size) for i in (1, 2, 3)], [float(i * size**2) for i in (1, 2, 3)]
    assert ran == [(value, me) for value in once + twice]


@pytest.mark.usefixtures("patient")
def test_ddps_futures(dist: ModuleType, rank: int, size: int) -> None:
    start = seeded(Net)
    model = DDP(copy.deepcopy(start), bucket_cap_mb=SMALL)
    train(model, loss_of(size), rank)
    close(model, alone(start, loss_of(size), size))
    agree(dist, model)


def test_without_a_callback(dist: ModuleType, rank: int, size: int) -> None:
    """If the thread of a backward does nothing any more, another one completes the futures."""
    seen: list[int] = []
    ended = threading.Event()

    def note(future: Any) -> None:
        assert future.value()[0][0].item() == size
        seen.append(threading.get_ident())
        ended.set()

    def start() -> None:
        # Too long for an arrival slot: a short one may be over when all_reduce returns.
        work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
        work.get_future().add_done_callback(note)
        assert ended.wait(SOON)

    backward_with(start)
    assert len(seen) == 1 and seen[0] != threading.get_ident()


def test_an_error_in_the_backward(dist: ModuleType, rank: int, size: int) -> None:
    """No callback runs then. The futures are completed all the same, and nothing is left over."""
    futures: list[Any] = []

    def start() -> None:
        futures.append(dist.all_reduce(torch.ones(2), async_op=True).get_future())
        raise ValueError("in the backward")

    for _ in range(3):
        with pytest.raises(ValueError, match="in the backward"):
            backward_with(start)
    ended = threading.Event()
    torch.futures.collect_all(futures).add_done_callback(lambda _: ended.set())
    assert ended.wait(SOON)
    assert [future.value()[0].tolist() for future in futures] == [[size] * 2] * 3
    assert not torch_backward._callbacks and not callback_order._ends

    start_model = seeded(Net)
    model = train(DDP(copy.deepcopy(start_model), bucket_cap_mb=SMALL), loss_of(size), rank)
    close(model, alone(start_model, loss_of(size), size))


def test_waiting_for_a_future_in_the_backward(dist: ModuleType, rank: int, size: int) -> None:
    """``wait`` of a future and of one made by ``then``, and a Work, in the backward and in
    callbacks."""
    ran: list[float] = []

    def one(x: float) -> Any:
        return dist.all_reduce(torch.full((2,), x), async_op=True)

    def again(future: Any) -> torch.Tensor:
        x = future.value()[0][0].item()
        ran.append(one(x).get_future().wait()[0][0].item())
        ran.append(one(x).get_future().then(lambda f: f.value()[0][0].item()).wait())
        return future.value()[0]

    def start() -> None:
        ran.append(one(1).get_future().wait()[0][0].item())
        ran.append(one(2).get_future().then(lambda f: f.value()[0][0].item()).wait())
        work = one(3)
        future = work.get_future()
        work.wait()
        ran.append(future.wait()[0][0].item())
        one(4).get_future().then(again)

    backward_with(start)
    assert ran[:3] == [1 * size, 2 * size, 3 * size]
    assert ran[3:] == [4 * size**2] * 2


def test_a_message_is_left_to_the_thread(
    dist: ModuleType, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a backward does not wait for a message that comes after it."""
    monkeypatch.setattr(callback_order, "LIMIT", 1e6)
    into = torch.zeros(2)
    arrived = threading.Event()

    def start() -> None:
        work = dist.irecv(into, src=(rank - 1) % size, tag=5)
        work.get_future().add_done_callback(lambda _: arrived.set())

    backward_with(start)
    dist.send(torch.full((2,), rank + 1.0), dst=(rank + 1) % size, tag=5)
    assert arrived.wait(SOON)
    assert into.tolist() == [(rank - 1) % size + 1.0] * 2


def test_a_collective_that_comes_after_the_backward(dist: ModuleType, rank: int, size: int) -> None:
    """The backward does not wait for ever for what another rank starts after this rank's send."""
    group = dist.new_group(list(range(size)))
    seen: list[Any] = []

    def start() -> None:
        work = dist.all_reduce(torch.ones(2), group=group, async_op=True)
        seen.append(work.get_future())

    if rank == 0:
        backward_with(start)
        for other in range(1, size):
            dist.send(torch.ones(1), other)
    else:
        dist.recv(torch.ones(1), 0)
        backward_with(start)
    assert seen[0].wait()[0].tolist() == [size] * 2
    dist.destroy_process_group(group)


class Again(Net):
    """Computes two of its layers again in the backward, in backwards of their own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.requires_grad_()
        x = checkpoint(lambda x: torch.tanh(self.first(x)), x, use_reentrant=True)
        x = checkpoint(lambda x: torch.tanh(self.middle(x)), x, use_reentrant=True)
        return self.last(x)


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("view", [False, True], ids=["copy", "view"])
def test_reentrant_checkpoints(
    dist: ModuleType, rank: int, size: int, static: bool, view: bool
) -> None:
    """Backwards inside a backward start collectives, too."""
    start = seeded(Net)
    model = DDP(
        seeded(Again), bucket_cap_mb=SMALL, static_graph=static, gradient_as_bucket_view=view
    )
    train(model, loss_of(size), rank)
    close(model, alone(start, loss_of(size), size))
    agree(dist, model)


def test_a_final_callback_that_waits(dist: ModuleType, rank: int, size: int) -> None:
    """Another final callback may come first and wait for a future, and may start collectives."""
    ran: list[float] = []
    futures: list[Any] = []

    def one(x: float) -> Any:
        return dist.all_reduce(torch.full((2,), x), async_op=True).get_future()

    def callback() -> None:
        chained = futures[0].then(lambda f: f.value()[0][0].item())
        ran.append(chained.wait())
        one(3.0).add_done_callback(lambda f: ran.append(f.value()[0][0].item()))

    def start() -> None:
        torch.autograd.Variable._execution_engine.queue_callback(callback)
        futures.append(one(2.0))

    backward_with(start)
    assert ran[0] == 2 * size
    ended = threading.Event()
    one(4.0).add_done_callback(lambda _: ended.set())
    assert ended.wait(SOON)
    assert ran == [2 * size, 3 * size]
