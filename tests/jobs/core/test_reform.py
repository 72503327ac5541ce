"""Worlds that go on with other members, on one node without MPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import job
import pytest
from fresh_signals import take_signals

# Ranks that lose a member again and again, in operations of all kinds and lengths, and go on
# without it. In each world one rank, which all can tell, kills itself after a while.
# arguments: the folder, this process, how many processes, a seed
PROGRAM = """
import os, random, signal, sys, threading, time
import numpy as np
import paddlempi as dist
from paddlempi import errors
from paddlempi.startup import reform
from paddlempi.startup.rendezvous.file_store import FileStore

folder, rank, size, seed = sys.argv[1], *map(int, sys.argv[2:])
me, newcomer = rank, rank == size

def once(chance):
    rank, size = dist.get_rank(), dist.get_world_size()
    length, what = chance.choice([1, 5_000, 300_000, 2_000_000]), chance.randrange(8)
    after, before = (rank + 1) % size, (rank - 1) % size
    if what < 2:
        x = np.ones(length) if what else dist.zeros(length, "float64")
        x[:] = rank + 1
        dist.all_reduce(x)
        assert (x == size * (size + 1) / 2).all()
    elif what == 2:
        x = np.full(length, float(rank))
        dist.broadcast(x, size - 1)
        assert (x == size - 1).all()
    elif what == 3:
        x = np.zeros(length)
        work = dist.isend(np.full(length, float(rank)), after)
        dist.recv(x, before)
        work.wait()
        assert (x == before).all()
    elif what == 4:
        x = dist.zeros(size * length, "float64")
        work = dist.all_gather_into_tensor(x, np.full(length, float(rank)), async_op=True)
        work.wait()
        assert (x.reshape(size, length) == np.arange(size)[:, None]).all()
    elif what == 5:
        w = windows[0]
        w.put(np.full(7, float(rank)), after)
        w.signal(after)
        w.wait_signal(before)
        assert (w.local[:7] == before).all()
        dist.barrier()
    elif what == 6:
        w = windows[0]
        with w.lock(0):
            w.accumulate(np.ones(8), 0)
        w.fence()
    else:
        group = dist.new_group(range(size))
        dist.barrier(group=group)
        dist.destroy_process_group(group)

