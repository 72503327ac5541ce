"""Prepared calls whose ranks die, come too late or are interrupted."""

from __future__ import annotations

import os

import job
import pytest

SURVIVE = ("--with-ft", "ulfm")
"""What lets the other ranks live when one dies. Only Open MPI's launcher has it."""


def killed() -> None:
    """Rank 2 dies between two calls of a loop. The others, which wait for it, are told."""
    import os
    import signal

    from ranks_tools import dist, errors, leave_together, raises, start

    rank = start()
    tensor = dist.zeros(int(os.environ["COUNT"]))
    call = dist.prepare("all_reduce", tensor)
    with raises(errors.PeerDiedError, "all_reduce", ranks=[2], most=3.0):
        for step in range(1 << 20):
            if rank == 2 and step == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            tensor[:] = step
            if os.environ["FAULTS_WAY"] == "call":
                call()
            else:
                call.start()
                call.wait()
            assert (tensor == 3 * step).all()
    for again in (call, call.start):
        with raises(errors.GroupBrokenError, "all_reduce", "rank(s) [2] died", most=3.0):
            again()
    assert call.is_completed()
    leave_together(rank)


def awaited() -> None:
    """Rank 1 comes too late, then not at all. The call can be made in another group meanwhile."""
    import os
    import signal
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    tensors = [np.ones(4), np.ones(4), np.ones(4)]
    late, never = dist.new_group(timeout=0.5), dist.new_group()
    calls = [
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
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            calls[1].wait()
        except KeyboardInterrupt:
            assert time.monotonic() - began < 5.0
        else:
            raise AssertionError("it was not interrupted")
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
    done()


@pytest.mark.one_mpi
@pytest.mark.parametrize("way", ["call", "start"])
@pytest.mark.parametrize("count", ["1", "200000"])
def test_killed(count: str, way: str) -> None:
    ended = job.run(3, killed, env={"COUNT": count, "FAULTS_WAY": way}, options=SURVIVE)
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]


def test_awaited() -> None:
    job.succeed(2, awaited)
