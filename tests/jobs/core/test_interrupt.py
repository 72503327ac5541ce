"""Ctrl-C that no code catches, and a signal handler that takes long."""

from __future__ import annotations

import job
import pytest


def interrupted_to_the_end() -> None:
    """No code catches the KeyboardInterrupt: the job ends, with a traceback."""
    import os
    import signal
    import threading

    import numpy as np
    from ranks_tools import dist, stamp, start

    rank = start()
    if rank == 0:
        threading.Timer(0.3, lambda: (stamp("left"), os.kill(os.getpid(), signal.SIGINT))).start()
    else:
        dist.recv(np.ones(2), 0)
    dist.all_reduce(np.ones(2))


@pytest.mark.one_mpi
def test_interrupted_to_the_end() -> None:
    ended = job.run(2, interrupted_to_the_end)
    assert ended.returncode != 0
    assert "KeyboardInterrupt" in ended.result.stderr
    assert ended.at - ended.stamp("left") < 5, ended.output


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


def test_a_handler_that_takes_long() -> None:
    job.succeed(2, a_handler_that_takes_long)
