"""Calls of the parameter server that end with an error: what they name, and how the job goes on."""

from __future__ import annotations

from pathlib import Path

import job
import pytest
from paddlempi.testing import run

pytestmark = pytest.mark.one_abi  # the servers of all MPIs are the same


def completes_after_a_timeout() -> None:
    """Rank 0 gives a push up and ends. Its push stays a part of the step, and the job ends."""
    from paddlempi import ps
    from ps_job import DIM, IDS, begin, ones, wait_for
    from ranks_tools import done, errors, raises, stamp

    rank = begin("trainer+pserver:*", timeout=1.0)
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    if rank == 0:
        with raises(errors.TimeoutError, ranks=[1], most=5.0):
            table.push(IDS, ones())
        ps.complete()
        for call in (
            lambda: table.push(IDS, ones()),
            lambda: table.pull(IDS),
            lambda: ps.push([(table, IDS, ones())]),
            lambda: ps.RemoteTable("u", DIM),
            ps.barrier,
            lambda: ps.save("nowhere", 1),
        ):
            with raises(errors.ArgumentError, "has completed (ps.complete)", most=1.0):
                call()
        stamp("completed")
        ps.complete()
    else:
        wait_for("completed")
        table.push(IDS, ones())
        assert (table.pull(IDS) == -2).all()
    done()


def test_a_trainer_completes_after_a_timeout() -> None:
    job.succeed(2, completes_after_a_timeout)


def all_complete_after_a_timeout() -> None:
    """Nobody pushes the rest of the step: it is of those that have, and is applied at the end."""
    from paddlempi import ps
    from ps_job import DIM, IDS, begin, ones, wait_for
    from ranks_tools import done, errors, raises, stamp

    rank = begin("trainer:2,pserver:1", timeout=1.0)
    if rank == 0:
        table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
        with raises(errors.TimeoutError, ranks=[1], most=5.0):
            table.push(IDS, ones())
        ps.complete()
        stamp("completed")
    if rank == 1:
        wait_for("completed")
    done()


def test_all_trainers_complete_after_a_timeout() -> None:
    job.succeed(3, all_complete_after_a_timeout)


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


def handlers() -> None:
    """A handler pushes while its thread waits in a push: it gets an error, and the push ends."""
    import os
    import signal
    import threading
    import time

    from paddlempi import ps
    from ps_job import DIM, IDS, begin, later, ones, wait_for
    from ranks_tools import dist, done, errors, raises, stamp

    rank = begin("trainer:2,pserver:1", timeout=20.0)
    if rank == 2:
        ps.serve()
        done()
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    other = ps.RemoteTable("u", DIM, ps.SGD(1.0))
    if rank == 1:
        for name in ("handled", "threaded"):
            wait_for(name)
            table.push(IDS, ones())
        ps.barrier()
        done()
        return
    seen: list[object] = []

    def handler(*_: object) -> None:
        for call in (
            lambda: table.push(IDS, ones()),
            lambda: ps.push([(other, IDS, ones())]),
            ps.step,
            lambda: dist._native.control("ps_refuse"),
        ):
            with raises(errors.ReentrantError, "push: called by a signal handler", most=1.0):
                call()
        # What is no push does not wait for the push.
        assert (table.pull(IDS) == 0).all()
        assert (ps.RemoteTable("of the handler", DIM).pull(IDS) == 0).all()
        seen.append(time.monotonic())
        stamp("handled")

    signal.signal(signal.SIGUSR1, handler)
    later(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    table.push(IDS, ones())
    assert len(seen) == 1
    assert (table.pull(IDS) == -2).all()

    # A push of another thread is waited for, also by a handler; and Ctrl-C ends that wait.
    thread = threading.Thread(target=lambda: table.push(IDS, ones()))
    thread.start()
    time.sleep(0.3)
    later(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    with raises(KeyboardInterrupt, least=0.2, most=2.0):
        table.push(IDS, ones())
    stamp("threaded")
    thread.join()
    assert (table.pull(IDS) == -4).all()
    ps.barrier()
    done()


def test_a_handler_that_pushes() -> None:
    job.succeed(3, handlers)


def a_handler_in_init() -> None:
    """Rank 1 comes late to ps.init; a handler of rank 0 uses the parameter server meanwhile."""
    import os
    import signal

    from paddlempi import ps
    from ps_job import later, wait_for
    from ranks_tools import done, errors, raises, stamp, start

    rank = start()
    if rank == 0:

        def handler(*_: object) -> None:
            with raises(errors.ReentrantError, "interrupted ps.init", most=1.0):
                ps.init()
            for call in (lambda: ps.RemoteTable("t", 2), ps.barrier, ps.stats):
                with raises(errors.NotInitializedError, most=1.0):
                    call()
            ps.shutdown()  # there is nothing to end
            stamp("handled")

        signal.signal(signal.SIGUSR1, handler)
        later(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR1))
    else:
        wait_for("handled")
    ps.init(timeout=20.0)
    ps.barrier()
    done()


def test_a_handler_in_init() -> None:
    job.succeed(2, a_handler_in_init)


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


@pytest.mark.one_mpi
def test_a_death_that_was_caught_is_not_told_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SURVIVOR)
    ended = run(3, script, timeout=40, options=("--continuous",))
    assert ended.stderr.count("caught (2,)") == 2, ended.output
    assert "atexit" not in ended.output and "Traceback" not in ended.output, ended.output
