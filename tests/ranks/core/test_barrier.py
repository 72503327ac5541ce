"""barrier and monitored_barrier."""

from __future__ import annotations

import time
from datetime import timedelta
from types import ModuleType
from typing import Any

import numpy as np
import pytest


def test_no_rank_leaves_before_the_last_has_come(
    dist: ModuleType, rank: int, size: int, run: Any
) -> None:
    for late in range(size):
        if rank == late:
            time.sleep(0.05)
        came = time.clock_gettime(time.CLOCK_MONOTONIC)
        run(dist.barrier)
        left = time.clock_gettime(time.CLOCK_MONOTONIC)
        times = np.array([came, -left])
        dist.all_reduce(times, dist.ReduceOp.MAX)
        if dist.get_local_size() == size:  # the ranks read the same clock
            assert -times[1] >= times[0]


def test_monitored(dist: ModuleType) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    dist.monitored_barrier(timeout=30.0, wait_all_ranks=True)
    dist.monitored_barrier()


def test_in_a_group(dist: ModuleType, reversed_group: Any, run: Any) -> None:
    run(dist.barrier, reversed_group)


@pytest.mark.mpi(min=2)
def test_monitored_finds_who_is_missing(dist: ModuleType, rank: int, size: int) -> None:
    """The ranks that arrived get the error. The group and its works under way stay unharmed."""
    tensor = np.ones(3)
    work = dist.all_reduce(tensor, async_op=True)
    for missing in range(size):
        if rank == missing:
            time.sleep(0.4)
        else:
            with pytest.raises(dist.errors.TimeoutError, match="stays usable") as caught:
                dist.monitored_barrier(timeout=0.2)
            assert missing in caught.value.ranks
        dist.barrier()
        dist.monitored_barrier(timeout=30.0)
    work.wait()
    assert (tensor == size).all()


@pytest.mark.mpi(min=2)
def test_monitored_is_outside_the_order(dist: ModuleType, rank: int, size: int) -> None:
    """It is not in the order of the collectives, so ranks may be at different collectives."""
    tensor = np.ones(3)
    work = dist.all_reduce(tensor, async_op=True) if rank == 0 else None
    dist.monitored_barrier(timeout=30.0)
    if work is None:
        dist.all_reduce(tensor)
    else:
        work.wait()
    assert (tensor == size).all()
