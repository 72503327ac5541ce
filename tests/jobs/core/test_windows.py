"""Windows whose ranks die, do not come, are interrupted, or end."""

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


def absent() -> None:
    """Rank 1 comes to no fence and no free. The others give up, and their memory stays whole."""
    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    rank = start()
    group = dist.new_group(timeout=1.0)
    window, other = dist.Window(4, group=group), dist.Window(1)
    if rank == 1:
        with raises(errors.TimeoutError, ranks=[0], least=0.3, most=2.0):
            window.wait_signal(0, timeout=0.3)
        other.wait_signal(0)
        # Rank 0 has ended its part. This rank's memory may be used, and that of rank 0 not.
        with raises(errors.GroupDestroyedError, "rank 0 has freed the window", ranks=[0]):
            window.put(np.ones(4, "float32"), 0)
            window.flush(0)
        with raises(errors.GroupBrokenError):
            window.free()
    else:
        with raises(errors.TimeoutError, "Window.free", "[1]", ranks=[1], least=0.5, most=2.0):
            window.free(timeout=0.5)
        assert not window.local.any()
        other.signal(1)
    other.fence()
    other.free()
    works()
    done()


def interrupted() -> None:
    """Ctrl-C ends a wait for a signal and for a lock. Nothing is lost, and the window goes on."""
    import os
    import signal
    import threading
    import time

    from ranks_tools import dist, done, start, works

    rank = start()
    window = dist.Window(1, dtype="int64")
    for wait in (lambda: window.wait_signal(1), lambda: window.lock(1).__enter__()):
        if rank == 1:
            with window.lock(1):
                window.fence()
                window.fence()
            window.signal(0)
        else:
            window.fence()
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            try:
                wait()
            except KeyboardInterrupt:
                assert time.monotonic() - began < 5.0
            else:
                raise AssertionError("it was not interrupted")
            window.fence()
            window.wait_signal(1)
        window.fence()
    with window.lock(1):
        window.fetch_and_op(1, 1)
    window.fence()
    assert window.fetch_and_op(0, 1) == 2
    window.free()
    works()
    done()


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


@pytest.mark.one_mpi
def test_killed() -> None:
    ended = job.run(3, killed, options=SURVIVE)
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]


@pytest.mark.one_mpi
def test_absent() -> None:
    job.succeed(2, absent)


def test_interrupted() -> None:
    job.succeed(2, interrupted)


def test_ends_without_free() -> None:
    job.succeed(2, ends_without_free)
