"""Geo training: trainers push into copies of their own, and exchange what these have gained."""

from __future__ import annotations

from pathlib import Path

import job
import pytest
from test_ps_faults import survive


def what_an_exchange_adds() -> None:
    """Two trainers push different gradients; cuts and the end come after what was pushed."""
    import os

    import numpy as np
    from paddlempi import ps
    from paddlempi.ps.dense import Blocks
    from ps_job import stamp, wait_for
    from ranks_tools import done, start

    rank = start()
    ps.init("trainer:2,pserver:2", mode="geo", geo_step=4)
    if rank > 1:
        ps.serve()
        done()
        return
    table = ps.RemoteTable("rows", 3, ps.SGD(1.0), dtype="bfloat16")
    again = ps.RemoteTable("rows", 3, ps.SGD(1.0), dtype="bfloat16")  # as two layers of one name
    dense = Blocks("dense", 20000, ps.Momentum(1.0, momentum=0.0))
    ids, ones = np.arange(50), np.ones((50, 3), np.float32)
    dense.gradients[:] = 1 + rank
    numbers = dense.request()[1]

    def push(*, of: ps.RemoteTable = table) -> None:
        given, rows = ids.copy(), ones * (1 + rank)
        ps.push([(of, given, rows), dense.request()])
        given[:], rows[:] = -1, np.nan  # the caller's tensors are its own again

    # Each sees its own steps at once.
    for step in range(1, 4):
        push(of=table if step % 2 else again)
        assert (again.pull(ids) == -step * (1 + rank)).all()
        part = table.pull(np.array([90, 7, 91, 7], np.int32))  # some are the copy's, some are not
        assert (part[:, 0] == [0, -step * (1 + rank), 0, -step * (1 + rank)]).all(), part
    copies = ps.stats()["copies"]
    assert copies["rows"] == 2 * (50 + dense.count) and copies["bytes"] > 0, copies
    servers = ps.stats()["servers"]
    assert [(one["mode"], one["pushes"]) for one in servers] == [("geo", 0)] * 2
    stamp(f"three-{rank}")
    wait_for(f"three-{1 - rank}")  # not ps.barrier, which would flush
    push()
    stamp(f"four-{rank}")
    wait_for(f"four-{1 - rank}")
    # (1 + 2) / 2 a step, whoever exchanged first.
    assert (table.pull(ids) == -6).all() and (again.pull(ids) == -6).all()
    assert (dense.table.pull(numbers) == -6).all()
    assert ps.stats()["copies"]["rows"] == dense.count  # for their states
    stamp(f"read-{rank}")
    wait_for(f"read-{1 - rank}")
    push()
    ps.barrier()
    assert (table.pull(ids) == -7.5).all()
    ps.barrier("read")

    folder = os.environ["FOLDER"]
    push()
    ps.save(folder, 1)  # in the middle of four steps
    push()
    push()
    ps.restore(folder)
    ps.barrier()
    for _ in range(2):  # whatever was not in the cut is lost, also in the copies
        assert (table.pull(ids) == -9).all(), table.pull(ids)
        assert (dense.table.pull(numbers) == -9).all()
        ps.flush()
    ps.barrier("restored")
    if rank == 0:
        table.write(ids[:1], np.full((1, 3), 7, np.float32))
    ps.barrier("written")
    assert (table.pull(ids)[:2, 0] == [7, -9]).all()
    ps.barrier("seen")
    push()
    if rank == 1:
        ps.complete()  # which exchanges
        stamp("completed")
    else:
        wait_for("completed")
        ps.flush()
        assert (table.pull(ids[1:]) == -10.5).all()
        for step in range(1, 4):  # the divisor stays that of all trainers
            push()
            assert (table.pull(ids[1:]) == -10.5 - step).all()
        push()
        assert (table.pull(ids[1:]) == -12.5).all()
    done()


def test_what_an_exchange_adds(tmp_path: Path) -> None:
    job.succeed(4, what_an_exchange_adds, env={"FOLDER": str(tmp_path)})


