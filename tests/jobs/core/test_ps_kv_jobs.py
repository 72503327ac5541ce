"""Functions of servers in whole jobs: unchanged scripts, deaths, forks, functions that are slow."""

from __future__ import annotations

import sys
from pathlib import Path

import job
import pytest
from paddlempi.testing import run

SCRIPT = """
import sys

import numpy as np
from paddlempi import ps

store = {}

@ps.server_function("counts")
def counts(request):
    for i, key in enumerate(request.keys.tolist()):
        if request.push:
            store[key] = store.get(key, 0) + request.values[i]
    if request.pull:
        return [store[key] for key in request.keys.tolist()]

ps.init()
kv = ps.KV("counts", dim=2)
keys = np.arange(100)
kv.push(keys, np.ones((100, 2), np.float32))
kv.wait(kv.push(keys, np.ones((100, 2), np.float32)))
ps.barrier()
rows = kv.wait(kv.pull(keys))
assert (rows == 2 * len(ps.trainers())).all()
ps.barrier()
tables = [table for server in ps.stats()["servers"] for table in server["tables"]]
assert {table["kind"] for table in tables} == {"kv"}
pushed = sum(table["pushed"] for table in tables)
ps.barrier()
kv.push(keys, rows)  # the end of the program waits for it
sys.stdout.write(f"{ps.role()} {pushed}\\n")
"""


@pytest.mark.launcher("python -m paddlempi run --roles")
@pytest.mark.parametrize("roles", ["trainer:2,pserver:1", "trainer+pserver:*"])
def test_an_unchanged_script(tmp_path: Path, roles: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "paddlempi", "run", "--roles", roles, str(script)]
    ended = run(3, command)
    assert ended.returncode == 0, ended.output
    trainers = 2 if ":2" in roles else 3
    assert [line.split()[1] for line in ended.stdout.splitlines()] == [
        str(200 * trainers)
    ] * trainers


def deaths() -> None:
    """A trainer dies while its call waits; then a server dies while the others' do."""
    import threading

    import numpy as np
    from paddlempi import errors, ps
    from ps_job import begin, die, later, leave, wait_for
    from ranks_tools import raises, stamp

    @ps.server_function("f")
    def f(request: ps.KVRequest) -> object:
        if request.command == 1:
            stamp("called")
            wait_for("died")
        if request.command == 2:
            stamp("called again")
            die()
        return np.ones((len(request.keys), 1))

    rank = begin("trainer:2,pserver:1", mode="async", timeout=60)
    if rank == 2:
        ps.serve()
    kv = ps.KV("f")
    keys = np.arange(10)
    if rank == 1:
        kv.pull(keys, command=1)
        wait_for("called")
        later(0.2, die)
    else:
        wait_for("died")
        assert (kv.wait(kv.pull(keys)) == 1).all()  # the server goes on
        with raises(errors.PeerDiedError, "rank 2", ranks=[2], most=10.0):
            kv.wait(kv.pull(keys, command=2))
        with raises(errors.PeerDiedError, "rank 2", ranks=[2], most=10.0):
            kv.wait(kv.pull(keys))
        leave(rank, [])
    threading.Event().wait(30)


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_deaths() -> None:
    ended = job.run(3, deaths, options=("--continuous",))
    assert ended.result.stdout.count("done\n") == 1, ended.output


def a_function_that_does_not_return() -> None:
    """The trainer's call times out; others wait behind it; the job ends all the same."""
    import time

    import numpy as np
    from paddlempi import errors, ps
    from ps_job import begin
    from ranks_tools import raises

    @ps.server_function("slow")
    def slow(request: ps.KVRequest) -> object:
        time.sleep(3.0 if request.command else 0.0)
        return request.keys[:, None]

    begin("trainer,pserver", timeout=1.0)
    if ps.is_trainer():
        kv = ps.KV("slow", dtype="int64")
        keys = np.arange(4)
        with raises(errors.TimeoutError, "rank 1", ranks=[1], most=20.0):
            kv.wait(kv.pull(keys, command=1))
        for _ in range(20):  # until it has returned
            try:
                assert (kv.wait(kv.pull(keys)) == keys[:, None]).all()
                break
            except errors.TimeoutError:
                pass
        else:
            raise AssertionError("the server does not answer any more")
    ps.shutdown()


def test_a_function_that_does_not_return() -> None:
    ended = job.run(2, a_function_that_does_not_return)
    assert ended.result.returncode == 0, ended.output


def forks() -> None:
    """A fork has no part in a KV, and leaves its parent's as it is."""
    import os

    import numpy as np
    from paddlempi import errors, ps
    from ps_job import begin

    @ps.server_function("f")
    def f(request: ps.KVRequest) -> object:
        return request.keys[:, None] * 2

    begin("trainer+pserver:*")
    kv = ps.KV("f", dtype="int64")
    keys = np.arange(4)
    for _ in range(2):
        child = os.fork()
        if child == 0:
            try:
                kv.pull(keys)
            except errors.ForkError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert (kv.wait(kv.pull(keys)) == keys[:, None] * 2).all()
    ps.shutdown()


@pytest.mark.launcher("children of a process with MPI")
def test_forks() -> None:
    ended = job.run(2, forks)
    assert ended.result.returncode == 0, ended.output
