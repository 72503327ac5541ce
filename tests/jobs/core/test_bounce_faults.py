"""Ranks that die, stop or are interrupted in a collective of ordinary tensors."""

from __future__ import annotations

import os

import job
import pytest


def killed_in_a_transfer() -> None:
    """Rank 2 is killed in a series of calls, which wait or make works. The others name it."""
    import os
    import signal
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, errors, leave_together, start

    rank = start()
    groups = [dist.new_group() for _ in range(2)]
    tensor = np.ones(4 << 20, np.float32)
    results = np.empty((3, 4 << 20), np.float32)
    dist.barrier()
    if rank == 2:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    for asynchronous, group in enumerate(groups):
        began = time.monotonic()
        try:
            while time.monotonic() < began + 20.0:
                tensor[:] = 1
                work = dist.all_reduce(tensor, group=group, async_op=bool(asynchronous))
                if work is not None:
                    work.wait()
                assert (tensor == 3).all()
                dist.all_gather(list(results), tensor, group=group)
        except errors.PeerDiedError as error:
            assert list(error.ranks) == [2], error
            tensor[:] = 7  # nobody writes there any more
            time.sleep(0.2)
            assert (tensor == 7).all()
        else:
            raise AssertionError("it was not noticed")
    leave_together(rank)


def stopped_in_a_transfer() -> None:
    """The last rank is stopped in a call. The others name it at the deadline, and all go on."""
    import os
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, impatient_group, start, stop_later, works

    rank, size = start(), dist.get_world_size()
    last, pids = size - 1, [None] * size
    dist.all_gather_object(pids, os.getpid())
    tensor = np.ones(16 << 20, np.float32)
    most = dist.ReduceOp.MAX
    modes = [False, True]
    for _ in range(12):
        asynchronous = modes[0]
        group = impatient_group(1.0)
        dist.barrier()
        if rank == 0:
            child = stop_later(pids[last], 0.05, 2.0)
        outcome = ""
        began = time.monotonic()
        try:
            while time.monotonic() < began + 2.5:
                work = dist.all_reduce(tensor, most, group=group, async_op=asynchronous)
                if asynchronous:
                    work.wait()
        except errors.TimeoutError as error:
            outcome = str(error)
            assert time.monotonic() < began + 2.0 or rank == last, error
            if rank != last and " first: " not in outcome:  # of what another one has given up
                assert list(error.ranks) == [last], error
        except errors.GroupBrokenError as error:
            outcome = str(error)
        if rank == 0:
            os.waitpid(child, 0)
        dist.monitored_barrier(timeout=20.0)
        works()
        outcomes = [""] * size
        dist.all_gather_object(outcomes, outcome)
        assert all(outcomes[:last]), outcomes
        if any("transfer did not end" in one for one in outcomes[:last]):
            assert outcomes[last], outcomes
            modes.pop(0)
            if not modes:
                break
    else:
        raise AssertionError("it was never stopped in a transfer")
    done()


def interrupted_in_a_transfer() -> None:
    """Ctrl-C while rank 0 waits for rank 1, which is stopped: the call ends at once."""
    import os
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, start, stop_later, works

    rank = start()
    pids = [None] * 2
    dist.all_gather_object(pids, os.getpid())
    tensor = np.ones(16 << 20, np.float32)
    group = dist.new_group()
    dist.barrier()
    if rank == 0:
        child = stop_later(pids[1], 0.1, 1.5, strike=pids[0])
    began = time.monotonic()
    caught = ""
    try:
        while time.monotonic() < began + 4.0:
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
    except KeyboardInterrupt:
        caught = "interrupted"
        assert time.monotonic() < began + 1.4, "not before the rank went on"
    except errors.GroupBrokenError as error:
        caught = str(error)
    if rank == 0:
        os.waitpid(child, 0)
        assert caught == "interrupted"
    else:
        assert "was interrupted" in caught, caught
    dist.monitored_barrier(timeout=20.0)
    works()
    done()


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_killed_in_a_transfer() -> None:
    # Only Open MPI's launcher lets the others live.
    ended = job.run(3, killed_in_a_transfer, options=("--with-ft", "ulfm"))
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]


@pytest.mark.parametrize("ranks", [2, 3])
def test_stopped_in_a_transfer(ranks: int) -> None:
    """Of three, the two that go on also wait for each other. They do not blame each other."""
    job.succeed(ranks, stopped_in_a_transfer, timeout=100)


def test_interrupted_in_a_transfer() -> None:
    job.succeed(2, interrupted_in_a_transfer, timeout=60)
