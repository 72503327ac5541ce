"""Delay compensation, and modes that change between two steps."""

from __future__ import annotations

from pathlib import Path

import job
import pytest
from test_ps_faults import survive


def delays_are_compensated() -> None:
    """Two trainers pull and push in turn; a simulation in each of them does the same."""
    import os
    import random

    import numpy as np
    from paddlempi import ps
    from paddlempi.ps.dense import Blocks
    from ranks_tools import done, start

    rank, folder = start(), os.environ["FOLDER"]
    ps.init("trainer:2,pserver:2", mode="dc_asgd", compensation=0.75)
    if rank > 1:
        ps.serve()
        done()
        return
    table = ps.RemoteTable("rows", 3, ps.SGD(0.5))
    dense = Blocks("dense", 20000, ps.SGD(0.5))
    ids = np.arange(dense.count + 5)  # the last ones are sparse; those before, of the vector
    one = np.float32
    rows = dict.fromkeys(ids.tolist(), one(0))
    backups: list[dict[int, np.float32]] = [{}, {}]
    saved = dict(rows)
    rng = random.Random(3)  # the same on both
    for event in range(60):
        who, what = rng.randrange(2), rng.choice(["pull", "push", "push"])
        if event == 30:
            ps.save(folder, 1)
            saved = dict(rows)
        if event == 45:
            ps.restore(folder)
            rows, backups = dict(saved), [{}, {}]
        some = np.array(rng.sample(range(5), 3))
        gradient = one(rng.uniform(-1, 1))
        touched = [*range(dense.count), *(dense.count + some).tolist()]
        if what == "pull":
            if rank == who:
                got = [*dense.table.pull(ids[: dense.count])[:, 0], *table.pull(some)[:, 0]]
                assert got == [rows[row] for row in touched], (event, got)
            backups[who] |= {row: rows[row] for row in touched}
        else:
            if rank == who:
                dense.gradients[:] = gradient
                ps.push([(table, some, np.full((3, 3), gradient)), dense.request()])
            for row in touched:
                g = gradient
                if row in backups[who]:
                    g = g + one(0.75) * g * g * (rows[row] - backups[who][row])
                rows[row] = rows[row] - one(0.5) * g
        ps.barrier(f"event {event}")
    servers = ps.stats()["servers"]
    assert [one["mode"] for one in servers] == ["dc_asgd"] * 2
    tables = [table for one in servers for table in one["tables"]]
    kept = sum(table["backups"] for table in tables)
    assert kept == sum(map(len, backups)), (kept, backups)
    ps.barrier("counted")  # who completes has no backups
    done()


def test_delays_are_compensated(tmp_path: Path) -> None:
    job.succeed(4, delays_are_compensated, env={"FOLDER": str(tmp_path)})


def from_each_mode_to_each_other() -> None:
    """Every push counts once, in whichever mode it was made."""
    import itertools
    import os

    import numpy as np
    from paddlempi import ps
    from ranks_tools import done, start

    rank = start()
    modes = ["sync", "async", "ssp", "half_async", "geo", "dc_asgd"]
    ps.init("trainer:2,pserver:2", mode="sync")
    if rank > 1:
        ps.serve()
        done()
        return
    table = ps.RemoteTable("rows", 3, ps.SGD(1.0))
    states = ps.RemoteTable("states", 3, ps.Momentum(1.0, momentum=0.0), memory_limit=8 << 20)
    ids, ones = np.arange(9), np.ones((9, 3), np.float32)
    wanted = 0
    for mode in itertools.chain.from_iterable(itertools.product(modes, modes)):
        ps.set_mode(mode, geo_step=5, staleness=2, merge=3)
        assert {one["mode"] for one in ps.stats()["servers"]} == {mode}
        for _ in range(2):
            ps.push([(table, ids, ones), (states, ids, ones)])
        ps.barrier("pushed")  # which flushes
        wanted -= 2 if mode == "geo" else 4
        assert (table.pull(ids) == wanted).all(), (mode, table.pull(ids), wanted)
        assert (states.pull(ids) == wanted).all(), (mode, states.pull(ids), wanted)
        ps.barrier("read")
        ps.set_mode(mode, geo_step=5, staleness=2, merge=3)  # the backups of what was read
        if mode == "geo":  # a rate that was set before is that of the copies
            ps.set_mode("async")
            ps.set_learning_rate("rows", 0.5)
            ps.set_mode("geo", geo_step=2)
            for _ in range(2):
                ps.push([(table, ids, -ones), (states, ids, -ones)])
            ps.barrier("exchanged")
            assert (table.pull(ids) == wanted + 1).all() and (states.pull(ids) == wanted + 2).all()
            ps.barrier("seen")
            ps.set_mode("async")
            table.write(ids, wanted * ones)
            states.write(ids, wanted * ones)
            ps.set_learning_rate("rows", 1.0)
            ps.barrier("as before")
        if mode == "dc_asgd":
            assert sum(t["backups"] for s in ps.stats()["servers"] for t in s["tables"]) == 36
            ps.set_mode("async")
            assert sum(t["backups"] for s in ps.stats()["servers"] for t in s["tables"]) == 0
    ps.set_mode("async")
    ps.set_learning_rate("rows", 0.25)
    ps.save(os.environ["FOLDER"], 1)
    ps.set_learning_rate("rows", 1.0)
    ps.set_mode("geo")
    told = ps.restore(os.environ["FOLDER"])  # its rate, too
    assert "rates" not in told and told["step"] == 1, told
    ps.push([(table, ids, ones)])
    ps.barrier("restored")
    assert (table.pull(ids) == wanted - 0.25).all()
    done()


