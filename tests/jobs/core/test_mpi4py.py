"""mpi4py in the same process, imported before or after, and its communicators as the world."""

from __future__ import annotations

import job
import pytest


def together() -> None:
    import os

    import numpy as np

    order = os.environ["FAULTS_ORDER"]
    if order == "before":
        from mpi4py import MPI
    from ranks_tools import dist, done, start, works

    rank = start()
    if order == "after":
        from mpi4py import MPI
    assert MPI.Is_initialized() and MPI.COMM_WORLD.Get_rank() == rank
    # Operations of both at the same time do not disturb each other.
    theirs, ours = np.full(5, rank + 1.0), np.full(5, rank + 1.0)
    request = MPI.COMM_WORLD.Irecv(bytearray(3), (rank + 1) % dist.get_world_size(), tag=7)
    work = dist.all_reduce(ours, async_op=True)
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, theirs)
    work.wait()
    assert (theirs == ours).all()
    MPI.COMM_WORLD.Send(b"abc", (rank - 1) % dist.get_world_size(), tag=7)
    request.Wait()
    assert MPI.COMM_WORLD.allgather(rank) == list(range(dist.get_world_size()))
    if order == "before":
        dist.destroy_process_group()
        assert MPI.COMM_WORLD.allreduce(1) == 2
        start()
    works()
    # These operations are under way when MPI is finalized.
    dist.all_reduce(np.ones(100000), async_op=True)
    dist.isend(np.ones(10), (rank + 1) % dist.get_world_size())
    dist.irecv(np.ones(10), (rank - 1) % dist.get_world_size())
    done()


def part_of_the_world() -> None:
    import numpy as np
    from mpi4py import MPI
    from ranks_tools import dist, done, errors, raises

    me = MPI.COMM_WORLD.Get_rank()
    for comm in MPI.COMM_WORLD.Split(me % 2, -me), MPI.COMM_SELF, MPI.COMM_WORLD:
        dist.init_process_group("mpi", comm=comm, timeout=20.0)
        assert (dist.get_rank(), dist.get_world_size()) == (comm.Get_rank(), comm.Get_size())
        x = np.full(3, me)
        dist.all_reduce(x)
        assert (x == sum(comm.allgather(me))).all()
        group = dist.new_group(list(reversed(range(comm.Get_size()))))
        assert dist.get_rank(group) == comm.Get_size() - 1 - comm.Get_rank()
        dist.broadcast(x, 0, group=group)
        dist.destroy_process_group()
        comm.Barrier()
    for wrong in MPI.COMM_NULL, "world", 3:
        with raises(errors.DtypeError if wrong in ("world", 3) else errors.ArgumentError, "comm"):
            dist.init_process_group("mpi", comm=wrong)
    dist.init_process_group("mpi")
    done()


def below_multiple() -> None:
    import mpi4py

    mpi4py.rc.thread_level = "funneled"
    from mpi4py import MPI  # noqa: F401
    from ranks_tools import dist, done, errors, raises

    with raises(errors.ThreadLevelError, "thread_level", "mpi4py"):
        dist.init_process_group("mpi")
    done()


@pytest.mark.parametrize("order", ["before", "after"])
def test_together(order: str) -> None:
    job.succeed(2, together, env={"FAULTS_ORDER": order})


def test_part_of_the_world() -> None:
    job.succeed(3, part_of_the_world)


def test_below_multiple() -> None:
    job.succeed(1, below_multiple)
