"""Prepared calls whose ranks die."""

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


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
@pytest.mark.parametrize("way", ["call", "start"])
@pytest.mark.parametrize("count", ["1", "200000"])
def test_killed(count: str, way: str) -> None:
    ended = job.run(3, killed, env={"COUNT": count, "FAULTS_WAY": way}, options=SURVIVE)
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]
