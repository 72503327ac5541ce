"""Jobs that no mpirun has started: ranks that meet in a file, at a port, and by ``run -np``.

None of them loads an MPI. They are the same under every MPI that is installed.
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from fresh_signals import take_signals
from outside import environment
from ports import unused

# arguments: rank, number of ranks, init_method, deadline, and what happens after init
PROGRAM = """
import os, signal, sys, time
from array import array
import paddlempi as dist
from paddlempi.errors import Error

rank, size, method, timeout, what = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6]
given = {} if method == "none" else {"rank": rank, "world_size": size, "init_method": method}
print("comes", flush=True)
try:
    dist.init_process_group(timeout=float(timeout), **given)
    x = array("d", [1.0, dist.get_rank()])
    dist.all_reduce(x)
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, dist.get_rank())
    assert names == list(range(dist.get_world_size())), names
    assert x[0] == dist.get_world_size() == dist.get_local_size()
    assert not any("libmpi" in line for line in open("/proc/self/maps")), "it has loaded an MPI"
    # One write: on a busy machine parts of lines are handed on, and mixed (forward.py).
    print(f"world {dist.get_rank()} {dist.get_world_size()}\\n", end="", flush=True)
    if what == "again":
        dist.destroy_process_group()
        dist.init_process_group(timeout=float(timeout), **given)
        dist.barrier()
    dist.barrier()  # all have said so
    if what == "kill" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "raise" and dist.get_rank() == 1:
        raise ValueError("of the program")
    if what in ("kill", "raise", "wait"):
        time.sleep(60 if what == "wait" else 0)
        dist.barrier()
except Error as error:
    print(f"{type(error).__name__} {error.ranks} {error}", flush=True)
    sys.exit(3)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@contextmanager
