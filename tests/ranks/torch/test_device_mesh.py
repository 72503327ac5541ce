"""Meshes of one and two dimensions: which ranks their groups have, and that they use MPI."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from ranks_data import same, whole
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh


def rows(size: int) -> int:
    """Return the rows of the mesh: 2 x 2 for four ranks, otherwise one column."""
    return size // 2 if size % 2 == 0 and size > 2 else size


@pytest.fixture(scope="module")
def mesh(dist: ModuleType) -> Any:
    size = dist.get_world_size()
    shape = (rows(size), size // rows(size))
    return init_device_mesh("cpu", shape, mesh_dim_names=("down", "along"))


def summed(dist: ModuleType, rank: int, group: Any) -> Any:
    tensor = whole(rank, 3)
    dist.all_reduce(tensor, group=group)
    return tensor


def of(ranks: Any) -> Any:
    return sum(whole(int(r), 3) for r in ranks)


def test_one_dimension(dist: ModuleType, rank: int, size: int) -> None:
    line = init_device_mesh("cpu", (size,))
    assert line.get_local_rank() == line.get_rank() == rank
    assert line.size() == size
    assert dist.get_backend(line.get_group()) == "mpi"
    assert dist.get_process_group_ranks(line.get_group()) == list(range(size))
    same(summed(dist, rank, line.get_group()), of(range(size)))


def test_two_dimensions(dist: ModuleType, mesh: Any, rank: int, size: int) -> None:
    grid = torch.arange(size).reshape(mesh.shape)
    row, column = divmod(rank, mesh.shape[1])
    assert tuple(mesh.get_coordinate()) == (row, column)
    for name, peers in (("down", grid[:, column]), ("along", grid[row])):
        group = mesh.get_group(name)
        assert dist.get_backend(group) == "mpi"
        assert dist.get_process_group_ranks(group) == peers.tolist()
        assert mesh.get_local_rank(name) == dist.get_rank(group) == peers.tolist().index(rank)
        same(summed(dist, rank, group), of(peers))
    assert [g.group_name for g in mesh.get_all_groups()] == [
        mesh.get_group(i).group_name for i in range(2)
    ]


def test_slices(dist: ModuleType, mesh: Any, rank: int, size: int) -> None:
    grid = torch.arange(size).reshape(mesh.shape)
    row, column = divmod(rank, mesh.shape[1])
    down = mesh["down"]
    assert down.mesh.tolist() == grid[:, column].tolist()
    assert down.get_local_rank() == row
    same(summed(dist, rank, down.get_group()), of(grid[:, column]))
    assert mesh["down", "along"].mesh.tolist() == grid.tolist()
    with pytest.raises((KeyError, RuntimeError)):
        mesh["across"]


def test_flattened(dist: ModuleType, mesh: Any, rank: int, size: int) -> None:
    flat = mesh._flatten("all")
    assert flat.mesh.tolist() == list(range(size))
    assert dist.get_backend(flat.get_group()) == "mpi"
    same(summed(dist, rank, flat.get_group()), of(range(size)))


def test_from_group(dist: ModuleType, mesh: Any, rank: int, size: int) -> None:
    line = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    assert line.mesh.tolist() == list(range(size))
    assert line.get_group().group_name == dist.group.WORLD.group_name
    same(summed(dist, rank, line.get_group()), of(range(size)))

    groups = mesh.get_all_groups()
    again = DeviceMesh.from_group(groups, "cpu", mesh=mesh.mesh, mesh_dim_names=("outer", "inner"))
    for old, name in zip(groups, ("outer", "inner"), strict=True):
        assert again.get_group(name).group_name == old.group_name
        same(
            summed(dist, rank, again.get_group(name)),
            of(dist.get_process_group_ranks(old)),
        )


def test_of_some_ranks(dist: ModuleType, rank: int, size: int) -> None:
    """A mesh of all ranks but the first. The first has no coordinate in it."""
    part = DeviceMesh("cpu", list(range(1, size)))
    if rank == 0:
        assert part.get_coordinate() is None
        return
    assert tuple(part.get_coordinate()) == (rank - 1,)
    same(summed(dist, rank, part.get_group()), of(range(1, size)))


def test_more_than_there_is(dist: ModuleType, size: int) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        init_device_mesh("cpu", (size + 1,))
