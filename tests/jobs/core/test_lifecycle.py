"""Wrong order of init and destroy, a panic, many worlds in one process: errors, no crashes."""

from __future__ import annotations

import job
import pytest


def wrong_order() -> None:
    import numpy as np
    from ranks_tools import dist, done, errors, raises, start, works

    def nothing_works():
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
    nothing_works()
    rank = start()
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
    start()
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
    with raises(errors.ArgumentError, "mpi=", "was initialised before"):
        dist.init_process_group("mpi", mpi="/nowhere/libmpi.so")
    start()
    works()
    done()


def many_lives() -> None:
    """Communicators (MPICH has 2046), descriptors and mappings do not run out."""
    import gc
    import os
    from pathlib import Path

    import numpy as np
    from ranks_tools import dist, done, start, works

    def held():
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("paddlempi-arrive")

    before = None
    for life in range(22):
        rank = start()
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
    assert held()[1] == 0, held()
    assert held()[0] <= before[0], (before, held())
    start()
    for _ in range(
        100 if os.environ["FAULTS_MPI"] == "openmpi" else 1100
    ):  # a group has two communicators
        group = dist.new_group([1, 0])
        dist.barrier(group)
        dist.destroy_process_group(group)
    works()
    assert held()[1] <= 2, held()
    done()


def panics() -> None:
    """The operation that exists to panic raises an error. The core takes no more calls then."""
    import numpy as np
    from paddlempi import _native
    from paddlempi._ops import Op
    from ranks_tools import dist, errors, raises, stamp, start, works

    start()
    works()
    with raises(errors.CorePanicError, "the panic operation", "goroutine"):
        _native.submit(Op.PANIC, 0, None, None)
    for call in (
        lambda: dist.all_reduce(np.ones(3)),
        lambda: dist.isend(np.ones(3), 0),
        lambda: dist.new_group([0, 1]),
        lambda: dist.destroy_process_group(),
    ):
        with raises(errors.CorePanicError, "takes no more calls"):
            call()
    print("poisoned", flush=True)
    stamp("end")


def test_wrong_order() -> None:
    job.succeed(2, wrong_order)


def test_many_lives() -> None:
    job.succeed(2, many_lives)


@pytest.mark.one_mpi
def test_panics() -> None:
    ended = job.run(2, panics)
    assert ended.result.stdout.count("poisoned") == 2, ended.output
    assert ended.at - ended.stamp("end") < 5, ended.output
