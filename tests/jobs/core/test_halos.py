"""Halo exchanges whose ranks die."""

from __future__ import annotations

import os

import job
import pytest

SURVIVE = ("--with-ft", "ulfm")
"""What lets the other ranks live when one dies. Only Open MPI's launcher has it."""


def killed() -> None:
    """Rank 2 dies in the middle of a simulation. Its neighbours, which wait for it, are told."""
    import os
    import signal

    import numpy as np
    from ranks_tools import dist, errors, leave_together, raises, start

    rank = start()
    cart = dist.Cartesian([3], periodic=True)
    field = np.full((4, int(os.environ["CELLS"]) + 2), rank, "float32")
    inner = field[:, 1:-1].copy()
    with raises(errors.PeerDiedError, "halo_exchange", ranks=[2], most=3.0):
        for step in range(1 << 20):
            if rank == 2 and step == 20:
                os.kill(os.getpid(), signal.SIGKILL)
            cart.halo_exchange(field)
            assert (field[:, 0] == (rank - 1) % 3).all()
            assert (field[:, -1] == (rank + 1) % 3).all()
    assert (field[:, 1:-1] == inner).all()
    with raises(errors.GroupBrokenError, "halo_exchange", "rank(s) [2] died", most=3.0):
        cart.halo_exchange(field, async_op=True).wait()
    leave_together(rank)


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
@pytest.mark.parametrize("cells", ["4", "200000"])
def test_killed(cells: str) -> None:
    ended = job.run(3, killed, env={"CELLS": cells}, options=SURVIVE)
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]
