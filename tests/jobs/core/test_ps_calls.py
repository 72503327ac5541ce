"""Calls of the parameter server that end with an error: what they name, and how the job goes on."""

from __future__ import annotations

from pathlib import Path

import job
import pytest
from paddlempi.testing import run


def complete_fails_once() -> None:
    """A server is stopped: ps.complete times out. Called again, it tells the servers."""
    import os
    import signal
    import subprocess
    import time
    from pathlib import Path

    from paddlempi import ps
    from ps_job import begin
    from ranks_tools import dist, done, errors, raises

    rank = begin("trainer+pserver:*", timeout=1.0)
    pids = [0, 0]
    dist.all_gather_object(pids, os.getpid())
    if rank == 0:
        while Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.01)
        with raises(errors.TimeoutError, most=5.0):
            ps.complete()
        ended = time.monotonic() + 30
        while time.monotonic() < ended:
            try:
                ps.complete()
                break
            except errors.TimeoutError:
                time.sleep(0.1)
    else:
        again = f"sleep 3; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", again], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    done()


def test_complete_can_be_called_again() -> None:
    job.succeed(2, complete_fails_once)


def late() -> None:
    """Two of three trainers push in time; the third waits at a barrier. Who is late is named."""
    from paddlempi import ps
    from ps_job import DIM, IDS, begin, ones, wait_for
    from ranks_tools import done, errors, raises, stamp

    rank = begin("trainer:3,pserver:2", timeout=2.0)
    if rank > 2:
        ps.serve()
        done()
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    table.push(IDS, ones())
    if rank == 1:
        with raises(errors.TimeoutError, ranks=[0, 2], most=5.0):
            ps.barrier("elsewhere")
        wait_for("late-0")
        wait_for("late-2")
        table.push(IDS, ones())
    else:
        text = "push: trainers of ranks [1] have not pushed this step by the deadline of 2s"
        with raises(errors.TimeoutError, text, ranks=[1], most=6.0):
            table.push(IDS, ones())
        with raises(errors.TimeoutError, "pull: trainers of ranks [1]", ranks=[1], most=6.0):
            table.pull(IDS)
        stamp(f"late-{rank}")
    assert (table.pull(IDS) == -6).all()
    done()


def test_a_late_trainer_is_named() -> None:
    job.succeed(5, late)


KV = """
import sys
import numpy as np
from paddlempi import errors, ps

@ps.server_function("f")
def f(request):
    raise ValueError("keys of this kind")

ps.init("trainer,pserver")
if ps.is_trainer():
    kv = ps.KV("f")
    first = kv.push(np.arange(3), np.ones((3, 1), np.float32))
    {end}
ps.shutdown()
sys.stdout.write("ended\\n")
"""

ENDS = {
    "caught": """
    try:
        ps.complete()
        sys.exit(3)
    except errors.RefusedError as error:
        assert "call 1 of KV 'f' has failed" in str(error).replace('"', "'"), error
        assert error.ranks == (1,), error.ranks
    try:
        kv.wait(first)
        sys.exit(4)
    except errors.RefusedError as error:
        assert "ValueError: keys of this kind" in str(error)
    """,
    "complete": "ps.complete()",
    "nothing": "pass",
    "the end of the program": "sys.exit()",
}


@pytest.mark.launcher("the end of a program and its status")
@pytest.mark.parametrize("end", ENDS)
def test_an_exception_of_a_function_for_which_nobody_waits(tmp_path: Path, end: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(KV.replace("{end}", ENDS[end].strip()))
    ended = run(2, script, timeout=40)
    assert (ended.returncode == 0) == (end == "caught"), ended.output
    assert end == "caught" or "RefusedError" in ended.stderr, ended.output
    assert "ValueError: keys of this kind" in ended.stderr or end == "caught", ended.output
    assert "atexit" not in ended.output, ended.output


SURVIVOR = """
import os
import signal
import sys
import numpy as np
import paddlempi as dist
from paddlempi import errors, ps

ps.init("trainer:2,pserver:1", mode="async")
if not ps.is_trainer():
    dist.barrier()
    os.kill(os.getpid(), signal.SIGKILL)
table = ps.RemoteTable("t", 3)
dist.barrier()
try:
    while True:
        table.push(np.arange(10), np.ones((10, 3), np.float32))
except errors.PeerDiedError as error:
    sys.stderr.write(f"caught {error.ranks}\\n")
"""


@pytest.mark.launcher("the end of a program after a death", only=["openmpi"])
def test_a_death_that_was_caught_is_not_told_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SURVIVOR)
    ended = run(3, script, timeout=40, options=("--continuous",))
    assert ended.stderr.count("caught (2,)") == 2, ended.output
    assert "atexit" not in ended.output and "Traceback" not in ended.output, ended.output
