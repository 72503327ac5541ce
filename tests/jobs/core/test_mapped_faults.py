"""Ranks that die, stop or are interrupted around a collective in mapped memory.

What one rank does in one operation is in the matrix (``tests/jobs/faults``).
The launchers are told to leave the other ranks alone when a rank dies.
"""

from __future__ import annotations

import os

import job
import pytest


def killed_before_it_comes() -> None:
    """Rank 2 is dead; the others wait for it in every way. Rank 1 comes after rank 0 gave up."""
    import os
    import signal
    import time

    import numpy as np
    from ranks_tools import dist, errors, leave_together, raises, start

    rank = start()
    groups = [dist.new_group() for _ in range(4)]
    dist.barrier()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        time.sleep(1.0)
    for group, call in zip(
        groups,
        (
            lambda group: dist.all_reduce(dist.zeros(30_000), group=group),
            lambda group: dist.all_reduce(np.zeros(30_000), group=group),
            lambda group: dist.all_reduce(dist.zeros(30_000), group=group, async_op=True).wait(),
            lambda group: dist.barrier(group),
        ),
        strict=True,
    ):
        with raises(errors.PeerDiedError, "[2]", ranks=[2], most=3.0):
            call(group)
    with raises(errors.PeerDiedError, "recv", ranks=[2], most=3.0):
        dist.recv(np.zeros(3), 2)
    with raises(errors.PeerDiedError, "recv", ranks=[2], most=3.0):
        dist.irecv(np.zeros(3), 2, tag=1).wait()
    with raises(errors.PeerDiedError, "new_group", ranks=[2], most=3.0):
        dist.new_group()
    leave_together(rank)


