"""Half-asynchronous training: pushes are queued, merged and sent by a thread."""

from __future__ import annotations

from pathlib import Path

import job


def all_pushes_count() -> None:
    """Two trainers push without waiting; barriers and cuts come after what was pushed."""
    import os

    import numpy as np
    from paddlempi import ps
    from ranks_tools import done, start

    rank = start()
    ps.init("trainer:2,pserver:2", mode="half_async", send_queue=3, merge=2)
    if rank > 1:
        ps.serve()
        done()
        return
    sums = ps.RemoteTable("sums", 3, ps.SGD(1.0))
    steps = ps.RemoteTable("steps", 1, ps.Adam(0.1))
    ids, ones = np.arange(50), np.ones((50, 3), np.float32)
    for step in range(40):
        given = ids[: 10 + step].copy()
        rows = ones[: 10 + step].copy()
        ps.push([(sums, given, rows), (steps, given[:1], rows[:1, :1])])
        given[:], rows[:] = -1, np.nan  # the caller's tensors are its own again
    sums.push(ids, ones)
    ps.flush()
    ps.barrier()
    found = sums.pull(ids)
    wanted = -2.0 * np.array([41 if i < 10 else 41 - (i - 9) for i in ids])
    assert (found == wanted[:, None]).all(), found[:, 0]
    ps.barrier("counted")
    told = ps.stats()["servers"]
    assert [one["mode"] for one in told] == ["half_async"] * 2
    # 41 pushes of each trainer, of which at most two are sent as one.
    assert 42 <= told[0]["pushes"] <= 82, told[0]["pushes"]

    if rank == 0:
        sums.push(ids, ones)
        sums.write(ids[:1], np.full((1, 3), 7, np.float32))  # after the push
        assert (sums.pull(ids[:1]) == 7).all() and (sums.pull(ids[-1:]) <= wanted[-1] - 1).all()
    sums.push(ids[1:], ones[1:])
    folder = os.environ["FOLDER"]
    ps.save(folder, 1)
    sums.push(ids, ones)
    ps.restore(folder)  # it comes after the push, and takes it back
    ps.barrier()
    assert (sums.pull(ids[1:]) == wanted[1:, None] - 3).all()
    ps.barrier("read")
    sums.push(ids, ones)  # completing sends it
    done()


def the_errors_of_the_thread() -> None:
    import numpy as np
    from paddlempi import ps
    from ranks_tools import done, errors, raises, start

    rank = start()
    ps.init("trainer:1,pserver:1", mode="half_async")
    if rank == 1:
        ps.serve()
        done()
        return
    table = ps.RemoteTable("t", 3, ps.SGD(1.0))
    ids, ones = np.arange(4), np.ones((4, 3), np.float32)
    with raises(errors.DtypeError):
        table.push("ids", ones)  # seen at once
    bad = ones.copy()
    bad[2, 1] = np.nan
    table.push(ids, bad)
    with raises(errors.ArgumentError, "a push that was queued has failed", "not finite"):
        ps.flush()
    table.push(ids, ones)
    ps.flush()
    assert (table.pull(ids) == -1).all()
    table.push(ids, bad)
    with raises(errors.ArgumentError, "a push that was queued has failed"):
        while True:
            table.push(ids, ones)
    ps.flush()
    table.push(ids, bad)
    with raises(errors.ArgumentError, "a push that was queued has failed"):
        ps.shutdown()
    done()


def a_training() -> None:
    """A program with layers and an optimizer reaches the loss of one process."""
    import torch
    from paddlempi import ps
    from ranks_tools import dist, done, start

    rank = start()
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    ps.init("trainer:2,pserver:1", mode="half_async", merge=4)
    if rank == 2:
        ps.serve()
        done()
        return
    rows = ps.Embedding(50, 4, name="rows", optimizer=ps.Adagrad(0.3), seed=1)
    model = torch.nn.Linear(4, 1)
    optimizer = ps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.05), dense="server", average=False
    )
    wanted = torch.rand(50, 1, generator=torch.Generator().manual_seed(9))
    first = last = None
    for _ in range(150):
        ids = torch.randint(0, 50, (32,))
        optimizer.zero_grad()
        loss = (model(rows(ids)) - wanted[ids]).square().mean()
        loss.backward()
        optimizer.step()
        first, last = first if first is not None else loss.item(), loss.item()
    assert last < first / 10, (first, last)
    ps.barrier()
    dist.barrier(ps.trainer_group())
    done()


def test_all_pushes_count(tmp_path: Path) -> None:
    job.succeed(4, all_pushes_count, env={"FOLDER": str(tmp_path)})


def test_the_errors_of_the_thread() -> None:
    job.succeed(2, the_errors_of_the_thread)


def test_a_training() -> None:
    job.succeed(3, a_training)