def test_from_each_mode_to_each_other(tmp_path: Path) -> None:
    job.succeed(4, from_each_mode_to_each_other, env={"FOLDER": str(tmp_path)})


def what_a_change_refuses() -> None:
    import numpy as np
    from paddlempi import ps
    from ps_job import stamp, wait_for
    from ranks_tools import done, errors, raises, start

    rank = start()
    for wrong, words in (
        ({"mode": "dc-asgd"}, "'dc-asgd' is none of"),
        ({"mode": "dc_asgd", "compensation": 0}, "compensation=0 is no finite number above 0"),
        ({"mode": "dc_asgd", "mean_square": 1}, "mean_square=1 is not between 0 and 1"),
        ({"mode": "dc_asgd", "backup_rows": 0}, "backup_rows=0; it is from 1"),
    ):
        with raises(errors.ArgumentError, words):
            ps.init("trainer:2,pserver:1", **wrong)
    with raises(errors.NotInitializedError, "ps.set_mode"):
        ps.set_mode("async")
    ps.init("trainer:2,pserver:1", timeout=1.5)
    if rank == 2:
        with raises(errors.ArgumentError, "ps.set_mode: rank 2 is a pserver"):
            ps.set_mode("async")
        ps.serve()
        done()
        return
    table = ps.RemoteTable("rows", 3, ps.SGD(1.0))
    ids, ones = np.arange(9), np.ones((9, 3), np.float32)
    with raises(errors.MismatchError, "mode='ssp', staleness=", "nothing was done"):
        ps.set_mode("ssp", staleness=rank)
    if rank == 0:
        with raises(errors.MismatchError, "geo_step=0; it is from 1", ranks=[1]):
            ps.set_mode("geo")
    else:
        with raises(errors.ArgumentError, "ps.set_mode: geo_step=0; it is from 1"):
            ps.set_mode("geo", geo_step=0)
    ps.RemoteTable("states", 3, ps.Adam(1.0))
    with raises(errors.UnsupportedError, "'states'".replace("'", '"'), "memory_limit"):
        ps.set_mode("geo")
    assert ps.stats()["servers"][0]["mode"] == "sync"

    # A step that only one has pushed.
    if rank == 0:
        with raises(errors.TimeoutError, ranks=[1]):
            table.push(ids, ones)
        stamp("late")
    wait_for("late")
    with raises(errors.ArgumentError, "step 1 of rank 0 waits for other trainers", ranks=[0]):
        ps.set_mode("async")
    if rank == 1:
        table.push(ids, ones)
    ps.barrier()
    assert (table.pull(ids) == -2).all()
    ps.set_mode("async")
    if rank == 0:
        for _ in range(10):
            table.push(ids, ones)
    ps.set_mode("ssp", staleness=1)  # the ten do not count
    if rank == 0:
        for _ in range(2):
            table.pull(ids)
            table.push(ids, ones)
        with raises(errors.TimeoutError, "more than 1 steps behind", ranks=[1]):
            table.pull(ids)
        with raises(errors.TimeoutError, "rank", ranks=[1]):
            ps.set_mode("sync")
        stamp("told")
    wait_for("told")
    ps.set_mode("half_async")
    table.push(ids, ones)
    ps.barrier("pushed")
    assert (table.pull(ids) == -2 - 12 - 2).all()
    done()


def test_what_a_change_refuses() -> None:
    job.succeed(3, what_a_change_refuses)


def somebody_dies_before_a_change() -> None:
    import os
    import time

    from paddlempi import ps
    from ps_job import DIM, IDS, die, leave, ones, stamp, wait_for
    from ranks_tools import errors, raises, start

    rank, who = start(), int(os.environ["WHO"])
    ps.init("trainer:2,pserver:2", mode="dc_asgd", timeout=60)
    rest = [other for other in range(4) if other not in (rank, who)]
    if rank > 1:
        if rank == who:
            wait_for("pushed")
            die()
        if who > 1:
            with raises(errors.PeerDiedError, f"rank {who}", ranks=[who], most=30.0):
                ps.serve()
        else:
            ps.serve()
        leave(rank, rest)
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    ps.barrier()
    table.pull(IDS)
    table.push(IDS, ones())
    ps.barrier("all have pushed")
    if rank == who:
        wait_for("waits")
        time.sleep(0.3)
        die()
    if who > 1:
        stamp("pushed")
        wait_for("died")
        for call in (lambda: ps.set_mode("sync"), lambda: table.push(IDS, ones())):
            with raises(errors.PeerDiedError, f"rank {who}", ranks=[who], most=20.0):
                call()
    else:
        stamp("waits")
        ps.set_mode("dc_asgd")  # it waits for the one that dies, and goes on without it
        wait_for("died")
        before = table.pull(IDS)
        table.push(IDS, ones())
        assert (table.pull(IDS) == before - 1).all()
        for mode in ("geo", "async", "ssp"):
            ps.set_mode(mode, geo_step=1)
            table.push(IDS, ones())
        assert (table.pull(IDS) == before - 3.5).all()
        ps.complete()
    leave(rank, rest)


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
@pytest.mark.parametrize("who", [1, 3])
def test_somebody_dies_before_a_change(who: int) -> None:
    survive(4, somebody_dies_before_a_change, 3, env={"WHO": str(who)})
