"""Parameter servers and trainers that die, stop, leave, fork and err."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import job
import numpy as np
import pytest
from paddlempi import ps
from ranks_tools import LATE


def survive(
    np: int, program: Callable[[], object], living: int, env: Mapping[str, str] | None = None
) -> job.Ended:
    """Run a program in which ranks die. Fail unless ``living`` ranks came to its end.

    The option lets the other ranks live. It is Open MPI's: such tests run under one MPI.
    """
    ended = job.run(np, program, options=("--continuous",), env=env)
    assert ended.result.stdout.count("done\n") == living, ended.output
    return ended


def a_trainer_dies_in_async_mode() -> None:

    from paddlempi import ps
    from ps_job import DIM, IDS, begin, die, leave, ones, wait_for

    rank = begin("trainer:3,pserver:1", mode="async")
    if rank == 3:
        ps.serve()
        leave(rank, [0, 2])
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    for _ in range(5):
        table.push(IDS, ones())
    ps.barrier()
    if rank == 1:
        die()
    wait_for("died")
    ps.barrier("without the dead one")
    for _ in range(20):
        table.pull(IDS)
        table.push(IDS, ones())
    ps.barrier("all is pushed")
    assert (table.pull(IDS) == -15 - 40).all()
    told = ps.stats()["servers"][0]["trainers"]
    assert [one["state"] == "lost" for one in told] == [False, True, False], told
    ps.complete()
    leave(rank, [0, 2, 3])


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_a_trainer_that_dies_in_async_mode_is_dropped() -> None:
    survive(4, a_trainer_dies_in_async_mode, 3)


def a_trainer_dies_in_sync_mode() -> None:
    from paddlempi import ps
    from ps_job import DIM, IDS, begin, die, leave, ones
    from ranks_tools import errors, raises

    rank = begin("trainer:3,pserver:2")
    if rank > 2:
        with raises(errors.PeerDiedError, "rank 1", ranks=[1], most=30.0):
            ps.serve()
        leave(rank, [0, 2, 3, 4])
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    for _ in range(5):
        table.push(IDS, ones())
    if rank == 1:
        die()
    with raises(errors.PeerDiedError, "rank 1", ranks=[1], most=5.0):
        table.push(IDS, ones())
    for call in (
        lambda: table.pull(IDS),
        lambda: table.push(IDS, ones()),
        ps.barrier,
        lambda: ps.RemoteTable("other", DIM),
        ps.complete,
    ):
        with raises(errors.PeerDiedError, "rank 1", ranks=[1], most=1.0):
            call()
    leave(rank, [0, 2, 3, 4])


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_a_trainer_that_dies_in_sync_mode_is_named_everywhere() -> None:
    survive(5, a_trainer_dies_in_sync_mode, 4)


def a_server_dies() -> None:
    """The waits of both trainers end: of one that pulls and pushes, and of one in a barrier.

    Each of them asks both servers. In sync mode the push to the server that lives waits too.
    """
    import os

    from paddlempi import ps
    from ps_job import DIM, IDS, begin, die, later, leave, ones, wait_for
    from ranks_tools import errors, raises, stamp

    mode, folder = os.environ["PS_MODE"], os.environ["PS_FOLDER"]
    rank = begin("trainer:2,pserver:2", mode=mode)
    if rank == 3:
        later(0.0, lambda: (wait_for("saved"), die()))
        ps.serve()
    if rank == 2:
        with raises(errors.PeerDiedError, "rank 3", ranks=[3], most=30.0):
            ps.serve()
        leave(rank, [0, 1])
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    table.push(IDS, ones())
    ps.barrier("pushed")
    ps.save(folder, 1)

    def steps() -> None:
        for _ in range(1_000_000):
            table.pull(IDS)
            table.push(IDS, ones())

    def cuts() -> None:
        for step in range(2, 1_000_000):
            ps.save(folder, step)
            if step == 4:
                stamp("saved")

    if mode == "sync":
        stamp("saved")
    with raises(errors.PeerDiedError, "rank 3", ranks=[3], most=30.0):
        if mode == "async":
            cuts()
        elif rank == 0:
            steps()
        else:
            ps.barrier("nobody comes")
    # The other server may not know yet. That both trainers complete is no good end for it.
    for call in (
        ps.complete,
        lambda: table.pull(IDS),
        lambda: table.push(IDS, ones()),
        lambda: table.prefetch(IDS).wait(),
        ps.barrier,
        lambda: ps.save(folder, 10**9),
        ps.stats,
    ):
        with raises(errors.PeerDiedError, "rank 3", ranks=[3], most=3.0):
            call()
    leave(rank, [1 - rank, 2])


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_server_that_dies_is_named_everywhere(mode: str, tmp_path: Path) -> None:
    env = {"PS_MODE": mode, "PS_FOLDER": str(tmp_path)}
    ended = survive(4, a_server_dies, 3, env=env)
    assert ended.at - ended.stamp("died") < 10 + LATE
    saved = ps.load(tmp_path)["t"]
    assert len(saved) == 64 and (saved.pull(np.arange(64)) == -2).all()


def the_first_trainer_dies_in_a_save() -> None:
    """It lets the servers write for all trainers, and the next one does it instead."""
    import os
    from pathlib import Path

    import numpy as np
    from paddlempi import ps
    from ps_job import DIM, IDS, begin, die, later, leave, ones

    folder = Path(os.environ["PS_FOLDER"])
    rank = begin("trainer:3,pserver:1", mode="async")
    if rank == 3:
        ps.serve()
        leave(rank, [1, 2])
    table, large = ps.RemoteTable("t", DIM, ps.SGD(1.0)), ps.RemoteTable("large", 256)
    table.push(IDS, ones())
    if rank == 1:
        large.pull(np.arange(40_000))
    ps.save(folder, 1)

    def strike() -> None:
        while not list(folder.glob("cut-00000002/part-*")):
            pass
        die()

    if rank == 0:
        later(0.0, strike)
    ps.save(folder, 2)
    assert rank != 0, "the cut was complete before the trainer died"
    ps.save(folder, 3)
    ps.complete()
    leave(rank, [3 - rank, 3])


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_the_first_trainer_dies_in_a_save_in_async_mode(tmp_path: Path) -> None:
    ended = survive(4, the_first_trainer_dies_in_a_save, 3, env={"PS_FOLDER": str(tmp_path)})
    assert ended.stamp("died")
    for step in 2, 3:
        saved = ps.load(tmp_path, step=step)["t"]
        assert (saved.pull(np.arange(64)) == -3).all()


def a_trainer_is_stopped() -> None:
    import os
    import signal
    import subprocess
    import time

    from paddlempi import ps
    from ps_job import DIM, IDS, begin, ones
    from ranks_tools import done

    rank = begin("trainer:2,pserver:1")
    if rank == 2:
        ps.serve()
        done()
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    table.push(IDS, ones())
    began = time.monotonic()
    if rank == 1:
        again = f"sleep 3; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", again], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    table.push(IDS, ones())
    assert rank == 1 or time.monotonic() - began > 2.0
    assert (table.pull(IDS) == -4).all()
    done()


def test_a_trainer_that_is_stopped_is_waited_for() -> None:
    job.succeed(3, a_trainer_is_stopped)


def wrong_beginnings() -> None:
    import time

    from paddlempi import ps
    from ps_job import DIM, IDS, ones
    from ranks_tools import done, errors, raises, start

    rank = start(timeout=2.0)
    with raises(errors.NotInitializedError, "ps.init"):
        ps.barrier()
    with raises(errors.NotInitializedError, "ps.init"):
        ps.RemoteTable("t", DIM)
    for roles, words in (
        ("trainer:*", "pserver"),
        ("trainer:2,pserver:2", "3"),
        ("trainer:2,server:1", "server"),
        ({0: "trainer", 1: "pserver"}, "2"),
        ("trainer:2,pserver:-1", "-1"),
    ):
        with raises(errors.ArgumentError, words, most=2.0):
            ps.init(roles)
    with raises(errors.ArgumentError, "mode='both'", most=2.0):
        ps.init("trainer:2,pserver:1", mode="both")
    ps.init("trainer:2,pserver:1")
    with raises(errors.AlreadyInitializedError, "shutdown"):
        ps.init("trainer:2,pserver:1")
    if rank == 2:
        for call in (ps.barrier, ps.complete, lambda: ps.RemoteTable("t", DIM)):
            with raises(errors.ArgumentError, "rank 2 is a pserver", most=2.0):
                call()
    else:
        with raises(errors.ArgumentError, f"rank {rank} is a trainer", most=2.0):
            ps.serve()
        table = ps.RemoteTable("t", DIM, ps.SGD(1.0), num_ids=64)
        any_number = ps.RemoteTable("any number", DIM, ps.SGD(1.0), non_finite="allow")
        with raises(errors.ArgumentError, 'no table "no such table"', most=2.0):
            ps.set_learning_rate("no such table", 0.1)
        with raises(errors.ArgumentError, "id 64", "0 to 63", most=2.0):
            table.pull(IDS + 1)
        with raises(errors.ArgumentError, "id -1", most=2.0):
            table.push(IDS - 1, ones())
        with raises(errors.ArgumentError, "NaN", most=2.0):
            table.push(IDS, ones(float("nan")))
        any_number.push(IDS, ones(float("nan")))
        assert (any_number.pull(IDS) != any_number.pull(IDS)).all()
        table.push(IDS, ones())
        assert (table.pull(IDS) == -2).all()
    ps.shutdown()
    with raises(errors.NotInitializedError, "ps.init"):
        ps.stats()
    if rank == 1:  # it comes too late
        time.sleep(3.0)
    else:
        with raises(errors.TimeoutError, ranks=[1], least=1.5, most=4.0):
            ps.init("trainer:2,pserver:1")
    done()


def test_wrong_beginnings_and_wrong_calls() -> None:
    job.succeed(3, wrong_beginnings)


def forks() -> None:
    """A child gets ForkError and ends as it likes; the parent goes on, trainer or server."""
    import os
    import sys

    from paddlempi import ps
    from ps_job import DIM, IDS, begin, ones
    from ranks_tools import done, errors, raises

    rank = begin("trainer:1,pserver:1")
    table = None
    if rank == 0:
        table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
        table.push(IDS, ones())
        table.prefetch(IDS).wait()

    def calls() -> None:
        if table is None:
            tried = [ps.serve, ps.stats]
        else:
            tried = [
                lambda: table.pull(IDS),
                lambda: table.push(IDS, ones()),
                lambda: table.prefetch(IDS).wait(),
                lambda: ps.push([(table, IDS, ones())]),
                lambda: ps.RemoteTable("child", DIM),
                ps.barrier,
                ps.stats,
                ps.complete,
            ]
        for call in (*tried, ps.shutdown):
            with raises(errors.ForkError, "fork", most=3.0):
                call()

    for way in "os", "exit", "fail":
        child = os.fork()
        if child == 0:
            try:
                if way == "os":
                    calls()
            except BaseException as error:
                sys.stderr.write(f"in the child: {error!r}\n")
                sys.stderr.flush()
                os._exit(9)
            if way == "fail":
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                raise ValueError("a child may fail by itself")
            sys.exit(4 if way == "exit" else 0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == {"os": 0, "exit": 4, "fail": 1}[way], (way, code)
    if table is None:
        ps.serve()
    else:
        table.push(IDS, ones())
        ps.barrier()
        assert (table.pull(IDS) == -2).all()
    done()


@pytest.mark.launcher("children that end as Python ends")
def test_forks() -> None:
    job.succeed(2, forks)


def a_trainer_exits() -> None:
    import sys

    from paddlempi import ps
    from ps_job import DIM, IDS, begin, ones
    from ranks_tools import done

    rank = begin("trainer:2,pserver:1")
    if rank == 2:
        ps.serve()
        done()
        return
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    table.push(IDS, ones())
    if rank == 1:
        done()
        sys.exit(0)
    table.push(IDS, ones())  # without rank 1
    assert (table.pull(IDS) == -3).all()
    done()


@pytest.mark.launcher("the end of a program")
def test_sys_exit_completes() -> None:
    job.succeed(3, a_trainer_exits)


def a_trainer_leaves() -> None:
    import os

    from paddlempi import ps
    from ps_job import DIM, IDS, begin, leave, ones
    from ranks_tools import errors, raises, stamp

    rank = begin("trainer:2,pserver:1")
    if rank == 2:
        with raises(errors.PeerDiedError, "rank 1", ranks=[1], most=30.0):
            ps.serve()
        leave(rank, [0])
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    table.push(IDS, ones())
    if rank == 1:
        stamp("died")
        os._exit(0)
    with raises(errors.PeerDiedError, "rank 1", ranks=[1], most=5.0):
        table.push(IDS, ones())
    leave(rank, [2])


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_a_trainer_that_leaves_without_a_word_is_named() -> None:
    survive(3, a_trainer_leaves, 2)


def a_trainer_fails() -> None:
    from paddlempi import ps
    from ps_job import DIM, IDS, begin, ones
    from ranks_tools import done, stamp

    rank = begin("trainer:2,pserver:1")
    if rank == 2:
        ps.serve()
    else:
        table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
        table.push(IDS, ones())
        if rank == 1:
            stamp("failed")
            raise ValueError("a mistake of the program")
        table.push(IDS, ones())
    done()


@pytest.mark.launcher("the launcher ends the job")
def test_an_exception_of_a_trainer_ends_the_job() -> None:
    ended = job.run(3, a_trainer_fails)
    assert ended.returncode != 0 and "done" not in ended.result.stdout, ended.output
    assert "ValueError: a mistake of the program" in ended.output
    assert ended.at - ended.stamp("failed") < 5 + LATE
