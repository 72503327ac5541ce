"""preempted and watch_preemption: a signal to one rank, and the answer on all of them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType, ModuleType

import pytest
from paddlempi import errors, preemption


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that does not watch, with the handlers that it had at the end."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    monkeypatch.setattr(preemption, "_watch", preemption._Watch())
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_all_ranks_see_it_at_one_step(
    dist: ModuleType, rank: int, size: int, number: signal.Signals
) -> None:
    if number != signal.SIGTERM:
        dist.watch_preemption(signals=[number])
    seen = []
    for step in range(20):
        seen.append(dist.preempted())
        if step == 5 and rank == size - 1:
            os.kill(os.getpid(), number)
    every = [None] * size
    dist.all_gather_object(every, seen)
    first = seen.index(True)
    assert first in (6, 7)
    assert every == [[False] * first + [True] * (20 - first)] * size


def test_nothing_is_sent_after_it(dist: ModuleType, rank: int) -> None:
    """A rank may ask more often than the others when the answer is True."""
    dist.watch_preemption()
    os.kill(os.getpid(), signal.SIGTERM)
    while not dist.preempted():
        pass
    dist.barrier()
    assert all(dist.preempted() for _ in range(3 * rank))
    dist.barrier()


def test_no_signal_is_taken_unless_asked(dist: ModuleType) -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not dist.preempted()
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_the_handler_before_is_called(dist: ModuleType) -> None:
    seen = []
    signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    dist.watch_preemption()
    dist.watch_preemption([signal.SIGTERM, signal.SIGUSR1])  # twice: it is called once
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen == [signal.SIGTERM]
    assert dist.preempted()


def test_a_handler_that_calls_the_one_before_it(dist: ModuleType) -> None:
    """It stands between two of ours. All are called once, the latest first."""
    seen = []
    signal.signal(signal.SIGTERM, lambda *_: seen.append("first"))
    dist.watch_preemption()
    ours = signal.getsignal(signal.SIGTERM)
    assert callable(ours)

    def chained(number: int, frame: FrameType | None) -> None:
        seen.append("chained")
        ours(number, frame)

    signal.signal(signal.SIGTERM, chained)
    dist.watch_preemption()
    dist.watch_preemption()  # nothing has changed
    os.kill(os.getpid(), signal.SIGTERM)
    assert seen == ["chained", "first"]
    assert dist.preempted()


def test_a_fork_ends_by_the_signal(dist: ModuleType) -> None:
    """A worker that loads data inherits the handler, and its parent ends it by SIGTERM."""
    dist.watch_preemption()
    begins, began = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(began, b"1")  # Python drops signals that come before it has prepared the child
        for _ in range(300):  # a signal that comes just before a sleep is seen after it
            time.sleep(0.1)
        os._exit(3)
    os.read(begins, 1)
    os.close(begins)
    os.close(began)
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
    assert not dist.preempted()


def test_wrong_use(dist: ModuleType) -> None:
    for signals in ([signal.SIGKILL], [1000], ["TERM"]):
        with pytest.raises(errors.ArgumentError, match="signals has"):
            dist.watch_preemption(signals=signals)
    caught = []

    def elsewhere() -> None:
        try:
            dist.watch_preemption()
        except errors.ArgumentError as error:
            caught.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert caught and "only the main thread" in caught[0]
