"""barrier and monitored_barrier."""

from __future__ import annotations

import time
from datetime import timedelta
from types import ModuleType
from typing import Any

import numpy as np


def test_nobody_leaves_before_the_last_has_come(
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
        if dist.get_local_size() == size:  # one clock
            assert -times[1] >= times[0]


def test_monitored(dist: ModuleType) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    dist.monitored_barrier(timeout=30.0, wait_all_ranks=True)
    dist.monitored_barrier()


def test_in_a_group(dist: ModuleType, reversed_group: Any, run: Any) -> None:
    run(dist.barrier, reversed_group)
