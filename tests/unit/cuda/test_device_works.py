"""Works and futures on device tensors, over a fake core: order, and how long tensors are kept."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import paddlempi as dist
import pytest
from api_fake import FakeCore
from paddlempi import _buffer
from paddlempi.errors import CudaError

ON_DEVICE_0 = (-1, 0, -1, 1)
"""What the core's wait answers where the device still works on it."""


class Tensor:
    """A tensor in device memory. ``current`` holds the framework's current stream of a thread."""

    current = threading.local()

    def __init__(self) -> None:
        self.recorded: list[int] = []

    @classmethod
    def stream(cls) -> int:
        return getattr(cls.current, "stream", 7)


class Mute(Tensor):
    """A tensor of a framework whose allocator cannot be told about streams."""


def describe(_: Tensor) -> _buffer.Description:
    return 4096, 12, (3,), None, 2, 0, False, Tensor.stream()


def tells(_: Tensor) -> Callable[[], int]:
    return Tensor.stream


def record(tensor: Tensor) -> bool:
    tensor.recorded.append(Tensor.stream())
    return True


@pytest.fixture(autouse=True)
def kinds() -> Iterator[None]:
    _buffer.register(Tensor, _buffer.Kind(describe, None, Tensor, tells, record))
    _buffer.register(Mute, _buffer.Kind(describe, None, Mute, tells))
    Tensor.current.stream = 7
    yield
    for kind in (Tensor, Mute):
        del _buffer._kinds[kind]
    gc.collect()  # a work and its error refer to each other


def begin(core: FakeCore, kind: type[Tensor] = Tensor) -> Any:
    tensor = kind()
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    core.calls.clear()  # the fake core keeps what it was given
    return work, tensor


def test_wait_orders_the_current_stream(core: FakeCore) -> None:
    work, tensor = begin(core)
    core.end(1, ON_DEVICE_0)
    Tensor.current.stream = 8
    assert work.wait()
    assert core.ordered == [(1, 8)]
    assert tensor.recorded == [8]
    Tensor.current.stream = 9
    assert work.result() == [tensor]
    assert core.ordered == [(1, 8), (1, 9)], "the second stream must be ordered, too"


def test_completed_when_the_device_is(core: FakeCore) -> None:
    work, _ = begin(core)
    core.end(1, ON_DEVICE_0)
    assert not work.is_completed()
    assert not work.is_success()
    work.wait()
    assert not work.is_completed()
    core.queued.clear()
    assert work.is_completed()
    assert work.is_success()
    core.ordered.clear()
    work.wait()
    assert not core.ordered, "the work has ended on its device, so no stream has to wait"


def test_a_work_that_was_never_waited_for(core: FakeCore) -> None:
    work, _ = begin(core)
    core.end(1, ON_DEVICE_0)
    core.queued.clear()
    assert work.is_completed()
    assert work._op.tensors is None
    assert not core.ordered


def test_source_of_a_receive(core: FakeCore) -> None:
    work = dist.irecv(Tensor())
    assert work is not None
    core.end(1, (2, 12, 0, 1))
    assert work.source_rank() == 2
    assert core.ordered == [(1, 7)]


def test_tensors_go_once_the_allocator_knows(core: FakeCore) -> None:
    work, tensor = begin(core)
    seen = weakref.ref(tensor)
    core.end(1, ON_DEVICE_0)
    work.wait()
    work._output = None  # as of a send, which has no output
    del tensor
    assert seen() is None
    del work
    assert core.released == [1]


@pytest.mark.parametrize("waited", [False, True])
def test_tensors_stay_until_the_device_is_done(core: FakeCore, waited: bool) -> None:
    """They stay if the allocator cannot be told about streams, or if no thread has waited."""
    work, tensor = begin(core, Mute if waited else Tensor)
    seen = weakref.ref(tensor)
    core.end(1, ON_DEVICE_0)
    if waited:
        work.wait()
    del tensor, work
    gc.collect()
    assert core.released == [1]
    assert seen() is not None
    core.queued.clear()
    core.collect()
    gc.collect()
    assert seen() is None


def test_a_host_tensor_stays(core: FakeCore) -> None:
    """Copies out of the host tensor may be queued, and no allocator knows of them."""
    tensor, host = Tensor(), bytearray(4)
    work = dist.all_gather([tensor, tensor, tensor], host, async_op=True)
    assert work is not None
    core.end(1, ON_DEVICE_0)
    work.wait()
    assert tensor.recorded
    assert work._tail.tensors is not None
    core.queued.clear()
    assert work.is_completed()
    assert work._tail.tensors is None


def test_many_waiters_make_one_tail(core: FakeCore) -> None:
    work, _ = begin(core)
    core.end(1, ON_DEVICE_0)
    threads = [threading.Thread(target=work.wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(core.ordered) == 8
    del work
    gc.collect()
    assert core.released == [1]


def test_future(core: FakeCore) -> None:
    work, tensor = begin(core)
    future = work.get_future()
    inside: list[Any] = []
    called = threading.Event()

    def callback(done: Any) -> None:
        Tensor.current.stream = 20
        inside.append(done.value())
        called.set()

    future.add_done_callback(callback)
    core.end(1, ON_DEVICE_0)
    assert called.wait(10), "a future is done when its last kernel is queued"
    assert inside == [[tensor]]
    assert core.ordered == [(1, 20)], "only the callback's stream must be ordered"
    Tensor.current.stream = 30
    assert future.wait() == [tensor]
    assert core.ordered[-1] == (1, 30)


def test_future_of_a_work_that_was_waited_for(core: FakeCore) -> None:
    work, tensor = begin(core)
    core.end(1, ON_DEVICE_0)
    work.wait()
    assert work.get_future().result(0) == [tensor]


def test_a_future_outlives_its_work(core: FakeCore) -> None:
    work, _ = begin(core)
    future = work.get_future()
    core.end(1, ON_DEVICE_0)
    future.result(10)
    del work
    gc.collect()
    assert not core.released, "the future may still have to order another stream"
    future.result()
    del future
    gc.collect()
    assert core.released == [1]


def test_await(core: FakeCore) -> None:
    work, tensor = begin(core)

    async def main() -> list[Any]:
        asyncio.get_running_loop().call_later(0.02, core.end, 1, ON_DEVICE_0)
        return list(await work)

    Tensor.current.stream = 11
    assert asyncio.run(main()) == [tensor]
    assert core.ordered[-1] == (1, 11)


def test_a_device_that_is_lost(core: FakeCore) -> None:
    work, _ = begin(core)
    core.end(1, ON_DEVICE_0)
    core.lost = CudaError("CUDA_ERROR_ILLEGAL_ADDRESS")
    with pytest.raises(CudaError):
        work.wait()
    assert work.is_completed()
    assert work.exception() is core.lost
    with pytest.raises(CudaError):
        work.wait()
    other, tensor = begin(core)
    core.end(2, ON_DEVICE_0)
    seen = weakref.ref(tensor)
    del tensor, other
    gc.collect()
    assert seen() is None
    core.lost = None  # its traceback would keep the work into the next test
