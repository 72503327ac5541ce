"""Jobs are recorded while they run: docs/why-is-my-step-slow.md."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from outside import environment
from paddlempi import trace
from paddlempi.trace.model import ASYNC, MESSAGE

PADDLEMPI = [sys.executable, "-m", "paddlempi"]
DEADLINE = 60

# arguments: calls, seconds between two calls, what happens
PROGRAM = """
import os, signal, sys, time
import numpy as np
import paddlempi as dist

calls, pause, what = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
dist.init_process_group()
rank, x = dist.get_rank(), np.ones(4, np.float32)
print("begun", os.getpid(), flush=True)
for i in range(calls):
    dist.all_reduce(x)
    time.sleep(pause)
if what == "waits":
    work = dist.all_reduce(np.ones(8, np.float64), async_op=True)
    time.sleep(0.05)
    if rank == 1:
        time.sleep(0.1)
    work.wait()
    sizes = [(rank + 1) * (peer + 1) for peer in range(2)]
    shares = [np.ones(n, np.float32) for n in sizes]
    dist.all_to_all([np.empty_like(share) for share in shares], shares)
    dist.all_gather([np.empty(n, np.float32) for n in (5, 0)], np.ones(5 - 5 * rank, np.float32))
    if rank == 0:
        dist.send(x, 1, tag=7)
    else:
        dist.recv(x, 0, tag=7)
if what == "killed":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)
"""


def program(folder: Path) -> str:
    path = folder / "program.py"
    path.write_text(PROGRAM)
    return str(path)


def run(folder: Path, *arguments: str, options: tuple[str, ...] = ()) -> trace.Timeline:
    """Run two ranks with --timeline; return what was recorded."""
    output = folder / "run.json"
    command = [*PADDLEMPI, "run", "-np", "2", "--timeline", str(output), *options]
    command += [program(folder), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE, env=environment(), check=False
    )
    assert f"{output}: 2 ranks, " in done.stderr, done
    assert (done.returncode == 0) == ("killed" not in arguments), done
    assert not [name for name in os.listdir(folder) if name.startswith(".")], "a file is left"
    return trace.load(output)


def of_rank(found: trace.Timeline, rank: int, name: str) -> np.ndarray:
    rows = found.operations[found.operations["rank"] == rank]
    return rows[rows["name"] == found.names.operations.index(name)]


def test_a_whole_job(tmp_path: Path) -> None:
    began = time.time_ns()
    found = run(tmp_path, "3000", "0", "waits")
    assert [rank.lost for rank in found.ranks.values()] == [0, 0]
    assert found.warnings == []
    for rank in (0, 1):
        calls = of_rank(found, rank, "all_reduce")
        assert len(calls) == 3001
        assert (np.diff(calls["seq"]) == 1).all()
        assert (calls["ended"] >= calls["submitted"]).all()
        assert began < calls["submitted"].min() and calls["ended"].max() < time.time_ns()
        last = calls[-1]
        assert last["flags"] == ASYNC and last["nbytes"] == 64
        assert (calls["waited"][:-1] == 0).all()
        assert found.groups[last["group"]].ranks == (0, 1)
    # On one clock: neither has ended a collective before the other one has come to it.
    first, second = (of_rank(found, rank, "all_reduce") for rank in (0, 1))
    assert (first["ended"] > second["submitted"]).all()
    assert (second["ended"] > first["submitted"]).all()
    # Rank 0 waits after 50 ms for rank 1, which comes to its own wait 100 ms later.
    waits = first[-1]["waited"] - first[-1]["submitted"]
    assert first[-1]["waited"] == 0 or waits > 40_000_000
    # Where members have shares of different lengths, each has its own in its record.
    for name, nbytes in (("all_to_all", (12, 24)), ("all_gather", (20, 0))):
        uneven = [of_rank(found, rank, name)[-1] for rank in (0, 1)]
        assert [(row["count"], row["nbytes"]) for row in uneven] == [(-1, n) for n in nbytes]
    sent, came = of_rank(found, 0, "send"), of_rank(found, 1, "recv")
    for row, peer in ((sent[-1], 1), (came[-1], 0)):
        assert row["flags"] & MESSAGE and row["peers"][0] == peer and row["tags"][0] == 7


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """What it did last is there, and when it ended; so is what the other one waits for."""
    found = run(tmp_path, "200", "0.001", "killed")
    assert len(of_rank(found, 1, "all_reduce")) == 200
    dead, other = found.ranks[1], of_rank(found, 0, "all_reduce")
    assert dead.state == "ended"
    assert 0 <= dead.ended - of_rank(found, 1, "all_reduce")["ended"].max() < 1_000_000_000
    assert len(other) == 201


@contextmanager
def job(folder: Path, *arguments: str) -> Iterator[list[int]]:
    """Run a job of two ranks; yield their processes."""
    command = [*PADDLEMPI, "run", "-np", "2", program(folder), *arguments]
    ranks = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    with ranks:
        try:
            assert ranks.stdout is not None
            pids = [int(ranks.stdout.readline().split()[1]) for _ in range(2)]
            yield pids
        finally:
            ranks.terminate()


def record(output: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [*PADDLEMPI, "trace", "record", "-o", str(output), *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment())


def test_two_jobs_of_a_host(tmp_path: Path) -> None:
    """The second one begins after the recording. A process without a trace is named."""
    with job(tmp_path, "1000000", "0.001", "") as first:
        output = tmp_path / "a.json"
        recorder = record(output, "--for", "1.5", *map(str, first), str(os.getpid()))
        everything = record(tmp_path / "all.json", "--all")
        with job(tmp_path, "1000000", "0.001", "") as second:
            told, problems = recorder.communicate(timeout=DEADLINE)
            assert recorder.returncode == 0
            assert f"{output}: 2 ranks, " in told and "none lost" in told
            assert f"process {os.getpid()} has no trace" in problems
            ambiguous = record(tmp_path / "none.json", "--for", "0.1")
            _, problems = ambiguous.communicate(timeout=DEADLINE)
            assert ambiguous.returncode == 2 and "jobs: give --all, or --job with" in problems
            everything.send_signal(signal.SIGINT)
            everything.communicate(timeout=DEADLINE)
            assert everything.returncode == 0
    found = trace.load(output)
    assert sorted(rank.pid for rank in found.ranks.values()) == sorted(first)
    assert len(found.operations) > 500 and not found.ranks[0].ended
    both = trace.load(tmp_path / "all.json")
    others = re.findall(r"are of another job, (\w+), and", " ".join(both.warnings))
    jobs = [both, *(trace.load(tmp_path / "all.json", job=name) for name in others)]
    pids = [sorted(rank.pid for rank in found.ranks.values()) for found in jobs]
    assert sorted(first) in pids and sorted(second) in pids


def test_a_recording_without_ranks(tmp_path: Path) -> None:
    recorder = record(tmp_path / "a.json", "--for", "0.2", str(os.getpid()))
    told, _ = recorder.communicate(timeout=DEADLINE)
    assert recorder.returncode == 1 and "0 ranks" in told
    unwritable = record(tmp_path / "none" / "a.json", "--for", "1")
    _, problems = unwritable.communicate(timeout=DEADLINE)
    assert unwritable.returncode == 1 and f"cannot write into {tmp_path}/none" in problems
