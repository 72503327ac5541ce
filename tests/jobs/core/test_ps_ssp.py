"""Bounded staleness: a trainer that is far ahead of another one waits before it pulls."""

from __future__ import annotations

import job
import pytest


def nobody_is_far_ahead() -> None:
    """Three trainers of different speed, two servers. Each counts its steps in a row of its own."""
    import os
    import time

    import numpy as np
    from paddlempi import ps
    from ranks_tools import done, start

    rank, bound, steps = start(), int(os.environ["BOUND"]), 30
    ps.init("trainer:3,pserver:2", mode="ssp", staleness=bound)
    if rank > 2:
        ps.serve()
        done()
        return
    table = ps.RemoteTable("t", 2, ps.SGD(1.0))
    rows = np.arange(12)  # both servers have some; those of rank r are r, r + 3, ...
    mine = rows[rows % 3 == rank]
    ps.barrier()
    ahead = 0.0
    for step in range(steps):
        seen = table.pull(rows)
        counted = -seen.reshape(4, 3, 2)
        assert (counted[:, rank] == step).all()
        assert counted.min() >= step - bound, (step, counted.min())
        ahead = max(ahead, step - counted.min())
        table.push(mine, np.ones((4, 2), np.float32))
        time.sleep([0.0, 0.002, 0.01][rank])
    if rank == 0:
        assert bound == 0 or ahead == bound, "it was never held back"
    ps.barrier()
    assert (table.pull(rows) == -steps).all()
    done()


@pytest.mark.parametrize("bound", ["0", "3"])
def test_nobody_is_far_ahead(bound: str) -> None:
    job.succeed(5, nobody_is_far_ahead, env={"BOUND": bound})
