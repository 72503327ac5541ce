"""The variables that training loops read agree with MPI, and ``env://`` works by them."""

from __future__ import annotations

from pathlib import Path

import job
import pytest
from paddlempi.testing import launch


@pytest.mark.launcher("the variables of its launcher are the subject")
def test_what_import_torch_tells() -> None:
    ended = launch.run(2, Path(__file__).with_name("told.py"), timeout=180)
    assert ended.returncode == 0, ended.output
    assert ended.stdout.count("done") == 2, ended.output


def alone() -> None:
    import os

    import torch.distributed as dist
    from ranks_tools import done

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "PADDLEMPI_FILLED")
    assert not any(name in os.environ for name in names)
    dist.init_process_group("mpi")
    assert dist.get_world_size() == 1
    dist.destroy_process_group()
    done()


@pytest.mark.launcher("the variables of its launcher are the subject")
def test_a_job_of_one_rank_is_told_nothing() -> None:
    job.succeed(1, alone)


def contradicted() -> None:
    import os

    import paddlempi.torch  # noqa: F401
    import torch
    import torch.distributed as dist
    from paddlempi.errors import ArgumentError
    from ports import unused
    from ranks_tools import done, raises

    assert os.environ["RANK"] == "0", "what the user set stays"
    assert os.environ["WORLD_SIZE"] == "2"
    for backend in ("mpi", "cpu:mpi"):
        with raises(ArgumentError, "RANK=0", "MPI's rank 1 of 2", "unset it"):
            dist.init_process_group(backend)
        assert not dist.is_initialized()
    del os.environ["RANK"]
    dist.init_process_group("mpi")
    rank = dist.get_rank()

    # If the user chose a port, env:// is torch's own rendezvous, at that port.
    port: list[object] = [None]
    if rank == 0:
        port[0] = unused()
    dist.broadcast_object_list(port, 0)
    dist.destroy_process_group()
    chosen = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port[0]),
    }
    os.environ.update(chosen)
    os.environ.pop("PADDLEMPI_FILLED")
    dist.init_process_group("cpu:mpi")
    client = dist.TCPStore("127.0.0.1", int(chosen["MASTER_PORT"]), is_master=False)
    client.set(f"here is {rank}", "x")
    assert client.get(f"here is {1 - rank}") == b"x"
    x = torch.ones(1)
    dist.all_reduce(x)
    assert x.item() == 2
    assert {name: os.environ[name] for name in chosen} == chosen
    dist.destroy_process_group()
    done()


@pytest.mark.launcher("the variables of its launcher are the subject")
def test_variables_of_the_user() -> None:
    job.succeed(2, contradicted, env={"RANK": "0"})


def mesh() -> None:
    import os

    import paddlempi.torch
    import torch.distributed as dist
    from ranks_tools import done
    from torch.distributed.device_mesh import init_device_mesh

    assert os.environ["LOCAL_WORLD_SIZE"] == "4"
    # Without an init torch makes a default group of gloo, which meets by paddlempi's env://.
    made = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    assert dist.get_backend() == "undefined"
    rank = dist.get_rank()
    assert (made.get_local_rank("a"), made.get_local_rank("b")) == divmod(rank, 2)
    dist.destroy_process_group()

    dist.init_process_group("mpi")
    made = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    for name, ranks in (("a", [rank % 2, rank % 2 + 2]), ("b", [rank // 2 * 2, rank // 2 * 2 + 1])):
        group = made.get_group(name)
        assert type(group) is paddlempi.torch.ProcessGroupMPI
        assert dist.get_process_group_ranks(group) == ranks
    dist.destroy_process_group()
    done()


def test_device_mesh_with_and_without_init() -> None:
    job.succeed(4, mesh, timeout=120)


def unnamed() -> None:
    import paddlempi.torch
    import torch
    import torch.distributed as dist
    from ranks_tools import done
    from torch.distributed.device_mesh import init_device_mesh

    assert dist.get_default_backend_for_device("cpu") == "mpi"
    made = init_device_mesh("cpu", (2,))  # without an init
    assert type(dist.group.WORLD) is type(made.get_group()) is paddlempi.torch.ProcessGroupMPI
    x = torch.ones(2)
    dist.all_reduce(x)
    assert x.tolist() == [2, 2]
    dist.destroy_process_group()

    dist.init_process_group(dist.get_default_backend_for_device("cpu"))
    assert type(dist.group.WORLD) is paddlempi.torch.ProcessGroupMPI
    dist.destroy_process_group()
    done()


def test_mpi_as_the_default() -> None:
    job.succeed(2, unnamed, env={"PADDLEMPI_TORCH_DEFAULT": "cpu"})


def asks_for_gloo() -> None:
    import warnings

    import paddlempi.torch
    import torch
    import torch.distributed as dist
    from ranks_tools import done
    from torch.distributed.device_mesh import init_device_mesh

    ours = paddlempi.torch.ProcessGroupMPI
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        by_name = dist.new_group(backend=dist.Backend.GLOO)
        by_place = dist.new_group(None, None, "gloo")
        mixed = dist.new_group(backend="cuda:gloo,cpu:gloo")
    assert [str(w.message)[:24] for w in told] == ["PADDLEMPI_TORCH_GLOO=mpi"] * (rank == 0), told
    assert dist.get_default_backend_for_device("cpu") == dist.get_backend() == "mpi"
    assert dist.get_backend_config(mixed) == "cuda:gloo,cpu:mpi"
    for group in (dist.group.WORLD, by_name, by_place, init_device_mesh("cpu", (2,)).get_group()):
        assert type(group) is ours, group
    for group in (None, by_name, by_place, mixed):
        x = torch.ones(2)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [size, size]
        assert isinstance(group or dist.group.WORLD, ours)
    dist.monitored_barrier()
    dist.destroy_process_group()
    dist.init_process_group()
    assert type(dist.group.WORLD) is ours
    dist.destroy_process_group()
    done()


def test_gloo_is_taken_as_mpi() -> None:
    job.succeed(2, asks_for_gloo, env={"PADDLEMPI_TORCH_GLOO": "mpi"})
