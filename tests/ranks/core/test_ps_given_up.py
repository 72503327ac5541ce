"""Calls of the parameter server that Ctrl-C or a deadline ends, and handlers that make some."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from paddlempi import _native, errors, ps
from ps_job import DIM, IDS, later, ones, wait_for
from ps_roles import BOTH, begin
from ranks_tools import raises, stamp

__all__ = ["begin"]

pytestmark = [pytest.mark.mpi(ranks=3), pytest.mark.usefixtures("stamps")]

Begin = Callable[..., bool]
TWO = "trainer:2,pserver:1"


@pytest.fixture
def on_usr1() -> Iterator[Callable[[Any], None]]:
    """A function that sets the handler of SIGUSR1, for the time of a test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda handler: signal.signal(signal.SIGUSR1, handler)
    signal.signal(signal.SIGUSR1, before)


def strike(number: int = signal.SIGINT) -> None:
    """Send this process a signal in a moment."""
    later(0.3, lambda: os.kill(os.getpid(), number))


def test_ctrl_c(begin: Begin, rank: int) -> None:
    """It ends a wait in serve, in a push that waits for another trainer, and in a barrier."""
    trains = begin(TWO)

    def interrupted(call: Callable[[], object]) -> None:
        strike()
        with raises(KeyboardInterrupt, least=0.2, most=3.0):
            call()

    if not trains:
        interrupted(ps.serve)
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    if rank == 0:
        interrupted(lambda: ps.barrier("nobody comes"))
        interrupted(lambda: table.push(IDS, ones()))
        stamp("interrupted")
    else:
        wait_for("interrupted")
        table.push(IDS, ones())
    ps.barrier()
    # The push was made, though its trainer did not wait for the end.
    table.push(IDS, ones())
    assert (table.pull(IDS) == -4).all()


def test_a_pull_after_a_push_that_was_given_up(begin: Begin, rank: int) -> None:
    """By Ctrl-C, then by the deadline. The pull after it has the rows after its step."""
    if not begin(TWO, timeout=2.0):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    for step, why in enumerate((KeyboardInterrupt, errors.TimeoutError), 1):
        if rank == 0:
            if why is KeyboardInterrupt:
                strike()
            with raises(why, most=5.0):
                table.push(IDS, ones())
            later(0.3, lambda step=step: stamp(f"pulls-{step}"))
        else:
            wait_for(f"pulls-{step}")
            table.push(IDS, ones())
        assert (table.pull(IDS) == -2 * step).all()
    ps.barrier()
    table.push(IDS, ones())
    assert (table.pull(IDS) == -6).all()


@pytest.mark.mpi(ranks=2)
def test_a_trainer_completes_after_a_timeout(begin: Begin, rank: int) -> None:
    """Rank 0 gives a push up and ends. Its push stays a part of the step, and the job ends."""
    begin(BOTH, timeout=1.0)
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    if rank == 0:
        with raises(errors.TimeoutError, ranks=[1], most=5.0):
            table.push(IDS, ones())
        ps.complete()
        for call in (
            lambda: table.push(IDS, ones()),
            lambda: table.pull(IDS),
            lambda: ps.push([(table, IDS, ones())]),
            lambda: ps.RemoteTable("u", DIM),
            ps.barrier,
            lambda: ps.save("nowhere", 1),
        ):
            with raises(errors.ArgumentError, "has completed (ps.complete)", most=1.0):
                call()
        stamp("completed")
        ps.complete()
    else:
        wait_for("completed")
        table.push(IDS, ones())
        assert (table.pull(IDS) == -2).all()


def test_all_trainers_complete_after_a_timeout(begin: Begin, rank: int) -> None:
    """Nobody pushes the rest of the step: it is of those that have, and is applied at the end."""
    begin(TWO, timeout=1.0)
    if rank == 0:
        table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
        with raises(errors.TimeoutError, ranks=[1], most=5.0):
            table.push(IDS, ones())
        ps.complete()
        stamp("completed")
    if rank == 1:
        wait_for("completed")


def test_a_handler_that_pushes(begin: Begin, rank: int, on_usr1: Callable[..., None]) -> None:
    """A handler pushes while its thread waits in a push: it gets an error, and the push ends."""
    if not begin(TWO, timeout=20.0):
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    other = ps.RemoteTable("u", DIM, ps.SGD(1.0))
    if rank == 1:
        for name in ("handled", "threaded"):
            wait_for(name)
            table.push(IDS, ones())
        ps.barrier()
        return
    seen: list[object] = []

    def handler(*_: object) -> None:
        for call in (
            lambda: table.push(IDS, ones()),
            lambda: ps.push([(other, IDS, ones())]),
            ps.step,
            lambda: _native.control("ps_refuse"),
        ):
            with raises(errors.ReentrantError, "push: called by a signal handler", most=1.0):
                call()
        # What is no push does not wait for the push.
        assert (table.pull(IDS) == 0).all()
        assert (ps.RemoteTable("of the handler", DIM).pull(IDS) == 0).all()
        seen.append(time.monotonic())
        stamp("handled")

    on_usr1(handler)
    strike(signal.SIGUSR1)
    table.push(IDS, ones())
    assert len(seen) == 1
    assert (table.pull(IDS) == -2).all()

    # A push of another thread is waited for, also by a handler; and Ctrl-C ends that wait.
    thread = threading.Thread(target=lambda: table.push(IDS, ones()))
    thread.start()
    time.sleep(0.3)
    strike()
    with raises(KeyboardInterrupt, least=0.2, most=2.0):
        table.push(IDS, ones())
    stamp("threaded")
    thread.join()
    assert (table.pull(IDS) == -4).all()
    ps.barrier()


@pytest.mark.mpi(ranks=2)
@pytest.mark.usefixtures("dist")
def test_a_handler_in_init(rank: int, on_usr1: Callable[..., None]) -> None:
    """Rank 1 comes late to ps.init; a handler of rank 0 uses the parameter server meanwhile."""
    if rank == 0:

        def handler(*_: object) -> None:
            with raises(errors.ReentrantError, "interrupted ps.init", most=1.0):
                ps.init()
            for call in (lambda: ps.RemoteTable("t", 2), ps.barrier, ps.stats):
                with raises(errors.NotInitializedError, most=1.0):
                    call()
            ps.shutdown()  # there is nothing to end
            stamp("handled")

        on_usr1(handler)
        later(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    else:
        wait_for("handled")
    ps.init(timeout=20.0)
    ps.barrier()
    ps.shutdown()


def test_the_slow_one_is_named(begin: Begin, rank: int) -> None:
    """Rank 1 pushes nothing: rank 0 times out with its name, and goes on when it completes."""
    if not begin(TWO, mode="ssp", staleness=2, timeout=1.5):
        return
    table = ps.RemoteTable("t", 2, ps.SGD(1.0))
    if rank == 1:
        wait_for("late")
        ps.complete()
        return
    ids = np.arange(3)
    for _ in range(3):
        table.pull(ids)
        table.push(ids, np.ones((3, 2), np.float32))
    words = ("more than 2 steps behind", "mode ssp")
    with raises(errors.TimeoutError, *words, ranks=[1], least=1.4, most=4.0):
        table.pull(ids)
    assert ps.stats()["servers"][0]["mode"] == "ssp"
    stamp("late")
    assert (table.pull(ids) == -3).all()
