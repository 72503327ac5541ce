"""Calls from several threads, and works that are dropped without a wait."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from types import ModuleType

import numpy as np
import pytest
from ranks_tools import works

pytestmark = pytest.mark.mpi(ranks=[2, 3])


def test_four_threads(dist: ModuleType, rank: int, size: int) -> None:
    rounds = 60
    failed = []

    def threads(*bodies):
        def guarded(body):
            try:
                body()
            except BaseException as error:
                failed.append(error)
                raise

        started = [threading.Thread(target=guarded, args=(body,)) for body in bodies]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        assert not failed, failed

    # One group. The threads agree on whose turn it is, as they must.
    turn = threading.Condition()
    at = [0]

    def on_one_group(me):
        for i in range(rounds):
            with turn:
                turn.wait_for(lambda i=i: at[0] == 4 * i + me)
                x = np.full(10 + me, rank + me + i, np.int64)
                work = dist.all_reduce(x, async_op=(i + me + rank) % 3 == 0)
                at[0] += 1
                turn.notify_all()
            if work is not None:
                work.wait()
            assert (x == sum(r + me + i for r in range(size))).all()

    threads(*(lambda me=me: on_one_group(me) for me in range(4)))

    # One group for every thread, all at the same time.
    groups = [dist.new_group(list(np.roll(range(size), i))) for i in range(4)]

    def on_own_group(me):
        for i in range(rounds):
            x = np.full(100 * me + 1, rank + me + i, np.float64)
            y = np.zeros(3)
            coming = dist.irecv(y, (rank - 1) % size, tag=me)
            work = dist.all_reduce(x, group=groups[me], async_op=i % 2 == me % 2)
            dist.send(np.full(3, float(i + me)), (rank + 1) % size, tag=me)
            coming.wait()
            assert (y == i + me).all()
            if work is not None:
                work.wait()
            assert (x == sum(r + me + i for r in range(size))).all()

    threads(*(lambda me=me: on_own_group(me) for me in range(4)))

    # Several threads make groups of different ranks at the same time.
    def makes_groups(me):
        for _ in range(3):
            group = dist.new_group(list(range(size)) if me == 0 else [rank])
            works(group)
            dist.destroy_process_group(group)

    threads(*(lambda me=me: makes_groups(me) for me in range(2)))

    # One thread waits in a collective to which another rank comes late. Other threads go on.
    def late():
        dist.barrier(groups[0])

    def meanwhile():
        for _ in range(20):
            works(groups[1])
        if rank == 0:
            late()

    if rank == 0:
        threads(meanwhile)
    else:
        threads(late, meanwhile)
    works()


@pytest.mark.mpi(ranks=2)
def test_dropped_works(dist: ModuleType, rank: int) -> None:
    """The operation of a dropped work goes on. At its end the tensors are released."""

    class Tensor(np.ndarray):
        """An array that can be weakly referenced."""

    def tensor(n, value):
        return np.full(n, value, np.float64).view(Tensor)

    held = []
    for n in (5, 1 << 18):
        for i in range(10):
            out, into, total = tensor(n, i), tensor(n, -1), tensor(n, rank + 1)
            held += [weakref.ref(out), weakref.ref(total)]
            seen = into[:1]
            dist.irecv(into, 1 - rank, tag=i)
            dist.isend(out, 1 - rank, tag=i)
            dist.all_reduce(total, async_op=True)
            del out, total
            if i % 5 == 4:
                dist.barrier()
                end = time.monotonic() + 10
                while seen[0] != i and time.monotonic() < end:
                    time.sleep(0.001)
            else:
                held.append(weakref.ref(into))
            del into
    works()
    end = time.monotonic() + 10
    alive = held
    while alive and time.monotonic() < end:
        time.sleep(0.05)
        dist.all_reduce(np.ones(1), async_op=True).wait()  # a new work takes dropped ones further
        gc.collect()
        alive = [x for x in held if x() is not None]
    assert not alive, len(alive)
    works()
