"""Default groups by every backend name, alone and with other backends, one after another."""

from __future__ import annotations

import job
import pytest


def spellings() -> None:
    import torch
    import torch.distributed as dist
    from paddlempi.torch import ProcessGroupMPI
    from ranks_tools import done
    from torch.distributed.distributed_c10d import _get_default_store

    torch.set_num_threads(1)
    for name in (
        "mpi",
        "Paddlempi",
        "cpu:mpi",
        "cpu:mpi,cuda:mpi",
        "cpu:mpi,cuda:gloo",
        "cuda:gloo,cpu:paddlempi",
        "cpu:gloo,cuda:mpi",
    ):
        dist.init_process_group(name)
        rank, size = dist.get_rank(), dist.get_world_size()
        world = dist.group.WORLD
        assert isinstance(world, ProcessGroupMPI)
        assert dist.get_backend() == name.lower(), dist.get_backend()
        devices = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
        if ":" in name:
            assert devices == dict(pair.split(":") for pair in name.split(","))
        else:
            assert devices == {"cpu": name.lower(), "cuda": name.lower()}
        ours = devices["cpu"] != "gloo"
        assert (world._get_backend(torch.device("cpu")) is world) == ours
        if devices.get("cuda") == "gloo":
            assert "Gloo" in type(world._get_backend(torch.device("cuda"))).__name__
        assert torch.device("cpu") in world._device_types

        # The store works, and the ranks share it.
        store = _get_default_store()
        store.set(f"of {rank}", name)
        assert store.get(f"of {(rank + 1) % size}") == name.encode()

        for group in (world, dist.new_group(list(range(size))[::-1])):
            x = torch.full((3,), rank + 1.0)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [size * (size + 1) / 2] * 3
            work = dist.broadcast(x.fill_(rank), size - 1, group=group, async_op=True)
            work.wait()
            assert x.tolist() == [size - 1] * 3
            parts = [torch.zeros(2, dtype=torch.int64) for _ in range(size)]
            dist.all_gather(parts, torch.tensor([rank, -rank]), group=group)
            assert [part.tolist() for part in parts] == [[r, -r] for r in range(size)]
            objects: list[object] = [None] * size
            dist.all_gather_object(objects, {"rank": rank}, group=group)
            assert objects == [{"rank": r} for r in range(size)]
            dist.barrier(group=group)
            after, before = (rank + 1) % size, (rank - 1) % size
            got = torch.zeros(2)
            for request in dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, torch.full((2,), rank + 0.5), after, group),
                    dist.P2POp(dist.irecv, got, before, group),
                ]
            ):
                request.wait()
            assert got.tolist() == [before + 0.5] * 2
            if ours:
                assert work.is_completed()
                if rank == 0:
                    assert dist.recv(got, group=group) == 1
                    assert got.tolist() == [7.0, 7.0]
                elif rank == 1:
                    dist.send(torch.full((2,), 7.0), 0, group=group)
        model = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.constant_(model.weight, rank)
        model = torch.nn.parallel.DistributedDataParallel(model)
        model(torch.full((1, 2), rank + 1.0)).sum().backward()
        assert model.module.weight.detach().tolist() == [[0.0, 0.0]]
        mean = sum(range(1, size + 1)) / size
        assert model.module.weight.grad is not None
        assert model.module.weight.grad.tolist() == [[mean, mean]]
        dist.destroy_process_group()
        assert not dist.is_initialized()
    done()


def test_every_spelling() -> None:
    job.succeed(2, spellings, timeout=240)


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


@pytest.mark.parametrize("np", [2, 3])
def test_beside_gloo(np: int) -> None:
    job.succeed(np, beside_gloo, timeout=120)


def without_gpu() -> None:
    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from ranks_tools import done

    def outcome(backend: str) -> object:
        """Return the error of an init, or the result of an all_reduce of the group."""
        try:
            dist.init_process_group(backend)
        except Exception as error:
            return type(error), str(error).partition("\n")[0]
        x = torch.ones(1)
        dist.all_reduce(x)
        dist.destroy_process_group()
        return x.item()

    # The outcome is the same as with gloo for the CPU, in either order.
    stock = outcome("cpu:gloo,cuda:nccl")
    for backend in ("cpu:mpi,cuda:nccl", "cuda:nccl,cpu:mpi"):
        assert outcome(backend) == stock, (outcome(backend), stock)
    assert outcome("mpi") == 2
    done()


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU")
def test_beside_nccl_without_a_gpu() -> None:
    job.succeed(2, without_gpu, timeout=120)


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


def test_ranks_that_are_not_those_of_mpi() -> None:
    job.succeed(2, other_ranks, timeout=120)


def given_another_rank() -> None:
    import os
    import sys
    import warnings

    import torch.distributed as dist
    from paddlempi import is_initialized
    from paddlempi.errors import ArgumentError
    from ranks_tools import done, raises

    warnings.simplefilter("error")
    rank = int(os.environ["RANK"])
    both = "rank=0 given to MPI's rank 1 of 2"
    for backend in ("mpi", "MPI", "paddlempi", "cpu:mpi"):
        # A framework that does not know the launcher gives the same numbers on all ranks.
        with raises(ArgumentError, "init_process_group", both, "docs/torch.md"):
            dist.init_process_group(backend, rank=0, world_size=2)
        with raises(ArgumentError, "world_size=4 given to MPI's rank 0 of 2", "rank 1 of 2"):
            dist.init_process_group(backend, rank=rank, world_size=4)
        assert not dist.is_initialized() and not is_initialized()
    # The arguments are wrong on one rank, and the other rank gives none.
    more = {"rank": 0} if rank == 1 else {}
    with raises(ArgumentError, both):
        dist.init_process_group("mpi", **more)
    store = dist.FileStore(f"{sys.argv[0]}.store", 2)
    with raises(ArgumentError, both):
        dist.init_process_group("mpi", store=store, rank=0, world_size=2)
    with raises(AssertionError, "both init_method and store"):
        dist.init_process_group("mpi", store=store, init_method="env://", rank=0, world_size=2)

    # Numbers that agree are accepted, and torch warns of nothing.
    for more in (
        {"rank": rank, "world_size": 2},
        {"rank": rank},
        {"world_size": 2},
        {"rank": rank, "world_size": 2, "store": store},
        {"rank": rank, "world_size": 2, "init_method": "env://"},
    ):
        for backend in ("mpi", "cpu:mpi"):
            if backend == "mpi" or "store" not in more:
                dist.init_process_group(backend, **more)
                assert (dist.get_rank(), dist.get_world_size()) == (rank, 2)
                dist.destroy_process_group()
    done()


def test_a_rank_and_world_size_that_mpi_contradicts() -> None:
    job.succeed(2, given_another_rank, timeout=120)


def a_part_on_gloo() -> None:
    import os
    import socket

    import torch
    import torch.distributed as dist
    from ranks_tools import done

    dist.init_process_group("mpi")
    rank = dist.get_rank()
    ports: list[object] = [None] * 4
    with socket.create_server(("127.0.0.1", 0)) as free:
        dist.all_gather_object(ports, free.getsockname()[1])
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


def test_rpc_with_ranks_of_its_own() -> None:
    job.succeed(2, rpc_by_itself)
