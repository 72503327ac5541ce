"""The master: shards of data sets, which trainers have on leases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import job
import pytest

ROLES = [
    "trainer:2,pserver:1,master:1",
    "trainer:2,pserver+master:1",
    "trainer+pserver+master:1,trainer:1",
]


def survive(
    np: int, program: Callable[[], object], living: int, env: Mapping[str, str] | None = None
) -> None:
    """Run a program in which ranks die, under Open MPI, which lets the others live."""
    ended = job.run(np, program, options=("--continuous",), env=env)
    assert ended.result.stdout.count("done\n") == living, ended.output


def each_record_once() -> None:
    """Two data sets, three epochs. In sync mode the order is that of the seed."""
    import os
    import time

    from paddlempi import ps
    from ps_job import begin
    from ranks_tools import dist, done

    begin(os.environ["ROLES"], mode=os.environ["MODE"])
    master = {"trainer:2,pserver:1,master:1": 3, "trainer:2,pserver+master:1": 2}
    assert ps.master() == master.get(os.environ["ROLES"], 0)
    if not ps.is_trainer():
        ps.serve()
        done()
        return
    numbers = ps.tasks(100, size=7, shuffle=True, seed=5)
    files = ps.tasks(["a", "b", "c"], name="files")
    assert (len(numbers), len(files)) == (15, 3)
    orders = []
    for epoch in range(3):
        mine, order = [], []
        for task in numbers:
            assert (task.epoch, numbers.epoch) == (epoch, epoch)
            assert list(task.value) == list(range(100))[7 * task.number : 7 * task.number + 7]
            mine += list(task)
            order.append(task.number)
            time.sleep(0.002)
        mine += [task.value for task in files]
        both = [None, None]
        dist.all_gather_object(both, (mine, order), ps.trainer_group())
        assert sorted(map(str, both[0][0] + both[1][0])) == sorted([*map(str, range(100)), *"abc"])
        orders.append([one[1] for one in both])
    if os.environ["MODE"] == "sync":
        assert orders[0] == [[9, 1, 13, 8, 4, 12, 0, 5], [7, 3, 11, 6, 14, 10, 2]]
        assert orders[0] != orders[1] and [len(one) for one in orders[0]] == [8, 7]
    assert numbers.failed() == []
    done()


@pytest.mark.parametrize("roles", ROLES)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_record_once(roles: str, mode: str) -> None:
    size = 4 if roles == ROLES[0] else 3 if roles == ROLES[1] else 2
    job.succeed(size, each_record_once, env={"ROLES": roles, "MODE": mode})


def wrong_use() -> None:
    import os
    import pickle
    from pathlib import Path

    import numpy as np
    from paddlempi import ps
    from ps_job import begin
    from ranks_tools import done, errors, raises

    with raises(errors.NotInitializedError, "ps.init"):
        ps.tasks(3)
    rank = begin(
        "trainer:2,pserver:1" if os.environ["MASTER"] == "0" else "trainer:2,pserver+master:1",
        mode="async",
    )
    if rank == 2:
        with raises(errors.ArgumentError, "rank 2 is a pserver"):
            ps.tasks(3)
        ps.serve()
        done()
        return
    if os.environ["MASTER"] == "0":
        with raises(errors.ArgumentError, "no rank is a master"):
            ps.tasks(3)
        assert ps.master() is None
        done()
        return
    for wrong, kind, word in (
        (lambda: ps.tasks(-1), errors.ArgumentError, "shards"),
        (lambda: ps.tasks("abc"), errors.DtypeError, "neither files nor ranges"),
        (lambda: ps.tasks([object()]), errors.DtypeError, "no file and no range"),
        (lambda: ps.tasks(3, size=0), errors.ArgumentError, "size=0"),
        (lambda: ps.tasks(3, size=1.5), errors.DtypeError, "size"),
        (lambda: ps.tasks(3, lease=0.01), errors.ArgumentError, "lease"),
        (lambda: ps.tasks(3, lease=0), errors.ArgumentError, "lease=0"),
        (lambda: ps.tasks(3, retries=-1), errors.ArgumentError, "retries"),
        (lambda: ps.tasks(3, retries=2000), errors.ArgumentError, "retries=2000"),
        (lambda: ps.tasks(3, name=3), errors.DtypeError, "name"),
        (lambda: ps.tasks(3, name=""), errors.ArgumentError, "name"),
        (lambda: ps.tasks(range(1 << 25), name="many"), errors.ArgumentError, "33554432 shards"),
    ):
        with raises(kind, word):
            wrong()
    first = ps.tasks([Path("a"), "b", b"c", (1, 2.5, range(3))], name="mine")
    for change in ({"seed": 1}, {"shuffle": True}, {"lease": 3.0}, {"retries": 1}, {"size": 2}):
        with raises(errors.MismatchError, "mine"):
            ps.tasks(["a", "b", b"c", (1, 2.5, range(3))], name="mine", **change)
    with raises(errors.MismatchError, "the files or ranges", ranks=[rank]):
        ps.tasks(["a", "b", b"c", (1, 2.5, range(4))], name="mine")
    again = ps.tasks(
        ["a", "b", b"c", [1, 2.5, range(3)]], name="mine"
    )  # as a text they are the same
    numbers = ps.tasks(np.arange(3), name="numbers")  # and so are NumPy's numbers
    assert len(numbers) == len(ps.tasks([0, 1, 2], name="numbers")) == 3
    for task in first if rank == 0 else ():
        if not isinstance(task.value, tuple):
            with raises(errors.DtypeError, "has no records"):
                list(task)
        for one in (task, first):
            with raises(errors.ArgumentError, "DataLoader"):
                pickle.dumps(one)
        records = task.each([1])
        for call in (task.done, task.progress, records.__next__):
            child = os.fork()
            if child == 0:
                try:
                    call()
                except errors.ForkError:
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert repr(again).startswith("<ps.Tasks 'mine': 4 shards")
    done()


@pytest.mark.parametrize("master", ["1", "0"])
def test_wrong_use(master: str) -> None:
    job.succeed(3, wrong_use, env={"MASTER": master})


def shards_that_fail() -> None:
    """Failures in every way, what is given back, and leases that run out."""
    import time

    from paddlempi import ps
    from ps_job import begin
    from ranks_tools import dist, done

    rank = begin("trainer+pserver+master:1,trainer:1", mode="async")
    bad = ps.tasks(["good", "raises", "fails", "left"], name="bad", retries=1)
    tried, used = [], []
    while True:
        try:
            for task in bad:
                tried.append(task.value)
                if task.value == "raises":
                    with task:
                        raise RuntimeError("no such record")
                if task.value == "fails":
                    assert task.fail("it is empty") and not task.fail("twice")
                    continue
                if task.value == "left" and tried.count("left") < 2:
                    break  # it is given back
                used.append(task.value)
            else:
                break
        except RuntimeError:
            pass
    both = [None, None]
    dist.all_gather_object(both, (tried, used), ps.trainer_group())
    tried, used = both[0][0] + both[1][0], both[0][1] + both[1][1]
    assert sorted(used) == ["good", "left"], used
    assert tried.count("raises") == tried.count("fails") == 2, tried
    told = {(one.epoch, one.number, one.value, one.reason) for one in bad.failed()}
    wanted = {(0, 1, "raises", "RuntimeError: no such record"), (0, 2, "fails", "it is empty")}
    assert told == wanted, told

    slow = ps.tasks(2, name="slow", lease=0.5)
    ps.barrier()
    mine = []
    for task in slow:
        if rank == 1 and not mine:
            time.sleep(2.0)  # the other trainer gets it
            mine.append(task.number)
            assert not task.progress() and not task.done() and not list(task.each([1]))
            continue
        if rank == 0:
            for _ in task.each(range(20)):
                time.sleep(0.05)  # longer than the lease, with progress
            assert task.done() and task.done()
        mine.append(task.number)
    dist.all_gather_object(both, mine, ps.trainer_group())
    assert sorted(both[0]) == [0, 1] and len(both[1]) == 1, both
    done()


def test_shards_that_fail() -> None:
    job.succeed(2, shards_that_fail)


def a_trainer_dies() -> None:
    """Rank 1 dies with a shard: the others do it, although its lease would last."""
    import json
    import os

    from paddlempi import ps
    from ps_job import begin, die, leave, wait_for

    rank = begin("trainer:3,pserver+master:1", mode="async")
    if rank == 3:
        ps.serve()
        leave(rank, [0, 2])
    shards = ps.tasks(30, lease=600.0, retries=1)
    ps.barrier()
    mine = []
    for task in shards:
        if rank == 1 and len(mine) == 3:
            die()
        if rank != 1 and len(mine) == 5:
            wait_for("died")  # it may be slow, and the shards are few
        mine.append(task.value)
    used = []
    with open(os.environ["FAULTS_STAMPS"] + f".{rank}", "w") as file:
        json.dump(mine, file)
    ps.barrier("written")
    for other in (0, 2):
        with open(os.environ["FAULTS_STAMPS"] + f".{other}") as file:
            used += json.load(file)
    ps.barrier("read")
    os.unlink(os.environ["FAULTS_STAMPS"] + f".{rank}")
    # Rank 1 has done three, and had a fourth.
    assert len(set(used)) == len(used) == 27, sorted(used)
    told = ps.stats()["master"]
    ps.barrier("told")
    assert [one["state"] for one in told["trainers"]] == ["active", "lost", "active"], told
    assert told["queues"][0]["done"] == 30
    ps.complete()
    leave(rank, [0, 2, 3])


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_a_trainer_dies() -> None:
    survive(4, a_trainer_dies, 3)


def the_master_dies() -> None:
    from paddlempi import ps
    from ps_job import begin, die, later, leave
    from ranks_tools import errors, raises

    rank = begin("trainer:1,pserver:1,master:1", mode="async")
    if rank == 2:
        later(0.5, die)
    if rank:
        ps.serve()
        leave(rank, [0])
    with raises(errors.PeerDiedError, "master", ranks=[2], most=8.0):
        while True:
            for _ in ps.tasks(3):
                pass
    with raises(errors.PeerDiedError, "master", ranks=[2], most=8.0):
        ps.complete()
    leave(rank, [])


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
def test_the_master_dies() -> None:
    ended = job.run(3, the_master_dies, options=("--continuous",))
    assert ended.result.stdout.count("done\n") >= 1, ended.output


def the_master_is_stopped() -> None:
    """The master is stopped for four times a lease: nothing is done twice."""
    import os
    import signal
    import time

    from paddlempi import ps
    from ps_job import begin, later
    from ranks_tools import dist, done

    rank = begin("trainer:2,pserver+master:1", mode="async")
    pids = [0] * 3
    dist.all_gather_object(pids, os.getpid())
    if rank == 2:
        ps.serve()
        done()
        return
    if rank == 0:
        later(0.3, lambda: os.kill(pids[2], signal.SIGSTOP))
        later(4.3, lambda: os.kill(pids[2], signal.SIGCONT))
    mine, began = [], time.monotonic()
    for task in ps.tasks(40, lease=1.0):
        for _ in task.each(range(4)):
            time.sleep(0.02)
        assert task.done()
        mine.append(task.value)
    assert time.monotonic() - began > 4
    both = [None, None]
    dist.all_gather_object(both, mine, ps.trainer_group())
    assert sorted(both[0] + both[1]) == list(range(40))
    done()


def test_the_master_is_stopped() -> None:
    job.succeed(3, the_master_is_stopped)


def saved_and_restored() -> None:
    """A queue in the middle of an epoch is saved, and goes on in a job of other trainers."""
    import os

    import numpy as np
    from paddlempi import ps
    from ps_job import begin
    from ranks_tools import dist, done, errors, raises

    folder, saves = os.environ["FOLDER"], os.environ["WAY"] == "save"
    begin(os.environ["ROLES"], mode=os.environ["MODE"])
    if not ps.is_trainer():
        ps.serve()
        done()
        return
    table = ps.RemoteTable("t", 2, ps.SGD(1.0))
    used = set()

    def use(task: ps.Task) -> None:
        table.push(np.array([task.value]), np.ones((1, 2), np.float32))
        used.add(task.value)

    if os.environ["WAY"] == "no master":
        with raises(errors.ArgumentError, "no rank is a master"):
            ps.restore(folder)
        assert ps.restore(folder, strict=False)["tasks"] == []
        done()
        return
    shards = ps.tasks(24, shuffle=True, seed=2, lease=60.0)
    if saves:
        for number, _ in enumerate(shards):  # the first epoch
            if number == 0:
                ps.barrier("both are in it")  # else one may be through before the other begins
        assert shards.epoch == 1
        for step, task in enumerate(shards):
            if step == 5:
                ps.save(folder, 1, extra=b"x" * 200_000)
                table.push(np.array([task.value]), np.ones((1, 2), np.float32))  # it is lost
                break
            use(task)
        told = [None] * len(ps.trainers())
        dist.all_gather_object(told, used, ps.trainer_group())
        print("used", sorted(set().union(*told)))
    else:
        told = ps.restore(folder)
        assert told["tasks"] == ["tasks"] and told["extra"] == b"x" * 200_000
        assert shards.epoch == 0  # until it is iterated over
        for task in shards:
            assert task.epoch == 1
            use(task)
        assert shards.epoch == 2
        ps.barrier()
        rows = table.pull(np.arange(24))
        assert (rows == -1).all(), rows  # each was used once in the epoch, in one of the two jobs
        with raises(errors.ArgumentError, "inside the loop"):
            for _ in shards:
                ps.restore(folder)
    done()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_saved_and_restored(tmp_path: Path, mode: str) -> None:
    env = {"FOLDER": str(tmp_path), "MODE": mode, "ROLES": "trainer:2,pserver:1,master:1"}
    job.succeed(4, saved_and_restored, env={**env, "WAY": "save"})
    # In sync mode all trainers push in each step: with one, none waits.
    job.succeed(
        2,
        saved_and_restored,
        env={**env, "WAY": "restore", "ROLES": "trainer+pserver:1,pserver+master:1"},
    )
    job.succeed(
        2, saved_and_restored, env={**env, "WAY": "no master", "ROLES": "trainer:1,pserver:1"}
    )
