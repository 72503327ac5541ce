"""A signal handler that takes long. Ctrl-C that no code catches is in the matrix."""

from __future__ import annotations

import job


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
