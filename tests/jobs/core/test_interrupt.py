"""A signal handler that takes long. Ctrl-C that no code catches is in the matrix."""

from __future__ import annotations

import job
import pytest


def a_handler_that_takes_long() -> None:
    """Operations that another rank waits for go on while a handler runs."""
    import os
    import signal
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, stamp, stamped, start, works

    rank = start()
    side = dist.new_group([0, 1])
    x = np.ones(1 << 20)
    seen = []
    if rank == 0:

        def handler(*_: object) -> None:
            stamp("handler")
            end = time.monotonic() + 20
            while not stamped("served") and time.monotonic() < end:
                time.sleep(0.01)
            seen.append(stamped("served"))

        signal.signal(signal.SIGUSR1, handler)
        work = dist.all_reduce(x, group=side, async_op=True)
        message = dist.isend(x, 1, tag=4)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        dist.recv(np.zeros(1), 1)  # this message comes after the handler
        work.wait()
        message.wait()
        assert seen == [True], "the other rank waited for the end of the handler"
    else:
        end = time.monotonic() + 20
        while not stamped("handler") and time.monotonic() < end:
            time.sleep(0.01)
        dist.all_reduce(x, group=side)
        dist.recv(np.zeros(1 << 20), 0, tag=4)
        stamp("served")
        dist.send(np.zeros(1), 0)
    works()
    done()


def test_a_handler_that_takes_long() -> None:
    job.succeed(2, a_handler_that_takes_long)


def interrupted_in_a_loop() -> None:
    """Ctrl-C comes to rank 1 somewhere in a loop of collectives. It destroys the group then."""
    import os
    import random
    import signal
    import threading

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    x = np.zeros(int(os.environ["FAULTS_COUNT"]), np.float32)
    for trial in range(4):
        group = dist.new_group([0, 1])
        if rank == 1:
            delay = random.Random(trial).uniform(0.1, 0.3)
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                while True:
                    dist.all_reduce(x, group=group)
            except KeyboardInterrupt:
                dist.destroy_process_group(group)
        else:
            with raises(errors.GroupBrokenError, "[1]", ranks=[1], most=10.0):
                while True:
                    dist.all_reduce(x, group=group)
        works()
    done()


@pytest.mark.parametrize("count", ["8000000", pytest.param("100", marks=pytest.mark.one_mpi)])
def test_a_rank_that_destroys_the_group_after_ctrl_c(count: str) -> None:
    """What docs/errors.md says to do, wherever the signal lands."""
    job.succeed(2, interrupted_in_a_loop, env={"FAULTS_COUNT": count})
