"""A rank that waits for a rank of its node sleeps."""

from __future__ import annotations

import resource
import time
from types import ModuleType

import numpy as np
import pytest
from ranks_tools import over_nodes

pytestmark = pytest.mark.mpi(ranks=2)


@pytest.mark.parametrize("how", ["announced", "message", "async", "probe", "lock", "shared lock"])
def test_a_long_wait_hardly_wakes(dist: ModuleType, rank: int, how: str) -> None:
    """A timer would end a sleep every millisecond; a bell rings when the other rank comes."""
    x = np.full(4, rank + 1.0)
    window = dist.Window((4,), np.float64)
    if rank == 0 and "lock" in how:
        hold = window.lock(1)
        hold.__enter__()
    dist.barrier()
    if rank == 0:
        time.sleep(1.0)
    before = resource.getrusage(resource.RUSAGE_THREAD)
    if "lock" in how:
        if rank == 0:
            hold.__exit__(None, None, None)
        else:
            with window.lock(1, shared=how == "shared lock"):
                pass
    elif how in ("message", "probe"):
        if rank == 1 and how == "probe":
            assert dist.probe(0).source == 0
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
    elif how == "async":
        dist.all_reduce(x, async_op=True).wait()
    else:
        dist.all_reduce(x)
    after = resource.getrusage(resource.RUSAGE_THREAD)
    window.free()
    assert x[0] == {"message": 1.0, "probe": 1.0}.get(how, rank + 1.0 if "lock" in how else 3.0)
    if rank == 1 and not over_nodes():
        assert after.ru_nvcsw - before.ru_nvcsw < 300
