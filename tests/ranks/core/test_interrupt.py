"""Ctrl-C during a wait: KeyboardInterrupt soon after, and what the group can still do."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from contract import MPI
from paddlempi import errors
from ranks_tools import impatient_group, over_nodes, raises, repeat_over_nodes, works

pytestmark = pytest.mark.mpi(ranks=2)


@contextmanager
def struck(after: float = 0.2) -> Iterator[None]:
    """Send this process a SIGINT in a moment. The block must raise KeyboardInterrupt soon."""
    sent = [0.0]

    def strike() -> None:
        sent[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    began = time.monotonic()
    with raises(KeyboardInterrupt):  # it takes its time, if the test run asks for delays
        threading.Timer(after, strike).start()
        yield
    ended = time.monotonic()
    assert ended - began >= after
    # The core looks for a signal every few milliseconds. A busy machine may take long to wake it.
    assert ended - sent[0] < 15.0, ended - sent[0]


def test_interrupted(dist: ModuleType, rank: int) -> None:
    """Rank 0 gets a SIGINT in every kind of wait. Rank 1 does not come, or comes late."""
    x = np.zeros(4)
    groups = [dist.new_group([0, 1]) for _ in range(3)]
    if rank == 0:
        # Messages: no group breaks, and a message that comes later is received.
        with struck():
            dist.recv(x, 1, tag=1)
        with struck():
            dist.probe(1, tag=1)
        y = np.zeros(4)
        work = dist.irecv(y, 1, tag=2)
        with struck():
            work.wait()
        with struck():
            work.wait(20.0)
        works_async = dist.all_reduce(np.ones(2), async_op=True)
        with struck():
            works_async.wait()
        dist.send(np.ones(1), 1, tag=3)
        dist.recv(x, 1, tag=1)
        assert (x == 1).all()
        work.wait()
        assert (y == 2).all()
        works_async.wait()
        works()
        # A collective that was announced is given up for all members.
        with struck():
            dist.all_reduce(x, group=groups[0])
        with raises(errors.GroupBrokenError, "interrupted"):
            dist.barrier(groups[0])
        # A collective whose turn has not come is refused.
        first = dist.all_reduce(np.ones(2), group=groups[1], async_op=True)
        with struck():
            dist.barrier(groups[1])
        dist.send(np.ones(1), 1, tag=3)
        first.wait()
        works(groups[1])
        with struck():
            dist.new_group([0, 1], timeout=20.0)
        dist.send(np.ones(1), 1, tag=3)
        # destroy waits for the operations that are under way.
        last = dist.all_reduce(np.ones(2), group=groups[2], async_op=True)
        with struck():
            dist.destroy_process_group(groups[2])
        dist.send(np.ones(1), 1, tag=3)
        last.wait()
    else:
        dist.recv(np.zeros(1), 0, tag=3)
        dist.send(np.full(4, 1.0), 0, tag=1)
        dist.send(np.full(4, 2.0), 0, tag=2)
        dist.all_reduce(np.ones(2))
        works()
        dist.recv(np.zeros(1), 0, tag=3)
        with raises(errors.GroupBrokenError, "[0]", "interrupted", ranks=[0], most=3.0):
            repeat_over_nodes(lambda: dist.all_reduce(x, group=groups[0]))
        dist.all_reduce(np.ones(2), group=groups[1])
        with raises(errors.RefusedError, ranks=[0]):
            dist.barrier(groups[1])
        works(groups[1])
        dist.recv(np.zeros(1), 0, tag=3)
        dist.recv(np.zeros(1), 0, tag=3)
        dist.all_reduce(np.ones(2), group=groups[2])
    works(dist.new_group([0, 1]))
    works()


def test_what_mpi_goes_on_reading(dist: ModuleType, rank: int) -> None:
    """A send raises before MPI is done with its array. The array is kept until then."""
    seen = []

    def send(group: Any, given_up: Callable[[], AbstractContextManager[None]]) -> None:
        tensor = np.ones(4 << 20)
        seen.append(weakref.ref(tensor))
        work = dist.isend(tensor, 1, group=group)
        del tensor
        if MPI == "impi" and over_nodes():  # it copies the message, so the send ends
            work.wait()
        else:
            with given_up():
                work.wait()

    groups = [impatient_group(0.5, [0, 1]), dist.new_group([0, 1])]
    if rank == 0:
        send(groups[0], lambda: raises(errors.TimeoutError))
        send(groups[1], struck)
        gc.collect()
        kept = all(tensor() is not None for tensor in seen)
        assert kept or (MPI == "impi" and over_nodes())
        dist.send(np.ones(1), 1)
        # MPI can end the sends now. The next calls notice that and release the arrays.
        end = time.monotonic() + 20
        while any(tensor() is not None for tensor in seen) and time.monotonic() < end:
            dist.isend(np.ones(1), 0).wait()
            dist.recv(np.zeros(1), 0)
            gc.collect()
        assert not any(tensor() is not None for tensor in seen)
    else:
        dist.recv(np.ones(1), 0)
        for group in groups:
            taken = np.zeros(4 << 20)
            dist.recv(taken, 0, group=group)
            assert (taken == 1).all()
    dist.barrier()
    for group in groups:
        dist.destroy_process_group(group)
    works()


def test_a_broken_group_gives_its_memory_back(dist: ModuleType, rank: int) -> None:
    """The members' memory for arrivals is unmapped when the group is destroyed, broken or not."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("paddlempi-arrive")

    before = mapped()
    for _ in range(3):
        group = dist.new_group([0, 1])
        if rank == 0:
            with struck():
                dist.barrier(group)
            dist.send(np.ones(1), 1)
        else:
            dist.recv(np.zeros(1), 0)
            with raises(errors.GroupBrokenError, "interrupted", ranks=[0]):
                repeat_over_nodes(partial(dist.barrier, group))
        dist.destroy_process_group(group)
    assert mapped() <= before
    works()