def what_it_refuses() -> None:
    import numpy as np
    import paddlempi
    from paddlempi import ps
    from ranks_tools import done, errors, raises, start

    rank = start()
    with raises(errors.ArgumentError, "geo_step=0; it is from 1"):
        ps.init("trainer:2,pserver:1", mode="geo", geo_step=0)
    with raises(errors.MismatchError, "mode='geo', geo_step=", ranks=[2]):
        ps.init("trainer:2,pserver:1", mode="geo", geo_step=3 if rank == 2 else 2)
    ps.init("trainer:2,pserver:1", mode="geo", geo_step=2)
    if rank == 2:
        ps.serve()
        done()
        return
    with raises(errors.UnsupportedError, '"rows" has the optimizer adagrad', "memory_limit"):
        ps.RemoteTable("rows", 3, ps.Adagrad(1.0))
    states = ps.RemoteTable("states", 3, ps.Adagrad(1.0), memory_limit=8 << 20)
    few = ps.RemoteTable("few", 3, ps.Adagrad(1.0), num_ids=4)  # the states of four rows at most
    table = ps.RemoteTable("rows", 3, ps.SGD(1.0), num_ids=9)
    with raises(errors.UnsupportedError, "mode geo", 'learning_rate of table "rows"'):
        ps.set_learning_rate("rows", 0.1)
    ids, ones = np.arange(4), np.ones((4, 3), np.float32)
    bad = ones.copy()
    bad[2, 1] = np.nan
    for wrong in ((ids, bad), (ids + 6, ones)):
        with raises(errors.ArgumentError, "rows"):
            ps.push([(states, ids, ones), (table, *wrong)])
    assert (states.pull(ids) == 0).all() and (table.pull(ids) == 0).all()  # all or none
    ps.barrier()
    table.learning_rate = 0.5
    table.push(ids, ones)
    assert (table.pull(ids) == -0.5).all()
    # The next push is an exchange. A push before it takes the rows of then from the servers.
    paddlempi.sendrecv(np.ones(1), 1 - rank, np.zeros(1))
    states.push(ids, ones)
    ps.barrier("pushed")
    assert (table.pull(ids) == -0.5).all() and np.allclose(states.pull(ids), -1.0)
    few.push(ids, ones)
    ps.barrier("few")
    assert np.allclose(few.pull(ids), -1.0)
    done()


def test_what_it_refuses() -> None:
    job.succeed(3, what_it_refuses)


def somebody_dies() -> None:
    """A trainer's death is the others' business no longer; a server's is named at the exchange."""
    import os

    from paddlempi import ps
    from ps_job import DIM, IDS, die, leave, ones, stamp, wait_for
    from ranks_tools import errors, raises, start

    rank, who = start(), int(os.environ["WHO"])
    ps.init("trainer:2,pserver:2", mode="geo", geo_step=5, timeout=60)
    rest = [other for other in range(4) if other not in (rank, who)]
    if rank > 1:
        if rank == who:
            for other in (0, 1):
                wait_for(f"pushed-{other}")
            die()
        if who > 1:
            with raises(errors.PeerDiedError, f"rank {who}", ranks=[who], most=30.0):
                ps.serve()
        else:
            ps.serve()
        leave(rank, rest)
    table = ps.RemoteTable("t", DIM, ps.SGD(1.0))
    ps.barrier()
    for _ in range(7):
        table.push(IDS, ones())
    if rank == who:
        die()  # with two pushes that no server has
    if who > 1:
        stamp(f"pushed-{rank}")
        wait_for("died")
        with raises(errors.PeerDiedError, f"rank {who}", ranks=[who], most=20.0):
            for _ in range(5):
                table.push(IDS, ones())
        with raises(errors.PeerDiedError, f"rank {who}", ranks=[who], most=20.0):
            ps.barrier()
    else:
        wait_for("died")
        ps.flush()
        assert (table.pull(IDS) == -(5 + 7) / 2).all()
        ps.complete()
    leave(rank, rest)


@pytest.mark.launcher("its launcher leaves the others alone when a rank dies", only=["openmpi"])
@pytest.mark.parametrize("who", [1, 3])
def test_somebody_dies(who: int) -> None:
    survive(4, somebody_dies, 3, env={"WHO": str(who)})
