"""Halo exchanges whose ranks die or are interrupted."""

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


def interrupted() -> None:
    """Ctrl-C ends a wait for a neighbour that does not come. The border stays as it was."""
    import os
    import signal
    import threading
    import time

    import numpy as np
    from ranks_tools import dist, done, start, works

    rank = start()
    side = dist.new_group([0, 1])
    cart = dist.Cartesian([2], group=side)
    field = np.full(6, rank, "float32")
    if rank == 0:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            cart.halo_exchange(field)
        except KeyboardInterrupt:
            assert time.monotonic() - began < 5.0
        else:
            raise AssertionError("it was not interrupted")
        assert (field == 0).all()
    works()
    done()


@pytest.mark.one_mpi
@pytest.mark.parametrize("cells", ["4", "200000"])
def test_killed(cells: str) -> None:
    ended = job.run(3, killed, env={"CELLS": cells}, options=SURVIVE)
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]


def test_interrupted() -> None:
    job.succeed(2, interrupted)
