"""Ctrl-C during a wait: KeyboardInterrupt soon after, and what the group can still do."""

from __future__ import annotations

import job
import pytest


def interrupted() -> None:
    """Rank 0 gets a SIGINT in every kind of wait. Rank 1 does not come, or comes late."""
    import os
    import signal
    import threading
    import time
    from contextlib import contextmanager

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    sent = [0.0]

    def strike():
        sent[0] = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    @contextmanager
    def struck(after=0.3):
        threading.Timer(after, strike).start()
        with raises(KeyboardInterrupt, least=after - 0.05):
            yield
        delay = time.monotonic() - sent[0]
        print(f"delay {delay:.3f}", flush=True)
        assert delay < 1.0, delay

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
            dist.all_reduce(x, group=groups[0])
        dist.all_reduce(np.ones(2), group=groups[1])
        with raises(errors.RefusedError, ranks=[0]):
            dist.barrier(groups[1])
        works(groups[1])
        dist.recv(np.zeros(1), 0, tag=3)
        dist.recv(np.zeros(1), 0, tag=3)
        dist.all_reduce(np.ones(2), group=groups[2])
    works(dist.new_group([0, 1]))
    works()
    done()


def a_handler_that_returns() -> None:
    """A signal handler that raises nothing runs during the wait, and the wait goes on."""
    import os
    import signal
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, start, works

    rank = start()
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
    if rank == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        dist.barrier()
        assert seen and time.monotonic() - seen[0] > 0.3
    else:
        time.sleep(1.0)
        dist.barrier()
    x = np.ones(2)
    dist.all_reduce(x)
    works()
    done()


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


def test_interrupted() -> None:
    job.succeed(2, interrupted)


@pytest.mark.one_mpi
def test_a_handler_that_returns() -> None:
    job.succeed(2, a_handler_that_returns)


@pytest.mark.one_mpi
def test_interrupted_to_the_end() -> None:
    ended = job.run(2, interrupted_to_the_end)
    assert ended.returncode != 0
    assert "KeyboardInterrupt" in ended.result.stderr
    assert ended.at - ended.stamp("left") < 5, ended.output