def until_somebody_dies(generation):
    chance = random.Random(seed * 1000 + generation)
    victim = chance.randrange(dist.get_world_size())
    pause = chance.uniform(0.02, 0.3)
    if victim == dist.get_rank() and dist.get_world_size() > 2:
        threading.Timer(pause, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    began = last = time.monotonic()
    going = np.ones(1)
    windows.clear()
    groups.clear()
    try:
        groups.append(dist.new_group(range(dist.get_world_size())))
        windows.append(dist.Window(dist.zeros(8, "float64")))
        while going[0]:
            last = time.monotonic()
            once(chance)
            going[0] = dist.get_world_size() > 2 or time.monotonic() - began < 0.3
            dist.all_reduce(going, dist.ReduceOp.MIN)
        return victim, None
    except errors.LOST as error:
        took = time.monotonic() - last
        assert took < 20, took
        return victim, error

windows, groups = [], []
kept = dist.empty(1000, "float64") if not newcomer else None
if not newcomer:
    first = f"file://{folder}/first"
    dist.init_process_group(timeout=60, init_method=first, rank=rank, world_size=size)
    kept[:] = 7
generation = 0
if newcomer:
    generation = 1
    reform.reform(size - 1, size, FileStore(f"{folder}/1"), timeout=60)
while True:
    assert reform.generation() == generation
    victim, error = until_somebody_dies(generation)
    if error is None:
        break
    reform.revoke(f"a test: {type(error).__name__}")
    try:
        dist.barrier()
        raise SystemExit("a barrier of a world that was revoked")
    except errors.RevokedError as refused:
        assert ": a test: " in str(refused), refused
    generation += 1
    rank = dist.get_rank() - (dist.get_rank() > victim)
    size = dist.get_world_size() - (generation > 1)  # one more comes to the second world
    reform.reform(rank, size, FileStore(f"{folder}/{generation}"), timeout=60)
    stale = [lambda: dist.barrier(group=groups[0])] * len(groups)
    for call in [*stale, *[lambda: windows[0].signal(0)] * len(windows)]:
        try:
            call()
            raise SystemExit("a call of a world that was reformed")
        except errors.GroupDestroyedError as gone:
            assert "reformed" in str(gone), gone
    assert kept is None or (kept == 7).all()
told = f"process {me} is rank {dist.get_rank()} of {dist.get_world_size()}, {generation}"
print(f"{told}\\n", end="", flush=True)
dist.destroy_process_group()
"""


def run(folder: Path, size: int, seed: int) -> list[str]:
    """Run the processes of the program; return what each prints."""
    path = folder / "program.py"
    path.write_text(PROGRAM)
    started = [
        subprocess.Popen(
            [sys.executable, str(path), str(folder), str(rank), str(size), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=take_signals,
        )
        for rank in range(size + 1)
    ]
    try:
        return [process.communicate(timeout=90)[0] for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize("seed", range(int(os.environ.get("TEST_REFORM", 3))))
def test_killed_again_and_again(tmp_path: Path, seed: int) -> None:
    """Four ranks and a newcomer lose one after the other until two are left."""
    told = run(tmp_path, 4, seed)
    ends = [text for text in told if text]
    assert len(ends) == 2 and all(" of 2, 3\n" in text for text in ends), (seed, told)


# Reforms that leave nothing behind: what the process has is the same after 20 and after 60.
LEAKS = """
import os, sys
import numpy as np
import paddlempi as dist
from paddlempi.startup import reform
from paddlempi.startup.rendezvous.file_store import FileStore

folder, rank = sys.argv[1], int(sys.argv[2])
one, other = np.ones(3 << 20), dist.zeros(1 << 18, "float64")

def held():
    files = os.listdir("/proc/self/fd")
    maps = [line.split()[-1] for line in open("/proc/self/maps") if "paddlempi" in line]
    threads = int(open("/proc/self/status").read().split("Threads:")[1].split()[0])
    rss = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(files), len(maps), threads, rss

first = f"file://{folder}/first"
dist.init_process_group(timeout=60, init_method=first, rank=rank, world_size=2)
seen = {}
for i in range(61):
    for x in (one, other):
        x[:] = 1
        dist.all_reduce(x)
        assert (x == 2).all()
    group = dist.new_group([0, 1])
    window = dist.Window(other, group=group)
    window.put(np.ones(1), 1 - rank)
    dist.barrier()
    waits = dist.irecv(np.zeros(300_000), 1 - rank)
    if i in (20, 60):
        seen[i] = held()
    reform.reform(rank, 2, FileStore(f"{folder}/{i}"), timeout=60)
    assert reform.generation() == i + 1
before, after = seen[20], seen[60]
assert before[:2] == after[:2], seen
assert after[2] <= before[2] + 4, seen  # Go keeps a thread that a call has held up
assert after[3] < before[3] + (6 << 20), seen
dist.destroy_process_group()
print("flat", flush=True)
"""


def test_reforms_leave_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(LEAKS)
    started = [
        subprocess.Popen(
            [sys.executable, str(path), str(tmp_path), str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    told = [process.communicate(timeout=90)[0] for process in started]
    assert told == ["flat\n"] * 2, told


def goes_on_without_rank_1() -> None:
    """Rank 1 is killed; the others become a world without MPI, and end in order."""
    import os
    import signal
    import sys

    import numpy as np
    from paddlempi.startup import reform
    from paddlempi.startup.rendezvous.file_store import FileStore
    from ranks_tools import dist, errors, start

    # Open MPI's launcher may lose what a rank writes in the moment of its end, without us too.
    os.dup2(os.open(os.environ["WRITTEN"], os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    rank = start(abort_on_death=False)
    x = np.ones(1 << 20)
    dist.all_reduce(x)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            dist.all_reduce(x)
    except errors.LOST:
        pass
    reform.reform(rank // 2, 2, FileStore(os.environ["MEET"]), timeout=60)
    x[:] = 1
    dist.all_reduce(x)
    assert (x == 2).all()
    sys.stderr.write(f"rank {dist.get_rank()} of {dist.get_world_size()} went on\n")


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_under_mpirun(tmp_path: Path) -> None:
    """MPI is not called any more, and does not keep the processes from ending."""
    env = {"WRITTEN": str(tmp_path / "written"), "MEET": str(tmp_path / "meet")}
    job.run(3, goes_on_without_rank_1, env=env, options=("--continuous",))
    written = (tmp_path / "written").read_text()
    assert sorted(written.splitlines()) == [f"rank {rank} of 2 went on" for rank in range(2)]
