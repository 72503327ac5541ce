"""Works and futures over a fake core."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import time
import weakref
from typing import Any

import paddlempi as dist
import pytest
from api_fake import FakeCore
from paddlempi.errors import ArgumentError, MismatchError, NotReadyError


class Tensor(bytearray):
    """A tensor that can be weakly referenced."""


def begin(core: FakeCore, **arguments: Any) -> Any:
    tensor = Tensor(4)
    work = dist.all_reduce(tensor, async_op=True, **arguments)
    assert work is not None
    return work, tensor


def test_wait(core: FakeCore) -> None:
    work, tensor = begin(core)
    assert core.calls[0].flags == 1
    assert not work.is_completed()
    assert not work.is_success()
    assert work.exception() is None
    with pytest.raises(NotReadyError):
        work.wait(0.001)
    core.end(1)
    assert work.is_completed()
    assert work.wait()
    assert work.is_success()
    assert work.result() == [tensor]
    assert work.result()[0] is tensor
    with pytest.raises(ArgumentError, match="no source"):
        work.source_rank()
    del work
    gc.collect()
    assert core.released == [1]


def test_a_tensor_that_is_only_read_is_kept(core: FakeCore) -> None:
    """A broadcast writes nothing on its root, but MPI reads the tensor until the end."""
    tensor = Tensor(4)
    work = dist.broadcast(tensor, dist.get_rank(), async_op=True)
    assert work is not None
    assert any(kept is tensor for kept in work._op.tensors)
    core.end(1)
    assert work.wait() and work.result() == []
    assert work._op.tensors is None


def test_error(core: FakeCore) -> None:
    work, _ = begin(core)
    error = MismatchError("rank 2 called broadcast")
    core.end(1, error)
    for _ in range(2):
        with pytest.raises(MismatchError):
            work.wait()
    assert work.is_completed()
    assert not work.is_success()
    assert work.exception() is error


def test_source_of_a_receive(core: FakeCore) -> None:
    group = dist.new_group([2, 1])
    work = dist.irecv(Tensor(4), group=group)
    assert work is not None
    assert core.calls[0][:6] == (14, 7, None, work._output, 0, 1)
    assert core.calls[0].fields["peer"] == -1
    core.end(1, (0, 4, 0, 0))
    assert work.source_rank() == 2


def test_a_work_keeps_its_tensors(core: FakeCore) -> None:
    work, tensor = begin(core)
    core.calls.clear()  # the fake core keeps what it was given
    seen = weakref.ref(tensor)
    del tensor, work
    gc.collect()
    assert seen() is not None, "dropped before its end: MPI still writes there"
    assert 1 in core.released
    core.end(1)
    gc.collect()
    assert seen() is None


def test_tensors_are_let_go_at_the_end(core: FakeCore) -> None:
    tensor = Tensor(4)
    work = dist.isend(tensor, 0)
    assert work is not None
    core.calls.clear()  # the fake core keeps what it was given
    seen = weakref.ref(tensor)
    del tensor
    core.end(1)
    work.wait()
    assert seen() is None


def test_an_operation_that_was_over_before_anybody_asked(core: FakeCore) -> None:
    work, tensor = begin(core)
    core.end(1)
    future = work.get_future()
    assert not core.contexts, "nothing is to be reported"
    assert future.result(0) == [tensor]


def test_future_completes_by_itself(core: FakeCore) -> None:
    work, tensor = begin(core)
    future = work.get_future()
    assert work.get_future() is future
    doubled = future.then(lambda done: len(done.value()) * 2)
    called = threading.Event()
    future.add_done_callback(lambda _: called.set())
    assert not future.done()
    with pytest.raises(concurrent.futures.TimeoutError):  # Python's own since 3.11
        future.value()
    core.end(1)
    assert called.wait(10)
    assert future.wait() == [tensor]
    assert doubled.result(10) == 2
    assert not future.cancel()


def test_future_of_an_error(core: FakeCore) -> None:
    work, _ = begin(core)
    future = work.get_future()
    after = future.then(lambda done: done.value())
    core.end(1, MismatchError("no"))
    with pytest.raises(MismatchError):
        future.result(10)
    with pytest.raises(MismatchError):
        after.result(10)


def test_future_of_a_work_that_has_ended(core: FakeCore) -> None:
    work, tensor = begin(core)
    core.end(1)
    assert work.get_future().result(0) == [tensor]


def test_a_callback_waits_for_a_work_that_it_began(core: FakeCore) -> None:
    """A callback that waits holds up no other completion: two levels deep, several times."""
    seen: list[str] = []

    def inner(done: object) -> str:
        work, _ = begin(core)
        threading.Timer(0.01, core.end, [work._op.number]).start()
        work.get_future().wait()
        seen.append("inner")
        return "inner"

    def outer(done: object) -> str:
        work, _ = begin(core)
        threading.Timer(0.01, core.end, [work._op.number]).start()
        value: str = work.get_future().then(inner).result(10)
        seen.append("outer of " + value)
        return value

    for _ in range(3):
        seen.clear()
        first, _ = begin(core)
        second, _ = begin(core)
        after = [work.get_future().then(outer) for work in (first, second)]
        core.end(first._op.number)
        core.end(second._op.number)
        assert [future.result(10) for future in after] == ["inner", "inner"]
        assert seen == ["inner", "outer of inner"] * 2


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), ValueError("no")], ids=repr)
def test_what_a_callback_raises_is_logged_and_ends_nothing(
    core: FakeCore, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise error

    called = threading.Event()
    work, tensor = begin(core)
    future = work.get_future()
    future.add_done_callback(fail)
    future.add_done_callback(lambda _: called.set())
    later, other = begin(core)
    last = later.get_future()
    core.end(work._op.number)
    assert called.wait(10)
    core.end(later._op.number)
    assert last.result(10) == [other]
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]
    if not isinstance(error, Exception):
        with pytest.raises(type(error)):  # done: it is called at once, by this thread
            future.add_done_callback(fail)
    assert future.result(0) == [tensor]


def test_futures_end_with_the_library(core: FakeCore) -> None:
    work, _ = begin(core)
    future = work.get_future()
    dist.destroy_process_group()
    with pytest.raises(dist.errors.GroupDestroyedError):
        future.result(10)
    dist.init_process_group()
    work, tensor = begin(core)
    future = work.get_future()
    core.end(2)
    assert future.result(10) == [tensor]


def test_await(core: FakeCore) -> None:
    work, tensor = begin(core)

    async def both() -> list[Any]:
        threading.Timer(0.02, core.end, [1]).start()
        return await work  # type: ignore[no-any-return]

    assert asyncio.run(both()) == [tensor]

    async def again() -> list[Any]:
        return await work  # type: ignore[no-any-return]

    assert asyncio.run(again()) == [tensor]


def test_await_that_is_cancelled_leaves_the_work(core: FakeCore) -> None:
    work, tensor = begin(core)

    async def impatient() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(work, 0.02)

    asyncio.run(impatient())
    core.end(1)
    assert work.get_future().result(10) == [tensor]


def test_threads_may_wait_for_one_work(core: FakeCore) -> None:
    work, _ = begin(core)
    seen: list[bool] = []

    def wait() -> None:
        while not work.is_completed():
            time.sleep(0.001)
        seen.append(work.wait())

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    core.end(1)
    for thread in threads:
        thread.join(10)
    assert seen == [True] * 4


def test_batch(core: FakeCore) -> None:
    batch = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, Tensor(4), 2, tag=3), dist.P2POp(dist.irecv, Tensor(4), 0)]
    )
    assert len(batch) == 2
    begun = [(call.code, call.fields["peer"], call.fields["tag"]) for call in core.calls]
    assert begun == [(13, 2, 3), (14, 0, 0)]
    with pytest.raises(dist.errors.DtypeError, match=r"p2p_op_list\[0\]"):
        dist.batch_isend_irecv([3])  # type: ignore[list-item]
    with pytest.raises(dist.errors.DtypeError, match="isend"):
        dist.P2POp(dist.send, Tensor(4), 0)  # type: ignore[arg-type]


def test_point_to_point(core: FakeCore) -> None:
    core.answer = (0, 4, 0)
    a, b = Tensor(4), Tensor(4)
    dist.send(a, 2, tag=5)
    assert dist.recv(b) == 0
    assert dist.sendrecv(a, 2, b, None, send_tag=1, recv_tag=2) == 0
    assert dist.probe(tag=4) == (0, 4, 0)
    send, recv, both, probe = core.calls
    assert (send.code, send.send, send.recv) == (13, a, None)
    assert (send.fields["peer"], send.fields["tag"]) == (2, 5)
    assert (recv.code, recv.send, recv.recv, recv.fields["peer"]) == (14, None, b, -1)
    assert both[:4] == (15, 0, a, b)
    assert (both.fields["peer"], both.fields["tag"]) == (2, 1)
    assert (both.fields["peer2"], both.fields["tag2"]) == (-1, 2)
    assert (probe.code, probe.fields["peer"], probe.fields["tag"]) == (16, -1, 4)
    with pytest.raises(ArgumentError, match="dst or group_dst"):
        dist.send(a)
    with pytest.raises(ArgumentError, match="dst=3"):
        dist.send(a, 3)
    with pytest.raises(ArgumentError, match="src=-1"):
        dist.recv(a, -1)
    assert core.refusals == []
