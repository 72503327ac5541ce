"""Windows whose ranks die or end."""

from __future__ import annotations

import os

import job
import pytest

SURVIVE = ("--with-ft", "ulfm")
"""What lets the other ranks live when one dies. Only Open MPI's launcher has it."""


def killed() -> None:
    """Rank 2 dies with a lock of rank 0. Accesses to it, waits for it and free raise its death."""
    import os
    import signal
    import time

    import numpy as np
    from ranks_tools import dist, errors, leave_together, raises, start

    rank = start()
    window = dist.Window(4)
    x, out = np.ones(4, "float32"), np.zeros(4, "float32")
    window.fence()
    if rank == 2:
        with window.lock(0):
            window.signal(1)
            os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        window.wait_signal(2)
    with raises(errors.PeerDiedError, "Window.wait_signal", ranks=[2], most=3.0):
        window.wait_signal(2)
    if rank == 1:
        with raises(errors.PeerDiedError, "Window.lock", ranks=[2], most=3.0), window.lock(0):
            pass
    for call in (
        lambda: window.put(x, 2),
        lambda: window.get(out, 2),
        lambda: window.accumulate(x, 2),
        lambda: window.fetch_and_op(1, 2),
        lambda: window.flush(2),
        window.flush,
    ):
        time.sleep(0.02)  # a death that was not looked for yet is seen at the next access
        with raises(errors.PeerDiedError, "Window.", ranks=[2], most=3.0):
            call()
    assert not out.any()
    window.put(x, 1 - rank)
    window.flush(1 - rank)
    window.signal(1 - rank)
    window.wait_signal(1 - rank)
    assert (window.local == 1).all()
    with raises(errors.PeerDiedError, "Window.f", ranks=[2], most=3.0):
        window.free()
    window.free()
    leave_together(rank)


def ends_without_free() -> None:
    """Rank 1 ends with an open window. Rank 0, which accesses it later, is told."""
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start

    rank = start()
    window = dist.Window(1 << 16)
    window.fence()
    if rank == 0:
        time.sleep(0.5)
        with raises(errors.PeerLeftError, ranks=[1], most=3.0):
            window.put(np.ones(1 << 16, "float32"), 1)
            window.flush(1)
    done()


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_killed() -> None:
    ended = job.run(3, killed, options=SURVIVE)
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]


def test_ends_without_free() -> None:
    job.succeed(2, ends_without_free)
