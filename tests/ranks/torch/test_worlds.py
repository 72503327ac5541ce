"""The spellings of a backend, and the ranks that a program gives to torch."""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from paddlempi import destroy_process_group, get_rank, is_initialized
from paddlempi.errors import ArgumentError
from paddlempi.torch import ProcessGroupMPI
from paddlempi.torch.errors import GroupDestroyedError, TimeoutError
from ranks_tools import needs_mpi, raises
from torch._C._distributed_c10d import _register_process_group
from torch.distributed.distributed_c10d import _DistributedBackendOptions, _get_default_store

pytestmark = pytest.mark.mpi(ranks=2)


@pytest.mark.usefixtures("no_world")
def test_every_spelling() -> None:
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

        # The store works, and the ranks share it. The keys differ: torch may keep the server for
        # the next world at the same address, and with it what an earlier world has set.
        store = _get_default_store()
        store.set(f"{name} of {rank}", name)
        assert store.get(f"{name} of {(rank + 1) % size}") == name.encode()

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


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU")
@pytest.mark.usefixtures("no_world")
def test_beside_nccl_without_a_gpu() -> None:
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

    # The outcome is the same as without MPI, in either order. It is not compared with gloo for the
    # CPU, whose error depends on whether the other rank has failed before gloo has connected.
    stock = outcome("nccl")
    for backend in ("cpu:mpi,cuda:nccl", "cuda:nccl,cpu:mpi"):
        assert outcome(backend) == stock, (outcome(backend), stock)
    assert outcome("mpi") == 2


@pytest.mark.usefixtures("no_world")
def test_a_rank_and_world_size_that_mpi_contradicts(tmp_path: Path) -> None:
    needs_mpi()
    warnings.simplefilter("error")
    dist.init_process_group("mpi")
    path: list[object] = [str(tmp_path / "store")]
    dist.broadcast_object_list(path, 0)
    dist.destroy_process_group()
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
    store = dist.FileStore(path[0], 2)
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


@pytest.mark.usefixtures("no_world")
def test_groups_that_torch_does_not_know_of(tmp_path: Path) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("mpi")
    path: list[object] = [str(tmp_path)]
    dist.broadcast_object_list(path, 0)
    dist.destroy_process_group()

    def make(name: str, **more: object) -> ProcessGroupMPI:
        options = _DistributedBackendOptions()
        options.store = dist.FileStore(f"{path[0]}/{name}", 2)
        options.group_rank, options.group_size = 1 - rank, 2
        options.timeout = timedelta(seconds=60)
        for key, value in more.items():
            setattr(options, key, value)
        group = dist.Backend._plugins["MPI"].creator_fn(options, None)
        assert isinstance(group, ProcessGroupMPI)
        return group

    def check(group: ProcessGroupMPI) -> None:
        assert (group.rank(), group.size()) == (group.rank(), 2)
        x = torch.tensor([rank + 1.0])
        group.allreduce([x]).wait()
        dist.all_reduce(x, group=group)
        assert x.item() == 6
        y = torch.tensor([group.rank()])
        group.broadcast([y], 1).wait()
        assert y.item() == 1
        names: list[object] = [None, None]
        dist.all_gather_object(names, group.rank(), group=group)
        assert names == [0, 1]
        group.barrier().wait()
        for _ in range(2):  # torch's registry has the name, and then the table of the kernels in C
            torch.ops.paddlempi.all_reduce_(x, group.group_name)
        gathered = torch.ops._c10d_functional.all_gather_into_tensor(x, 2, group.group_name)
        assert torch.ops._c10d_functional.wait_tensor(gathered).tolist() == [24, 24]
        dist.all_gather_object(names, group.group_name, group=group)
        assert names[0] == names[1]

    with raises(ArgumentError, "creator_fn", "group_rank=2, group_size=2"):
        make("wrong", group_rank=2)
    with raises(ArgumentError, "store=None"):
        make("none", store=None)
    # Without a world the members become one, unless MPI knows their ranks.
    if "PADDLEMPI_MEET" in os.environ:
        first = make("alone")
        assert first.rank() == get_rank() == 1 - rank
        check(first)
        destroy_process_group()

    dist.init_process_group("mpi")
    group = make("reversed")
    assert group.rank() == 1 - rank
    check(group)
    by_ranks = make("ranks", global_ranks_in_group=[0, 1])
    assert by_ranks.rank() == rank
    check(by_ranks)
    # vLLM gives a group its own name, and registers it.
    first_name, name = group.group_name, "of a program"
    group._set_group_name(name)
    with raises(ArgumentError, f"group='{first_name}' is no group of this process"):
        torch.ops.paddlempi.all_reduce_(torch.ones(1), first_name)
    _register_process_group(name, group)
    assert group.group_name == name
    check(group)
    group.shutdown()
    with raises(GroupDestroyedError):
        group.allreduce([torch.ones(1)]).wait()
    with raises(ArgumentError, f"group='{name}' is no group of this process"):
        torch.ops.paddlempi.all_reduce_(torch.ones(1), name)
    by_ranks._set_group_name(dist.group.WORLD.group_name)  # another group's, which keeps it
    by_ranks._set_group_name("by ranks")
    torch.ops.paddlempi.all_reduce_(torch.ones(1), dist.group.WORLD.group_name)
    _register_process_group("by ranks", by_ranks)
    check(by_ranks)
    if rank == 0:
        with raises(TimeoutError, "ranks [0] of the group had not come", ranks=[0]):
            make("late", timeout=timedelta(seconds=0.3))
    dist.barrier()
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2
