"""Beginning and end of the default group, also if the program itself uses paddlempi."""

from __future__ import annotations

import time
from datetime import timedelta

import paddlempi
import paddlempi.torch
import pytest
import torch
import torch.distributed as dist
from paddlempi import _native, errors
from ranks_tools import raises, works


@pytest.mark.mpi(ranks=[2, 3])
@pytest.mark.usefixtures("no_world")
def test_init_after_destroy() -> None:
    for _ in range(3):
        dist.init_process_group("mpi")
        rank = dist.get_rank()
        groups = [dist.new_group(), dist.new_group([rank], use_local_synchronization=True)]
        for group in (None, *groups):
            x = torch.ones(3)
            dist.all_reduce(x, group=group)
            assert x.tolist() == [dist.get_world_size(group)] * 3
        if rank == 0:
            dist.destroy_process_group(groups[0])
        assert paddlempi.is_initialized()
        dist.barrier()
        dist.destroy_process_group()
        assert not dist.is_initialized()
        assert not paddlempi.is_initialized()
        with raises(ValueError, "Default process group has not been initialized"):
            dist.all_reduce(torch.ones(1))
        for group in groups:
            try:
                group.allreduce([torch.ones(1)])
            except RuntimeError as error:
                assert isinstance(error, errors.Error), error
            else:
                raise AssertionError("a group outlived its world")


@pytest.mark.mpi(ranks=2)
@pytest.mark.usefixtures("no_world")
def test_joins_the_world_of_the_program() -> None:
    def deadline(group: int) -> float:
        return float(_native.control("group_info", group=group)["timeout"])

    # The program has a world. torch joins it, with another deadline, and leaves it.
    paddlempi.init_process_group("mpi", timeout=99.0)
    for _ in range(2):
        dist.init_process_group("mpi", timeout=timedelta(seconds=33))
        x = torch.ones(3)
        dist.all_reduce(x)
        assert x.tolist() == [dist.get_world_size()] * 3
        assert deadline(dist.group.WORLD._gid) == 33.0
        assert deadline(0) == 99.0
        works()
        dist.destroy_process_group()
        works()
    paddlempi.destroy_process_group()
    assert not paddlempi.is_initialized()

    # paddlempi makes torch's default group, and ends it.
    for _ in range(2):
        paddlempi.init_process_group("mpi", timeout=55.0, framework="torch")
        assert isinstance(dist.group.WORLD, paddlempi.torch.ProcessGroupMPI)
        assert deadline(dist.group.WORLD._gid) == 55.0
        dist.all_reduce(x)
        works()
        paddlempi.destroy_process_group()
        assert not dist.is_initialized()

    # A world that torch alone uses has torch's deadline.
    dist.init_process_group("mpi", timeout=timedelta(seconds=11))
    assert deadline(0) == 11.0
    dist.destroy_process_group()
    assert not paddlempi.is_initialized()


@pytest.mark.mpi(ranks=3)
@pytest.mark.usefixtures("no_world")
def test_one_rank_leaves_early() -> None:
    dist.init_process_group("mpi")
    rank = dist.get_rank()
    pair = dist.new_group([0, 1])
    dist.barrier()
    if rank == 2:
        dist.destroy_process_group()  # does not wait for the other ranks
    else:
        time.sleep(1)
        x = torch.ones(1)
        dist.all_reduce(x, group=pair)
        assert x.item() == 2
        dist.destroy_process_group()
