"""Wrong order of init and destroy, many worlds in one process: errors, no crashes."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from contract import MPI
from paddlempi import errors
from ranks_tools import carried_by_mpi, raises, works

pytestmark = pytest.mark.mpi(ranks=2)


def test_wrong_order(dist: ModuleType, rank: int) -> None:
    def nothing_works() -> None:
        x = np.ones(3)
        assert not dist.is_initialized()
        for call in (
            lambda: dist.all_reduce(x),
            lambda: dist.all_reduce(x, async_op=True),
            lambda: dist.barrier(),
            lambda: dist.broadcast(x, 0),
            lambda: dist.all_gather([x], x),
            lambda: dist.monitored_barrier(),
            lambda: dist.all_to_all_single(x, x),
            lambda: dist.send(x, 0),
            lambda: dist.irecv(x, 0),
            lambda: dist.probe(),
            lambda: dist.broadcast_object_list([1], 0),
            lambda: dist.new_group([0]),
            lambda: dist.get_rank(),
            lambda: dist.get_world_size(),
            lambda: dist.destroy_process_group(),
        ):
            with raises(errors.NotInitializedError, "init"):
                call()

    assert dist.is_available()
    dist.destroy_process_group()
    nothing_works()
    dist.init_process_group("mpi")
    with raises(errors.AlreadyInitializedError, "destroy_process_group"):
        dist.init_process_group("mpi")
    works()
    group = dist.new_group([1, 0])
    x = np.ones(3)
    live = dist.irecv(x, 1 - rank)
    ended = dist.all_reduce(np.ones(3), async_op=True)
    ended.wait()
    dist.send(np.full(3, 2.0), 1 - rank)
    dist.destroy_process_group()
    nothing_works()
    assert ended.is_completed()
    # destroy ended the operations that were under way. A work outlives its world.
    assert live.wait() and live.source_rank() == 1 - rank
    assert (x == 2).all()
    del live, ended
    dist.init_process_group("mpi")
    works()
    # init makes everything again, user-defined reduce ops of MPI too.
    for op in "SUM", "AVG", "MAX", "PRODUCT":
        for dtype in np.float16, np.float32:
            x = np.full(5, rank + 1.0, dtype)
            dist.all_reduce(x, getattr(dist.ReduceOp, op))
            dist.reduce_scatter_tensor(
                np.ones(3, dtype), np.ones(6, dtype), getattr(dist.ReduceOp, op)
            )
            assert (x == {"SUM": 3, "AVG": 1.5, "MAX": 2, "PRODUCT": 2}[op]).all(), (op, dtype, x)
    dist.all_reduce(np.ones(3, np.complex64), dist.ReduceOp.PRODUCT)
    # The old group belongs to an earlier world.
    with raises(errors.GroupDestroyedError, "group", "new_group"):
        dist.barrier(group)
    works(dist.new_group([1, 0]))
    dist.destroy_process_group()
    with raises(errors.ArgumentError, "backend"):
        dist.init_process_group("nccl")
    with raises(errors.ArgumentError, "timeout"):
        dist.init_process_group("mpi", timeout=-1)
    wrong = errors.MPINotFoundError, "/nowhere/libmpi.so"
    if carried_by_mpi():
        wrong = errors.ArgumentError, "mpi=", "was initialised before"
    with raises(*wrong):
        dist.init_process_group("mpi", mpi="/nowhere/libmpi.so")
    dist.init_process_group("mpi")
    works()


def test_many_lives(dist: ModuleType, rank: int) -> None:
    """Communicators (MPICH has 2046), descriptors and mappings do not run out."""

    def held() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("paddlempi-arrive")

    dist.destroy_process_group()
    for life in range(22):
        dist.init_process_group("mpi")
        groups = [dist.new_group([0, 1]), dist.new_group([1, 0]), dist.new_group([rank])]
        for group in groups:
            works(group)
        work = dist.irecv(np.zeros(2), 1 - rank)
        dist.send(np.ones(2), 1 - rank)
        work.wait()
        if life % 2:
            for group in groups:
                dist.destroy_process_group(group)
        works()
        dist.destroy_process_group()
        if life == 1:
            before = held()
    assert held() <= before, (before, held())
    assert held()[1] <= before[1], (before, held())
    dist.init_process_group("mpi")
    for _ in range(100 if MPI == "openmpi" else 1100):  # a group has two communicators
        group = dist.new_group([1, 0])
        dist.barrier(group)
        dist.destroy_process_group(group)
    works()
    assert held()[1] <= before[1] + 3, (before, held())  # slots, and the doorbells behind
