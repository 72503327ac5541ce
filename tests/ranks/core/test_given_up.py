"""Calls to which another rank comes late or never, or that Ctrl-C ends: the world goes on."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import errors
from ranks_tools import impatient_group, raises, stamp, stamped, works

pytestmark = pytest.mark.mpi(ranks=2)


def strike(after: float) -> None:
    """Send Ctrl-C to this process in a moment."""
    threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT)).start()


def interrupted(call: Callable[[], object]) -> None:
    """Make a call, which Ctrl-C must end soon."""
    strike(0.2)
    with raises(KeyboardInterrupt, least=0.2, most=5.0):
        call()


def wait_for(name: str) -> None:
    """Wait until a rank has called ``stamp(name)``."""
    end = time.monotonic() + 20
    while not stamped(name) and time.monotonic() < end:
        time.sleep(0.01)


@pytest.mark.usefixtures("stamps")
def test_a_handler_that_takes_long(dist: ModuleType, rank: int) -> None:
    """Operations that another rank waits for go on while a handler runs."""
    side = dist.new_group([0, 1])
    x = np.ones(1 << 20)
    seen = []
    if rank == 0:

        def handler(*_: object) -> None:
            stamp("handler")
            wait_for("served")
            seen.append(stamped("served"))

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            work = dist.all_reduce(x, group=side, async_op=True)
            message = dist.isend(x, 1, tag=4)
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            dist.recv(np.zeros(1), 1)  # this message comes after the handler
            work.wait()
            message.wait()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert seen == [True], "the other rank waited for the end of the handler"
    else:
        wait_for("handler")
        dist.all_reduce(x, group=side)
        dist.recv(np.zeros(1 << 20), 0, tag=4)
        stamp("served")
        dist.send(np.zeros(1), 0)
    dist.destroy_process_group(side)
    works()


@pytest.mark.parametrize("count", [8_000_000, 100])
def test_a_rank_that_destroys_the_group_after_ctrl_c(
    dist: ModuleType, rank: int, count: int
) -> None:
    """What docs/errors.md says to do, wherever the signal lands in a loop of collectives."""
    x = np.zeros(count, np.float32)
    for trial in range(4):
        group = dist.new_group([0, 1])
        if rank == 1:
            strike(random.Random(trial).uniform(0.1, 0.3))
            with raises(KeyboardInterrupt):
                while True:
                    dist.all_reduce(x, group=group)
        else:
            with raises(errors.GroupBrokenError, "[1]", ranks=[1], most=10.0):
                while True:
                    dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        works()


def test_a_halo_exchange(dist: ModuleType, rank: int) -> None:
    """Ctrl-C ends a wait for a neighbour that does not come. The border stays as it was."""
    side = dist.new_group([0, 1])
    cart = dist.Cartesian([2], group=side)
    field = np.full(6, rank, "float32")
    if rank == 0:
        interrupted(lambda: cart.halo_exchange(field))
        assert (field == 0).all()
    works()
    dist.destroy_process_group(side)


def test_a_prepared_call(dist: ModuleType, rank: int) -> None:
    """Rank 1 comes too late, then not at all. The call can be made in another group meanwhile."""
    tensors = [np.ones(4), np.ones(4), np.ones(4)]
    late, never = impatient_group(0.5), dist.new_group()
    calls: list[Any] = [
        dist.prepare("all_reduce", t, group=g)
        for t, g in zip(tensors, (late, never, None), strict=True)
    ]
    if rank == 0:
        with raises(errors.TimeoutError, "all_reduce", least=0.4, most=2.0):
            calls[0]()
        calls[1].start()
        with raises(errors.NotReadyError, most=1.0):
            calls[1].wait(timeout=0.1)
        with raises(errors.ArgumentError, "wait"):
            calls[1].start()
        interrupted(calls[1].wait)
    works()
    calls[2]()
    assert (tensors[2] == 2).all()
    if rank == 1:
        with raises(errors.GroupBrokenError, "all_reduce", ranks=[0]):
            calls[0]()
        calls[1]()
    else:
        calls[1].wait()  # Ctrl-C ended the wait, and not the operation
    assert (tensors[1] == 2).all()
    works()
    for group in (late, never):
        dist.destroy_process_group(group)


def test_a_window_whose_rank_does_not_come(dist: ModuleType, rank: int) -> None:
    """Rank 1 comes to no fence and no free. Rank 0 gives up, and its memory stays whole."""
    group = impatient_group(1.0)
    window, other = dist.Window(4, group=group), dist.Window(1)
    if rank == 1:
        with raises(errors.TimeoutError, ranks=[0], least=0.3, most=2.0):
            window.wait_signal(0, timeout=0.3)
        other.wait_signal(0)
        # Rank 0 has ended its part. This rank's memory may be used, and that of rank 0 not.
        with raises(errors.GroupDestroyedError, "rank 0 has freed the window", ranks=[0]):
            window.put(np.ones(4, "float32"), 0)
            window.flush(0)
        with raises(errors.GroupBrokenError):
            window.free()
    else:
        with raises(errors.TimeoutError, "Window.free", "[1]", ranks=[1], least=0.5, most=2.0):
            window.free(timeout=0.5)
        assert not window.local.any()
        other.signal(1)
    other.fence()
    other.free()
    dist.destroy_process_group(group)
    works()


def test_waits_in_a_window(dist: ModuleType, rank: int) -> None:
    """Ctrl-C ends a wait for a signal and for a lock. Nothing is lost, and the window goes on."""
    window = dist.Window(1, dtype="int64")
    for wait in (lambda: window.wait_signal(1), lambda: window.lock(1).__enter__()):
        if rank == 1:
            with window.lock(1):
                window.fence()
                window.fence()
            window.signal(0)
        else:
            window.fence()
            interrupted(wait)
            window.fence()
            window.wait_signal(1)
        window.fence()
    with window.lock(1):
        window.fetch_and_op(1, 1)
    window.fence()
    assert window.fetch_and_op(0, 1) == 2
    window.free()
    works()
