"""Jobs with parameter servers: unchanged scripts, ends, deaths, forks."""

from __future__ import annotations

import sys
from pathlib import Path

import job
import pytest
from paddlempi.testing import run

TRAIN = """
import os
import sys

import numpy as np
from paddlempi import ps

ps.init()
table = ps.RemoteTable("t", 3, ps.SGD(1.0))
ids = np.arange(10)
for step in range(5):
    table.push(ids, np.ones((10, 3), np.float32))
assert (table.pull(ids) == -5 * len(ps.trainers())).all()
sys.stdout.write(f"{ps.role()} {ps.trainers()} {ps.pservers()} {sys.argv[1:]}\\n")
"""


@pytest.mark.parametrize(
    ("roles", "size", "told"),
    [
        ("trainer:2,pserver:1", 3, "trainer [0, 1] [2] ['x']"),
        ("node:pserver:1,trainer:*", 3, "trainer [1, 2] [0] ['x']"),
        ("trainer+pserver:*", 2, "trainer+pserver [0, 1] [0, 1] ['x']"),
    ],
)
def test_an_unchanged_script(tmp_path: Path, roles: str, size: int, told: str) -> None:
    """Servers serve in ps.init and end with it; trainers complete when the script ends."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    command = [sys.executable, "-m", "paddlempi", "run", "--roles", roles, str(script), "x"]
    ended = run(size, command)
    assert ended.returncode == 0, ended.output
    assert ended.stdout.splitlines() == [told] * 2, ended.output


@pytest.mark.one_mpi
def test_the_variable(tmp_path: Path) -> None:
    """Without run, the servers of PADDLEMPI_ROLES go on after ps.init."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("table =", "if not ps.is_trainer(): sys.exit(0)\ntable ="))
    ended = run(2, script, env={"PADDLEMPI_ROLES": "trainer,pserver"})
    assert ended.returncode == 0, ended.output
    assert ended.stdout.splitlines() == ["trainer [0] [1] []"], ended.output


@pytest.mark.one_mpi
@pytest.mark.parametrize("roles", ["trainer:2,pserver:1", "trainer+pserver:*"])
def test_a_trainer_that_raises(tmp_path: Path, roles: str) -> None:
    """The job ends with its status. No rank waits for the others first."""
    script = tmp_path / "train.py"
    fails = "if step == 3 and ps.trainers()[0] == int(os.environ['PMIX_RANK']): 1 / 0"
    script.write_text(TRAIN.replace("    table.push", f"    {fails}\n    table.push"))
    command = [sys.executable, "-m", "paddlempi", "run", "--roles", roles, str(script)]
    ended = run(3, command, timeout=40)
    assert ended.returncode == 1 and not ended.timed_out, ended.output
    assert "ZeroDivisionError" in ended.stderr and "trainer" not in ended.stdout, ended.output


def killed_server() -> None:
    import os
    import signal

    import numpy as np
    from paddlempi import ps
    from ranks_tools import dist, errors, start

    rank = start()
    ps.init("trainer:2,pserver:1")
    if rank == 2:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    table = ps.RemoteTable("t", 3)
    try:
        for step in range(1000_000):
            table.push(np.arange(10), np.ones((10, 3), np.float32))
            if step == 20:
                dist.barrier()
    except errors.PeerDiedError as error:
        print("died", error.ranks, flush=True)
    os._exit(3)


def killed_trainer() -> None:
    import os
    import signal

    import numpy as np
    from paddlempi import ps
    from ranks_tools import errors, start

    rank = start()
    ps.init("trainer:2,pserver:1")
    try:
        if rank == 2:
            ps.serve()
        table = ps.RemoteTable("t", 3)
        for step in range(100):
            if rank == 1 and step == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            table.push(np.arange(10), np.ones((10, 3), np.float32))
    except errors.PeerDiedError as error:
        print("died", error.ranks, flush=True)
    os._exit(3)


@pytest.mark.one_mpi
def test_a_server_that_is_killed() -> None:
    ended = job.run(3, killed_server, options=("--continuous",))
    assert ended.output.count("died (2,)") == 2, ended.output


@pytest.mark.one_mpi
def test_a_trainer_that_is_killed() -> None:
    """In sync mode its server and the other trainer get the error that names it."""
    ended = job.run(3, killed_trainer, options=("--continuous",))
    assert ended.output.count("died (1,)") == 2, ended.output


def forked() -> None:
    import os

    import numpy as np
    from paddlempi import ps
    from ranks_tools import done, errors, start

    start()
    ps.init()
    table = ps.RemoteTable("t", 3)
    ids = np.arange(3)
    table.pull(ids)
    calls = [
        lambda: table.pull(ids),
        lambda: table.push(ids, np.ones((3, 3), np.float32)),
        lambda: table.prefetch(ids).wait(),
        ps.step,
        ps.stats,
        ps.complete,
        lambda: ps.RemoteTable("u", 3),
    ]
    child = os.fork()
    if child == 0:
        refused = 0
        for call in calls:
            try:
                call()
            except errors.ForkError:
                refused += 1
        raise SystemExit(40 + refused)  # the hooks of the end run in the child too
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 40 + len(calls)
    table.push(ids, np.ones((3, 3), np.float32))
    ps.shutdown()
    done()


def test_a_fork_has_no_part() -> None:
    ended = job.run(2, forked)
    assert ended.returncode == 0, ended.output
