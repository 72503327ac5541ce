"""Jobs with parameter servers: unchanged scripts, ends, deaths, forks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import job
import numpy as np
import pytest
from paddlempi.testing import launch, run

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


@pytest.mark.launcher("python -m paddlempi run --roles")
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


DIES = """
import os
import signal
import sys
import time

import numpy as np
import paddlempi as dist
from paddlempi import ps

ps.init(mode=sys.argv[1])
table = ps.RemoteTable("t", 3, ps.SGD(1.0))
for step in range(30):
    table.push(np.arange(10), np.ones((10, 3), np.float32))
    if step == 5 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
"""


def keeping(
    tmp_path: Path, program: str, np: int, roles: str, argument: str, *, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a script as ``np`` ranks whose launcher leaves the others alone when one dies."""
    script = tmp_path / "train.py"
    script.write_text(program)
    run_in = [sys.executable, "-m", "paddlempi", "run"]
    ranks = launch.command(np, [*run_in, "--roles", roles, str(script), argument])
    return subprocess.run(
        [*run_in, "--keep-survivors", "--", *ranks.argv],
        env=ranks.env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.launcher("python -m paddlempi run --keep-survivors", only=["openmpi"])
@pytest.mark.parametrize("mode", ["async", "sync"])
def test_run_keeps_survivors(tmp_path: Path, mode: str) -> None:
    """Asynchronous training goes on without a dead trainer, and synchronous ends with its name."""
    ended = keeping(tmp_path, DIES, 4, "trainer:3,pserver:1", mode, timeout=90)
    output = ended.stdout + ended.stderr
    assert (ended.returncode == 0) == (mode == "async"), output
    assert ("PeerDiedError" in output and "rank 1" in output) == (mode == "sync"), output


DIES_FIRST = """
import os
import signal
import sys
import time
from pathlib import Path

import paddlempi as dist
from paddlempi import ps

ps.init(mode="async")
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
while ps.stats()["servers"][0]["trainers"][1]["state"] != "lost":
    time.sleep(0.01)
Path(sys.argv[1]).touch()
"""


def test_the_others_end_after_a_death(tmp_path: Path) -> None:
    """They do not call MPI_Finalize, which might never end."""
    mark = tmp_path / "ended"
    ended = keeping(tmp_path, DIES_FIRST, 3, "trainer:2,pserver:1", str(mark), timeout=60)
    output = ended.stdout + ended.stderr
    assert mark.exists() or launch.command(1, ["true"]).kind == "mpich", output


@pytest.mark.launcher("a program that ends with its servers", only=["openmpi"])
def test_the_variable(tmp_path: Path) -> None:
    """Without run, the servers of PADDLEMPI_ROLES go on after ps.init."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("table =", "if not ps.is_trainer(): sys.exit(0)\ntable ="))
    ended = run(2, script, env={"PADDLEMPI_ROLES": "trainer,pserver"})
    assert ended.returncode == 0, ended.output
    assert ended.stdout.splitlines() == ["trainer [0] [1] []"], ended.output


@pytest.mark.launcher("the status of the launcher", only=["openmpi"])
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
    import time

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
        print(f"died {error.ranks}\n", end="", flush=True)
    time.sleep(3)  # the end of this rank would be another death, and end the launcher
    os._exit(3)


def killed_trainer() -> None:
    import os
    import signal
    import time

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
        print(f"died {error.ranks}\n", end="", flush=True)
    time.sleep(3)  # the end of this rank would be another death, and end the launcher
    os._exit(3)


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_a_server_that_is_killed() -> None:
    ended = job.run(3, killed_server, options=("--continuous",))
    assert ended.output.count("died (2,)") == 2, ended.output


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
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


@pytest.mark.launcher("a child that ends as Python ends")
def test_a_fork_has_no_part() -> None:
    ended = job.run(2, forked)
    assert ended.returncode == 0, ended.output


def interrupted() -> None:
    import os
    import signal
    import threading
    import time

    import numpy as np
    from paddlempi import ps
    from ranks_tools import dist, start

    rank = start()
    ps.init("trainer:2,pserver:1")
    waits = [ps.serve]
    if rank < 2:
        table = ps.RemoteTable("t", 3)
        waits = [ps.barrier, lambda: table.push(np.arange(10), np.ones((10, 3), np.float32))]
    for wait in waits if rank != 1 else []:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            wait()
        except KeyboardInterrupt:
            assert time.monotonic() - began < 10
            print("interrupted", flush=True)
    dist.barrier()
    os._exit(0)


def test_ctrl_c_ends_waits() -> None:
    """A trainer that waits for another one in a barrier and in a push, and a server."""
    ended = job.run(3, interrupted, timeout=40)
    assert ended.output.count("interrupted") == 3, ended.output


RESTARTED = """
import os
import signal
import sys
from pathlib import Path

import numpy as np
from paddlempi import errors, ps

here, dies = Path(sys.argv[1]), int(sys.argv[2])
ps.init()
rank, first = ps.session.current("test").rank, os.environ["PADDLEMPI_RESTART"] == "0"
table = ps.RemoteTable("t", 3, ps.Adagrad(0.1))
ids = np.arange(1000)
begin = 0
if not first:
    begin = ps.restore(here / "cuts")["step"]
for step in range(begin, 30):
    if step % 8 == 0 and step > begin:
        ps.save(here / "cuts", step)
    if first and step == 20 and rank == 0:
        os.kill(os.getpid() if dies == 0 else int((here / "server").read_text()), signal.SIGKILL)
    table.push(ids, np.full((1000, 3), step + rank, np.float32))
rows = table.pull(ids)
(here / f"rank {rank} from {begin}").write_text(str(float(rows.sum())))
"""


@pytest.mark.launcher("python -m paddlempi run --restarts", only=["openmpi"])
@pytest.mark.parametrize("dies", [0, 2], ids=["trainer", "server"])
def test_a_job_goes_on_from_the_last_cut(tmp_path: Path, dies: int) -> None:
    """A trainer or the server is killed in the first attempt; the rows are as if none had been."""
    script = tmp_path / "train.py"
    told = "import os\nif os.environ.get('PMIX_RANK') == '2':\n"
    told += f"    open({str(tmp_path / 'server')!r}, 'w').write(str(os.getpid()))\n"
    script.write_text(told + RESTARTED)
    inner = [sys.executable, "-m", "paddlempi", "run", "--roles", "trainer:2,pserver:1"]
    ranks = launch.command(3, [*inner, str(script), str(tmp_path), str(dies)])
    outer = [sys.executable, "-m", "paddlempi", "run", "--restarts", "1", "--", *ranks.argv]
    done = subprocess.run(outer, env=ranks.env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"paddlempi run: attempt 0 ended", done.stderr)) == 1, done.stderr
    squares, row = np.float32(0), np.float32(0)
    for step in range(30):
        gradient = np.float32(2 * step + 1)
        squares += gradient * gradient
        row -= np.float32(0.1) * gradient / np.sqrt(squares)
    for rank in range(2):
        total = float((tmp_path / f"rank {rank} from 16").read_text())
        assert abs(total / 3000 - row) < 1e-4, (total / 3000, row)
