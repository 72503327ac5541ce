"""Ranks without MPI that die, stop, or lack something: the others go on, or get an error."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fresh_signals import take_signals

# Operations of all kinds and lengths until the time is up. arguments: what rank 1 suffers, a seed
OPERATIONS = """
import os, random, signal, sys, threading, time
import numpy as np
import paddlempi as dist

how, seed = sys.argv[1], int(sys.argv[2])
dist.init_process_group(timeout=30)
rank, size = dist.get_rank(), dist.get_world_size()
chance, began, last = random.Random(seed), time.monotonic(), time.monotonic()
limit = 6.0 if how == "stop" else 20.0
pause = chance.uniform(0.05, 0.4)
if rank == 1 and how == "kill":
    threading.Timer(pause, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
if rank == 1 and how == "stop":
    me = os.getpid()
    if os.fork() == 0:
        time.sleep(pause)
        os.kill(me, signal.SIGSTOP)
        time.sleep(5)
        os.kill(me, signal.SIGCONT)
        os._exit(0)
try:
    going = np.ones(1)
    while going[0]:
        length, what = chance.choice([4, 5_000, 300_000, 3_000_000]), chance.randrange(6)
        last = time.monotonic()
        if what == 0:
            x = np.ones(length)
            dist.all_reduce(x)
            assert (x == size).all()
        elif what == 1:
            x = np.full(length, float(rank))
            dist.broadcast(x, 2)
            assert (x == 2).all()
        elif what == 2:
            x, before = np.zeros(length), (rank - 1) % size
            work = dist.isend(np.full(length, float(rank)), (rank + 1) % size)
            dist.recv(x, before)
            work.wait()
            assert (x == before).all()
        elif what == 3:
            x = [np.zeros(length) for _ in range(size)]
            dist.all_to_all(x, [np.full(length, float(rank))] * size)
            assert all((part == r).all() for r, part in enumerate(x))
        elif what == 4:
            x = dist.zeros(length, "float32")
            x[:] = 1
            dist.all_reduce(x)
            assert (x == size).all()
        else:
            dist.barrier()
        going[0] = time.monotonic() - began < limit
        dist.all_reduce(going, dist.ReduceOp.MIN)
    print(f"done {rank}\\n", end="", flush=True)
except dist.errors.PeerDiedError as error:
    took = time.monotonic() - last
    when = "soon" if took < 5 else took
    print(f"raised {rank} {error.ranks} {when}\\n", end="", flush=True)
"""

# Collectives and messages, short and long, of ordinary and of mapped memory.
VALUES = """
import numpy as np
import paddlempi as dist

dist.init_process_group(timeout=30)
rank, size = dist.get_rank(), dist.get_world_size()
for length in (4, 1_000, 300_000, 3_000_000):
    x = np.full(length, rank + 1.0)
    dist.all_reduce(x)
    assert (x == size * (size + 1) / 2).all()
    x, before = np.zeros(length), (rank - 1) % size
    work = dist.isend(np.full(length, float(rank)), (rank + 1) % size)
    dist.recv(x, before)
    work.wait()
    assert (x == before).all()
mapped = dist.zeros(1 << 20, "float32")
mapped[:] = 1
dist.all_reduce(mapped)
assert (mapped == size).all()
print(f"done {rank}\\n", end="", flush=True)
"""


def run(
    size: int,
    command: list[str],
    folder: Path,
    program: str,
    words: tuple[str, ...] = (),
    limits: Callable[[], None] = lambda: None,
) -> str:
    """Run a program as ranks without MPI, all of them to their end; return what they print.

    Args:
        command: what comes before the Python of each rank.
        limits: is called in the starter before it begins.
    """
    path = folder / "program.py"
    path.write_text(program)
    code = (
        "import sys; from paddlempi.cli import local_ranks; "
        "sys.exit(local_ranks.run(int(sys.argv[1]), sys.argv[2:], keep=True))"
    )
    line = [sys.executable, "-c", code, str(size), *command, sys.executable, str(path), *words]

    def prepare() -> None:
        take_signals()
        limits()

    done = subprocess.run(
        line,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        check=False,
        preexec_fn=prepare,
    )
    return done.stdout


@pytest.mark.parametrize("seed", range(4))
def test_killed_in_any_operation(tmp_path: Path, seed: int) -> None:
    told = run(3, [], tmp_path, OPERATIONS, ("kill", str(seed)))
    for rank in (0, 2):
        assert f"raised {rank} (1,) soon" in told, told


def test_stopped_for_a_while(tmp_path: Path) -> None:
    told = run(3, [], tmp_path, OPERATIONS, ("stop", "7"))
    for rank in range(3):
        assert f"done {rank}" in told, told


def test_few_descriptors(tmp_path: Path) -> None:
    told = run(
        4,
        [],
        tmp_path,
        VALUES,
        limits=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
    )
    for rank in range(4):
        assert f"done {rank}" in told, told


def test_no_memory_to_share(tmp_path: Path) -> None:
    """The limit is too low for the memory of the messages. All ranks get an error, and one why."""
    told = run(
        2,
        [],
        tmp_path,
        VALUES,
        limits=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert "rank 0 cannot share memory with the other ranks: cannot size shared memory" in told
    assert "rank 0 cannot share memory with the other ranks, and its own error says why" in told


@pytest.mark.parametrize("more", [[], ["--pid", "--fork", "--mount-proc"]], ids=["user", "pid"])
def test_a_namespace_of_its_own(tmp_path: Path, more: list[str]) -> None:
    """One rank may not read the others' memory, and they know it by another process number."""
    space = ["unshare", "--user", "--map-root-user", *more]
    if subprocess.run([*space, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no user and PID namespaces")
    apart = tmp_path / "apart.sh"
    apart.write_text(f'#!/bin/sh\n[ "$RANK" = 1 ] && exec {" ".join(space)} "$@"\nexec "$@"\n')
    apart.chmod(0o755)
    told = run(3, [os.fspath(apart)], tmp_path, VALUES)
    for rank in range(3):
        assert f"done {rank}" in told, told