def killed_before_it_works() -> None:
    """Ranks 0 and 1 cannot map the tensors. Rank 2 can, and dies before it claims a chunk."""
    import os
    import signal
    import time
    from pathlib import Path

    from ranks_tools import dist, errors, leave_together, little_memory, raises, start

    def lives(pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"

    rank = start()
    pids = [None] * 3
    dist.all_gather_object(pids, os.getpid())
    tensor = dist.zeros((90 << 20) // 4)
    dist.barrier()
    if rank == 2:
        dist.all_reduce(tensor, async_op=True)
        os.kill(os.getpid(), signal.SIGKILL)
    while lives(pids[2]):  # it would do all the work itself if the others came while it still lives
        time.sleep(0.01)
    lost = "its result is lost"
    with little_memory(60 << 20), raises(errors.PeerDiedError, lost, ranks=[2], most=10.0):
        dist.all_reduce(tensor)
    leave_together(rank)


def killed_with_helpers() -> None:
    """Rank 1 is killed while several of its threads work on a collective."""
    import os
    import signal
    import threading
    from pathlib import Path

    import numpy as np
    from ranks_tools import dist, errors, leave_together, raises, start

    rank = start()
    groups = [dist.new_group() for _ in range(2)]
    tensors = [dist.zeros(16 << 20), np.zeros(16 << 20, np.float32)]
    for group, tensor in zip(groups, tensors, strict=True):
        dist.all_reduce(tensor, group=group)
    names = [(task / "comm").read_text() for task in Path("/proc/self/task").iterdir()]
    assert names.count("paddlempi-sum\n") == 2
    dist.barrier()
    if rank == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    with raises(errors.PeerDiedError, "[1]", ranks=[1], most=10.0):
        while True:
            for group, tensor in zip(groups, tensors, strict=True):
                dist.all_reduce(tensor, group=group)
    leave_together(rank)


def stopped() -> None:
    """Rank 1 is stopped in the middle of an all_reduce. The others give up and go on."""
    import os
    import random
    import time

    from ranks_tools import dist, done, errors, impatient_group, start, stop_later, works

    rank = start()
    pids = [None] * 3
    dist.all_gather_object(pids, os.getpid())
    modes = [False, True]
    for _ in range(12):
        asynchronous = modes[0]
        group = impatient_group(1.0)
        tensor = dist.zeros(64 << 20, "uint8")
        tensor[:] = 1
        dist.barrier()
        if rank == 0:
            child = stop_later(pids[1], random.uniform(0.001, 0.05), 3.0)
        outcome = ""
        try:
            began = time.monotonic()
            while time.monotonic() < began + 2.5:
                tensor[:] = 1
                work = dist.all_reduce(tensor, group=group, async_op=asynchronous)
                if asynchronous:
                    work.wait()
                assert (tensor[::4096] == 3).all()
        except errors.TimeoutError as error:
            took = time.monotonic() - began
            assert took < 3.0 or rank == 1, f"{took} s: {error}"
            outcome = str(error)
            assert 1 in error.ranks or rank == 1, error
        except errors.GroupBrokenError as error:
            outcome = str(error)
        tensor[:] = 7  # the core keeps the memory, which another rank may still write to
        if rank == 0:
            os.waitpid(child, 0)
        dist.monitored_barrier(timeout=20.0)
        del tensor
        fresh = dist.zeros(64 << 20, "uint8")
        time.sleep(0.2)
        assert not fresh.any(), "another rank wrote into memory that was given again"
        outcomes = [None] * 3
        dist.all_gather_object(outcomes, outcome)
        assert outcomes[0] or not any(outcomes), outcomes
        works()
        if "transfer did not end" in outcomes[0]:
            assert all(outcomes), f"a rank took a sum for good that was given up: {outcomes}"
            modes.pop(0)
            if not modes:
                break
    else:
        raise AssertionError("it was never stopped in a transfer")
    done()


def interrupted_in_a_transfer() -> None:
    """Ctrl-C while another rank, which is stopped, works on a chunk."""
    import os
    import time

    from ranks_tools import dist, done, errors, start, stop_later, works

    rank = start()
    pids = [None] * 2
    dist.all_gather_object(pids, os.getpid())
    for attempt in range(8):
        group = dist.new_group()
        tensor = dist.zeros(64 << 20, "uint8")
        dist.barrier()
        if rank == 0:
            child = stop_later(pids[1], 0.01 + 0.003 * attempt, 2.5, strike=pids[0])
        caught = ""
        began = time.monotonic()
        try:
            while time.monotonic() < began + 2.0:
                dist.all_reduce(tensor, group=group)
        except KeyboardInterrupt:
            caught = "interrupted"
            assert time.monotonic() < began + 2.3, "not before the rank went on"
        except errors.GroupBrokenError as error:
            caught = str(error)
        if rank == 0:
            os.waitpid(child, 0)
            assert caught == "interrupted"
        dist.monitored_barrier(timeout=20.0)
        works()
        both = [None] * 2
        dist.all_gather_object(both, caught)
        if not both[1]:
            break  # rank 1 held a chunk, and its call came to its end
    done()


SURVIVE = ("--with-ft", "ulfm")
"""What lets the other ranks live when one dies. Only Open MPI's launcher has it.

Hydra has -disable-auto-cleanup, but that of MPICH 5's wheel ends the others all the same.
"""


def survivors(ended: job.Ended) -> None:
    """Check that ranks 0 and 1 came to their ends, and that nothing has a name that is left."""
    for rank in (0, 1):
        ended.stamp(f"raised-{rank}")
    assert not [name for name in os.listdir("/dev/shm") if "paddlempi" in name]


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_killed_before_it_comes() -> None:
    survivors(job.run(3, killed_before_it_comes, options=SURVIVE))


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_killed_before_it_works() -> None:
    survivors(job.run(3, killed_before_it_works, options=SURVIVE))


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_killed_with_helpers() -> None:
    env = {"PADDLEMPI_THREADS": "3"}
    job.run(2, killed_with_helpers, options=SURVIVE, env=env).stamp("raised-0")


def test_stopped() -> None:
    job.succeed(3, stopped, timeout=100)


def test_interrupted_in_a_transfer() -> None:
    job.succeed(2, interrupted_in_a_transfer, timeout=100)