def started(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes, and leave none."""
    processes = [
        subprocess.Popen(
            command,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=take_signals,
        )
        for command in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def ranks(
    program: Path, size: int, method: str, what: str = "", *, timeout: float = 20
) -> list[list[str]]:
    """Return the commands of all ranks of a job."""
    words = [str(size), method, str(timeout), what]
    return [[sys.executable, str(program), str(rank), *words] for rank in range(size)]


def ended(processes: Sequence[subprocess.Popen[str]], limit: float = 60) -> list[tuple[int, str]]:
    """Wait for processes. Return status and output of each."""
    end = time.monotonic() + limit
    found = []
    for process in processes:
        output, _ = process.communicate(timeout=max(0.1, end - time.monotonic()))
        found.append((process.returncode, output))
    return found


def test_in_a_file(program: Path, tmp_path: Path) -> None:
    meeting = tmp_path / "meeting"
    for size in (1, 2, 3):
        with started(ranks(program, size, f"file://{meeting}", "again")) as processes:
            for rank, (status, output) in enumerate(ended(processes)):
                assert status == 0 and f"world {rank} {size}\n" in output, output
        assert not meeting.exists()


def test_at_a_port(program: Path) -> None:
    with started(ranks(program, 3, f"tcp://127.0.0.1:{unused()}", "again")) as processes:
        for rank, (status, output) in enumerate(ended(processes)):
            assert status == 0 and f"world {rank} 3\n" in output, output


def test_one_that_never_comes(program: Path, tmp_path: Path) -> None:
    method = f"file://{tmp_path / 'meeting'}"
    with started(ranks(program, 3, method, timeout=5)[:2]) as processes:
        for status, output in ended(processes):
            assert status == 3 and "TimeoutError (2,)" in output, output
            assert "rank(s) [2] of 3 had not come" in output


def test_killed_during_the_meeting(program: Path, tmp_path: Path) -> None:
    """All but one rank wait, are killed at any moment, and started anew with the same file."""
    chance, meeting = random.Random(3), tmp_path / "meeting"
    commands = ranks(program, 3, f"file://{meeting}")
    for _ in range(3):
        with started(commands[:2]) as processes:
            for process in processes:
                assert process.stdout is not None
                assert process.stdout.readline() == "comes\n"
            time.sleep(chance.uniform(0, 0.2))
    with started(commands) as processes:
        for status, output in ended(processes):
            assert status == 0, output


def test_a_rank_is_started_anew_while_others_wait(program: Path, tmp_path: Path) -> None:
    commands = ranks(program, 3, f"file://{tmp_path / 'meeting'}")
    with started([commands[0], commands[1]]) as waiting:
        time.sleep(0.5)
        waiting[1].kill()
        with started(commands[1:]) as others:
            for status, output in ended([waiting[0], *others]):
                assert status == 0, output


def test_two_jobs_at_once_with_one_file(program: Path, tmp_path: Path) -> None:
    commands = ranks(program, 2, f"file://{tmp_path / 'meeting'}", timeout=3)
    with started([*commands, *commands]) as processes:
        outputs = ended(processes)
    assert all(status in (0, 3) for status, _ in outputs), outputs
    joined = sorted(o.partition("world ")[2][:1] for status, o in outputs if status == 0)
    assert joined in ([], ["0", "1"], ["0", "0", "1", "1"]), outputs


def run(program: Path, size: int, what: str, *options: str) -> list[str]:
    this = [sys.executable, "-m", "paddlempi", "run", *options, "-np", str(size)]
    return [*this, str(program), "0", "0", "none", "20", what]


def test_run_np(program: Path) -> None:
    with started([run(program, 3, "again")]) as processes:
        [(status, output)] = ended(processes)
    assert status == 0, output
    assert {f"world {rank} 3" for rank in range(3)} <= set(output.splitlines()), output


@pytest.mark.parametrize(("what", "expected"), [("kill", 128 + signal.SIGKILL), ("raise", 1)])
def test_run_np_ends_the_survivors(program: Path, what: str, expected: int) -> None:
    with started([run(program, 3, what)]) as processes:
        [(status, output)] = ended(processes)
    assert status == expected, output
    told = re.findall(r"paddlempi run: rank (\d) \(process \d+\) was ended by SIGKILL", output)
    assert told == (["1"] if what == "kill" else []), output
    if what == "kill":  # the others have the time to say so
        assert output.count("PeerDiedError (1,)") == 2, output


def test_run_np_with_restarts(program: Path) -> None:
    with started([run(program, 2, "kill", "--restarts", "1")]) as processes:
        [(status, output)] = ended(processes)
    assert status == 128 + signal.SIGKILL, output
    assert output.count("world 0 2\n") == 2 and "starting attempt 1" in output, output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_np_is_ended(program: Path, number: int) -> None:
    """Its ranks end with it, whatever ends it."""
    with started([run(program, 2, "wait")]) as [process]:
        assert process.stdout is not None
        worlds = 0
        while worlds < 2:
            line = process.stdout.readline()
            assert line, "it has ended"
            worlds += line.startswith("world")
        process.send_signal(number)
        process.stdout.read()  # until no rank has it open
        status = process.wait(30)
        assert status == -number if number == signal.SIGKILL else status == 128 + number


def test_launch(tmp_path: Path) -> None:
    script = tmp_path / "cells.py"
    script.write_text("""
import os
from array import array
from multiprocessing import resource_tracker as tracker
import paddlempi as dist
from paddlempi.errors import RankFailedError, UnsupportedError

def train(what):
    dist.init_process_group(timeout=20)
    x = array("d", [dist.get_rank()])
    dist.all_reduce(x)
    if what == "fail" and dist.get_rank() == 1:
        raise ValueError("of rank 1")
    if what == "killed" and dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    return x[0]

def bound():
    dist.init_process_group(timeout=20)
    cpus = [None] * dist.get_world_size()
    dist.all_gather_object(cpus, os.sched_getaffinity(0))
    return cpus

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        assert dist.launch(train, 3, ("",), method=method) == [3.0] * 3
        for what, text in (("fail", "ValueError: of rank 1"), ("killed", "by SIGKILL")):
            try:
                dist.launch(train, 2, (what,), method=method)
            except RankFailedError as error:
                assert error.ranks == (1,) and text in str(error), error
            else:
                raise AssertionError("no error")
        cpus = os.sched_getaffinity(0)
        first, second = dist.launch(bound, 2, method=method, bind=True)
        assert first == second and first[0] | first[1] == cpus, first
        assert len(cpus) == 1 or not first[0] & first[1], first
        assert os.sched_getaffinity(0) == cpus
        assert method == "fork" or os.sched_getaffinity(tracker._resource_tracker._pid) == cpus
    dist.is_available()
    try:
        dist.launch(train, 2, ("",), method="fork")
    except UnsupportedError as error:
        assert "the core of paddlempi is loaded" in str(error)
    print("done")
""")
    with started([[sys.executable, str(script)]]) as processes:
        [(status, output)] = ended(processes)
    assert status == 0 and output.endswith("done\n"), output


def test_bench() -> None:
    """The benchmark runs, and says that there is no MPI to compare with."""
    command = [sys.executable, "-m", "paddlempi", "run", "-np", "2", "-m", "paddlempi", "bench"]
    more = ["all_reduce", "sendrecv", "--max", "4K", "--iterations", "9", "--against", "mpi,mpi4py"]
    with started([[*command, *more]]) as processes:
        status, told = ended(processes)[0]
    assert status == 0, told
    assert "without MPI, 2 ranks on 1 node" in told, told
    assert "this job runs without MPI" in told, told
