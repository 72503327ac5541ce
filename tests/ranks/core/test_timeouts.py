"""Deadlines: errors name the missing ranks, and the world stays usable."""

from __future__ import annotations

import time
from types import ModuleType

import numpy as np
import pytest
from paddlempi import errors
from ranks_tools import impatient_group, over_nodes, raises, repeat_over_nodes, works

pytestmark = pytest.mark.mpi(ranks=2)


def say(dist: ModuleType, dst: int) -> None:
    """Let rank ``dst`` go on, which waits in ``hear``."""
    dist.send(np.ones(1), dst, tag=77)


def hear(dist: ModuleType, src: int) -> None:
    dist.recv(np.zeros(1), src, tag=77)


@pytest.mark.mpi(ranks=[2, 3])
def test_absent_from_all_reduce(dist: ModuleType, rank: int, size: int) -> None:
    group = impatient_group(0.4)
    absent = size - 1
    if rank != absent:
        x = np.full(8, rank, np.float32)
        words = "all_reduce(float32[8], SUM)", "400ms", f"rank(s) [{absent}] never came"
        # The first deadline that passes ends the waits of all ranks. So the time is taken from
        # before a barrier, before which none of them began.
        with raises(errors.TimeoutError, *words, ranks=[absent], least=0.4, most=3.0):
            dist.barrier()
            dist.all_reduce(x, group=group)
        for use in (
            lambda: dist.all_reduce(x, group=group),
            lambda: dist.send(x, absent, group=group),
        ):
            with raises(errors.GroupBrokenError, "broken", "never came", most=3.0):
                use()
        say(dist, absent)
    else:
        dist.barrier()
        for other in range(absent):
            hear(dist, other)
        # The other ranks have given up, so the late rank does not wait for them. The error names
        # the one whose deadline passed first, or several.
        gave_up = "all_reduce", "gave up waiting" + ("" if over_nodes() else " for this rank")
        with raises(errors.GroupBrokenError, *gave_up, among=range(absent), most=3.0):
            zeros = np.zeros(8, np.float32)
            repeat_over_nodes(lambda: dist.all_reduce(zeros, group=group))
        with raises(errors.GroupBrokenError, most=3.0):
            dist.barrier(group=group)
    works()
    dist.destroy_process_group(group)
    with raises(errors.GroupDestroyedError, "destroyed"):
        dist.barrier(group=group)
    works()


def test_absent_from_async(dist: ModuleType, rank: int) -> None:
    group = impatient_group(0.5, [1, 0])
    if rank == 0:
        x, y = np.ones(4), np.ones(4)
        first = dist.all_reduce(x, group=group, async_op=True)
        second = dist.broadcast(y, 0, group=group, async_op=True)
        with raises(errors.NotReadyError, "goes on", least=0.1, most=3.0):
            first.wait(0.1)
        assert not first.is_completed() and first.exception() is None
        with raises(errors.TimeoutError, "all_reduce", "[1 0]", ranks=[1], most=3.0):
            first.wait()
        with raises(errors.GroupBrokenError, "broadcast"):
            second.wait()
        assert first.is_completed() and isinstance(first.exception(), errors.TimeoutError)
        say(dist, 1)
    else:
        hear(dist, 0)
        with raises(errors.GroupBrokenError, ranks=[0], most=3.0):
            repeat_over_nodes(
                lambda: dist.all_reduce(np.ones(4), group=group, async_op=True).wait()
            )
    works()
    dist.destroy_process_group(group)


def test_a_limited_wait_leaves_the_work(
    dist: ModuleType, rank: int, reversed_group: object
) -> None:
    x = np.full(5, rank + 1.0)
    y = np.full(5, -1.0)
    if rank == 0:
        total, message = dist.all_reduce(x, async_op=True), dist.irecv(y, 1)
        for work in total, message:
            with raises(errors.NotReadyError, least=0.2, most=3.0):
                work.wait(0.2)
    dist.barrier(reversed_group)
    if rank == 0:
        dist.recv(np.zeros(1), 1, tag=1)
        message.wait()
        total.wait()
        assert (y == 7).all()
    else:
        dist.all_reduce(x)
        dist.send(np.full(5, 7.0), 0)
        dist.send(np.zeros(1), 0, tag=1)
    works()
    assert (x == 3).all()


def test_message_never_comes(dist: ModuleType, rank: int) -> None:
    pair = impatient_group(0.3, [1, 0])
    x = np.zeros(6, np.int32)
    if rank == 0:
        words = "recv of 24 bytes", "(tag 5)", "300ms", "[1 0]"
        with raises(errors.TimeoutError, *words, ranks=[1], least=0.3, most=4.0):
            dist.recv(x, 1, group=pair, tag=5)
        with raises(errors.TimeoutError, "any rank", least=0.3, most=4.0):
            dist.recv(x, group=pair, tag=5)
        with raises(errors.TimeoutError, "probe", "tag 6", ranks=[1], least=0.3, most=4.0):
            dist.probe(1, group=pair, tag=6)
        work = dist.irecv(x, 1, group=pair, tag=5)
        with raises(errors.TimeoutError, "recv", ranks=[1], most=4.0):
            work.wait()
    dist.barrier()
    # A message that comes later is received whole by a later recv.
    if rank == 1:
        for i in range(3):
            dist.send(np.full(6, i, np.int32), 0, group=pair, tag=5)
    else:
        for i in range(3):
            assert dist.recv(x, 1, group=pair, tag=5) == 1
            assert (x == i).all()
    works(pair)
    works()
    dist.destroy_process_group(pair)


@pytest.mark.mpi(ranks=3)
def test_member_never_makes_the_group(dist: ModuleType, rank: int) -> None:
    groups = []
    if rank != 2:
        with raises(errors.TimeoutError, "new_group", "[2]", "600ms", ranks=[2], least=0.5, most=6):
            dist.new_group([0, 1, 2], timeout=0.6)
        groups.append(dist.new_group([0, 1], timeout=5.0))
        works(groups[-1])
    works()
    if rank != 0:  # rank 0 collects the others, and it is the missing one
        with raises(errors.TimeoutError, "new_group", "[0]", ranks=[0], least=0.5, most=6):
            dist.new_group([0, 1, 2], timeout=0.6)
    works()
    # Now all ranks come, some of them late. Failed attempts do not count.
    time.sleep(0.2 * rank)
    groups.append(dist.new_group([0, 1, 2], timeout=10.0))
    works(groups[-1])
    for group in groups:
        dist.destroy_process_group(group)


@pytest.mark.mpi(ranks=3)
def test_monitored_barrier(dist: ModuleType, rank: int, reversed_group: object) -> None:
    dist.monitored_barrier(timeout=20.0)
    if rank == 1:
        for other in 0, 2:
            hear(dist, other)
    else:
        with raises(errors.TimeoutError, "barrier", "[1]", "400ms", ranks=[1], least=0.4, most=3.0):
            dist.monitored_barrier(reversed_group, timeout=0.4)
        say(dist, 1)
    works()
