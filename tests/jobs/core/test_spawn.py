"""Jobs that spawn processes."""

from __future__ import annotations

import sys
from pathlib import Path

import job
from contract import MPI
from paddlempi.testing import launch

# Intel MPI reads it before it is initialised.
SPAWNS = {"I_MPI_SPAWN": "1"} if MPI == "impi" else {}

CHILD = """
import resource
import numpy as np
import paddlempi as dist

dist.init_process_group("mpi", timeout=40)
with dist.get_parent() as parents:
    assert dist.get_parent() is parents
    rank = parents.rank()
    assert (parents.size(), parents.remote_size(), dist.get_world_size()) == (2, 2, 2)
    assert rank == dist.get_rank()
    x = np.zeros(3)
    assert parents.recv(x, 1 - rank, tag=3) == 1 - rank
    parents.send(x * 10, 1 - rank, tag=4)
    parents.send_object_list([{"from": rank}, None], 0)
    both = parents.merge()
    assert (both.rank(), both.size()) == (2 + rank, 4), both
    y = np.full(5, both.rank() + 1.0)
    dist.all_reduce(y, group=both)
    assert (y == 10).all(), y
    before = parents.merge(high=False)
    assert before.rank() == rank, before
    pairs = dist.split_group(rank, group=both)
    dist.all_reduce(y, group=pairs)
    assert (y == 20).all() and pairs.size() == 2, (y, pairs)
    before = resource.getrusage(resource.RUSAGE_THREAD)
    dist.all_reduce(y, group=both)  # the parents come late
    after = resource.getrusage(resource.RUSAGE_THREAD)
    assert after.ru_nvcsw - before.ru_nvcsw < 300, "a timer has ended the sleeps, and no doorbell"
"""


def parents() -> None:
    import os
    import sys
    import time

    import numpy as np
    from ranks_tools import dist, done, errors, raises, start

    rank = start()
    with dist.spawn([sys.executable, os.environ["CHILD"]], 2, timeout=50) as children:
        assert (children.rank(), children.size(), children.remote_size()) == (rank, 2, 2)
        children.send(np.full(3, rank + 1.0), 1 - rank, tag=3)
        x = np.zeros(3)
        work = children.irecv(x, tag=4)
        assert work.source_rank() == 1 - rank
        assert (x == 10 * (rank + 1)).all(), x
        if rank == 0:
            for _ in range(2):
                told = [0, 0]
                source = children.recv_object_list(told)
                assert told == [{"from": source}, None]
        with raises(errors.ArgumentError, "dst=2 is out of range"):
            children.send(x, 2)
        with raises(errors.DtypeError, "must be a rank of the other party"):
            children.recv(x, "one")
        both = children.merge()
        assert (both.rank(), both.size()) == (rank, 4), both
        y = np.full(5, both.rank() + 1.0)
        dist.all_reduce(y, group=both)
        assert (y == 10).all(), y
        after = children.merge(high=True)
        assert after.rank() == 2 + rank, after
        pairs = dist.split_group(rank, group=both)
        dist.all_reduce(y, group=pairs)
        assert (y == 20).all() and pairs.size() == 2, (y, pairs)
        time.sleep(1)
        dist.all_reduce(y, group=both)
    with raises(errors.GroupDestroyedError):
        children.send(x, 0)
    with raises(errors.GroupDestroyedError):
        dist.all_reduce(y, group=both)
    dist.all_reduce(y)
    assert dist.get_parent() is None
    done()


def test_spawn(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(CHILD)
    job.succeed(2, parents, env={"CHILD": str(child), **SPAWNS})


LATE = """
import os, time
while not os.path.exists(os.environ["STRUCK"]):
    time.sleep(0.05)
time.sleep(1)
import paddlempi as dist
dist.init_process_group("mpi")
try:
    dist.get_parent(timeout=5)
except dist.errors.Error as error:
    print("child:", type(error).__name__, flush=True)
"""


def interrupted() -> None:
    """Ctrl-C on rank 0, which waits for processes that come late. They are told, too."""
    import os
    import signal
    import sys
    import threading
    import time
    from pathlib import Path

    from ranks_tools import dist, done, errors, start

    def strike() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        Path(os.environ["STRUCK"]).touch()  # the process waits for it

    rank = start()
    if rank == 0:
        threading.Timer(1, strike).start()
    began = time.monotonic()
    try:
        dist.spawn([sys.executable, os.environ["CHILD"]], 1, timeout=60)
    except (KeyboardInterrupt, errors.Error) as error:
        assert isinstance(error, KeyboardInterrupt) == (rank == 0), repr(error)
    else:
        raise AssertionError("it was not interrupted")
    # MPICH holds rank 0 inside until the process has called init_process_group.
    assert time.monotonic() - began < 40.0
    dist.barrier()
    done()


def test_interrupted(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(LATE)
    env = {"CHILD": str(child), "STRUCK": str(tmp_path / "struck"), **SPAWNS}
    ended = job.run(2, interrupted, env=env)
    assert ended.output.count("done\n") == 2, ended.output


def test_the_example() -> None:
    """A simulation whose analysers find what is known of it, or it fails."""
    path = Path(__file__).resolve().parents[3] / "examples" / "simulate.py"
    command = [sys.executable, str(path), "--steps=500", "--analysers=2"]
    ended = launch.run(2, command, env=SPAWNS)
    assert ended.returncode == 0, ended.output
    assert "6 states, farthest from what is known: " in ended.output
