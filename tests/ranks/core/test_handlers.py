"""Signal handlers that run while the main thread waits in the library."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import errors
from ranks_tools import raises, works

pytestmark = pytest.mark.mpi(ranks=2)

Handle = Callable[[Callable[..., Any]], None]


@pytest.fixture
def on_signal() -> Iterator[Handle]:
    """A function that sets the handler of SIGUSR1. The handler before comes back at the end."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


def test_a_handler_that_calls_a_collective(dist: ModuleType, rank: int, on_signal: Handle) -> None:
    """The handler's call would wait for the call that it interrupts. An error says what to do."""
    group, other = dist.new_group([0, 1]), dist.new_group([1, 0])
    seen = []

    def handler(*_: object) -> None:
        for call in (
            lambda: dist.all_reduce(np.ones(2), group=group),
            lambda: dist.barrier(group, async_op=True),
        ):
            try:
                call()
                seen.append(None)
            except BaseException as error:
                seen.append(error)
        if rank == 0:
            # Messages and another group's collectives are allowed.
            dist.send(np.full(1, 3.0), 1)
            works(other)
        dist.group.to_seconds(1.0, "it runs to its end")

    on_signal(handler)

    def strike() -> None:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()

    def struck() -> None:
        assert len(seen) == 2 and all(type(e) is errors.ReentrantError for e in seen), seen
        assert "set a flag" in str(seen[0]) and "all_reduce" in str(seen[0])
        seen.clear()

    if rank == 0:
        strike()
        x = np.ones(3)
        dist.all_reduce(x, group=group)  # the other rank comes after the handler has run
        assert (x == 2).all()
        struck()
        strike()
        work = dist.all_reduce(x, group=group, async_op=True)
        work.wait()
        assert (x == 4).all()
        struck()
    else:
        for value in (1.0, 2.0):
            got = np.zeros(1)
            dist.recv(got, 0)
            assert got[0] == 3
            works(other)
            dist.all_reduce(np.full(3, value), group=group)
    # Between two calls the thread waits for nothing, so a handler may call a collective there.
    calls = []
    on_signal(lambda *_: calls.append(works(group)))
    os.kill(os.getpid(), signal.SIGUSR1)
    while not calls:
        time.sleep(0.01)
    # An operation that is queued behind a call that does not end has its own deadline.
    if rank == 0:
        first = dist.all_reduce(np.ones(1), group=group, async_op=True)
        quick = dist.new_group([0])
        assert quick.size() == 1
        dist._native.control("set_timeout", group=group._id, timeout=0.5)
        with raises(errors.TimeoutError, "its turn did not come", "stays usable", most=5.0):
            dist.barrier(group)
        second = dist.barrier(group, async_op=True)
        with raises(errors.TimeoutError, "its turn did not come", most=5.0):
            second.wait()
        dist._native.control("set_timeout", group=group._id, timeout=60.0)
        dist.send(np.ones(1), 1)
        first.wait()
    else:
        dist.recv(np.ones(1), 0)
        dist.all_reduce(np.ones(1), group=group)
        for _ in range(2):
            with raises(errors.RefusedError, ranks=[0]):
                dist.barrier(group)
    works(group)
    works()


def test_a_handler_that_returns(dist: ModuleType, rank: int, on_signal: Handle) -> None:
    """A signal handler that raises nothing runs during the wait, and the wait goes on."""
    seen = []
    on_signal(lambda *_: seen.append(time.monotonic()))
    if rank == 0:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        dist.barrier()
        assert seen and time.monotonic() - seen[0] > 0.2
    else:
        time.sleep(0.7)
        dist.barrier()
    works()
