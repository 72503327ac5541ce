"""Signal handlers that run while the main thread waits in the library."""

from __future__ import annotations

import job
import pytest


def a_handler_that_calls_a_collective() -> None:
    """The handler's call would wait for the call that it interrupts. An error says what to do."""
    import os
    import signal
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start(timeout=60.0)
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

    signal.signal(signal.SIGUSR1, handler)

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
    signal.signal(signal.SIGUSR1, lambda *_: calls.append(works(group)))
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
    done()


def a_handler_that_takes_long() -> None:
    """Operations that another rank waits for go on while a handler runs."""
    import os
    import signal
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, start, works

    rank = start()
    side = dist.new_group([0, 1])
    x = np.ones(1 << 20)
    if rank == 0:

        def handler(*_: object) -> None:
            time.sleep(3.0)

        signal.signal(signal.SIGUSR1, handler)
        work = dist.all_reduce(x, group=side, async_op=True)
        message = dist.isend(x, 1, tag=4)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        dist.recv(np.zeros(1), 1)  # this message comes after the handler
        work.wait()
        message.wait()
    else:
        time.sleep(1.0)  # the handler has begun
        began = time.monotonic()
        dist.all_reduce(x, group=side)
        dist.recv(np.zeros(1 << 20), 0, tag=4)
        took = time.monotonic() - began
        time.sleep(3.0)
        dist.send(np.zeros(1), 0)
        assert took < 1.5, took
    works()
    done()


@pytest.mark.parametrize("program", [a_handler_that_calls_a_collective, a_handler_that_takes_long])
def test_every_mpi(program: object) -> None:
    job.succeed(2, program)  # type: ignore[arg-type]
