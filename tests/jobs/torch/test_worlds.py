"""Default groups of two backends, and ranks of torch or RPC that are not those of MPI."""

from __future__ import annotations

import job
import pytest


def beside_gloo() -> None:
    import os

    import paddlempi
    import paddlempi.torch
    import torch
    import torch.distributed as dist
    from ranks_tools import done

    # Without a backend it is torch's own group, at the address that came from the launcher.
    dist.init_process_group()
    assert dist.get_backend() == "undefined"
    assert type(dist.group.WORLD) is not paddlempi.torch.ProcessGroupMPI
    rank, size = dist.get_rank(), dist.get_world_size()
    assert (str(rank), str(size)) == (os.environ["RANK"], os.environ["WORLD_SIZE"])
    for repeat in range(2):
        # Not all ranks are members, but all ranks must start MPI.
        group = dist.new_group([0, 1], backend="mpi")
        assert paddlempi.is_initialized()
        if rank < 2:
            assert dist.get_backend(group) == "mpi"
            x = torch.full((2,), rank + 1.0 + repeat)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [3.0 + 2 * repeat] * 2
        else:
            assert group is dist.GroupMember.NON_GROUP_MEMBER
    alone = dist.new_group([rank], backend="mpi", use_local_synchronization=True)
    assert dist.get_process_group_ranks(alone) == [rank]
    everyone = dist.new_group(backend="cpu:mpi,cuda:gloo")
    x = torch.ones(1)
    dist.all_reduce(x, group=everyone)
    dist.all_reduce(x)
    assert x.item() == size * size
    dist.destroy_process_group()

    # A group of gloo with a default group of paddlempi.
    dist.init_process_group("mpi")
    group = dist.new_group(backend="gloo")
    assert dist.get_backend(group) == "gloo"
    x = torch.ones(1)
    dist.all_reduce(x, group=group)
    dist.all_reduce(x)
    assert x.item() == size * size
    dist.destroy_process_group()
    done()


def test_beside_gloo() -> None:
    job.succeed(3, beside_gloo, timeout=120)


def other_ranks() -> None:
    import os
    import sys

    import paddlempi.torch  # noqa: F401
    import torch.distributed as dist
    from paddlempi.errors import ArgumentError
    from ranks_tools import done, raises

    rank = int(os.environ["RANK"])
    store = f"file://{sys.argv[0]}.store"
    words = ("torch's rank 0 of 2 is MPI's rank 1 of 2", "torch's rank 1 of 2 is MPI's rank 0 of 2")
    dist.init_process_group("gloo", init_method=store, rank=1 - rank, world_size=2)
    with raises(ArgumentError, "use_local_synchronization", "MPI does not run yet"):
        dist.new_group([1 - rank], backend="mpi", use_local_synchronization=True)
    with raises(ArgumentError, "new_group", *words):
        dist.new_group(backend="mpi")
    dist.destroy_process_group()
    with raises(ArgumentError, "init_process_group", *words):
        dist.init_process_group("cpu:mpi", init_method=store + "2", rank=1 - rank, world_size=2)
    assert not dist.is_initialized()
    dist.init_process_group("mpi")
    assert dist.get_rank() == rank
    dist.destroy_process_group()
    done()


@pytest.mark.launcher("ranks that are not those of MPI")
def test_ranks_that_are_not_those_of_mpi() -> None:
    job.succeed(2, other_ranks, timeout=120)


def a_part_on_gloo() -> None:
    import os

    import torch
    import torch.distributed as dist
    from ports import unused
    from ranks_tools import done

    dist.init_process_group("mpi")
    rank = dist.get_rank()
    ports: list[object] = [None] * 4
    dist.all_gather_object(ports, unused())
    dist.destroy_process_group()
    # Every pair of ranks is a world of gloo.
    os.environ["MASTER_PORT"] = str(ports[rank // 2])
    dist.init_process_group("gloo", rank=rank % 2, world_size=2)
    x = torch.ones(1)
    dist.all_reduce(x)
    assert (x.item(), dist.get_world_size()) == (2, 2)
    dist.destroy_process_group()
    done()


def test_gloo_on_a_part_of_the_ranks() -> None:
    job.succeed(4, a_part_on_gloo, timeout=120)


def rpc_by_itself() -> None:
    import warnings

    import torch
    import torch.distributed as dist
    from ranks_tools import done
    from torch.distributed import rpc

    warnings.simplefilter("ignore")
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    worker = size - 1 - rank
    rpc.init_rpc(f"worker{worker}", rank=worker, world_size=size)
    assert rpc.rpc_sync("worker0", torch.add, args=(torch.ones(2), rank)).tolist() == [1 + rank] * 2
    dist.barrier()
    rpc.shutdown()
    dist.destroy_process_group()
    done()


@pytest.mark.launcher("ranks that are not those of MPI")
def test_rpc_with_ranks_of_its_own() -> None:
    job.succeed(2, rpc_by_itself)
