"""Distributed checkpoints: saved by all ranks, loaded in other layouts and by fewer ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ranks_data import real, same, whole
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

ROWS, COLUMNS = 7, 10  # no number of ranks divides both


def spread(mesh: Any, place: Any, tensor: Any) -> Any:
    return distribute_tensor(tensor, mesh, [place])


def state(mesh: Any, place: Any, rank: int) -> dict[str, Any]:
    """Return what is saved: a spread tensor, an equal one, one of each rank, and a number."""
    return {
        "layer": {"weight": spread(mesh, place, whole(0, ROWS, COLUMNS))},
        "bias": whole(0, 5, key=1),
        f"of rank {rank}": whole(rank, 3, key=2),
        "step": 17,
    }


def blank(mesh: Any, place: Any, rank: int) -> dict[str, Any]:
    return {
        "layer": {"weight": spread(mesh, place, torch.zeros(ROWS, COLUMNS))},
        "bias": torch.zeros(5),
        f"of rank {rank}": torch.zeros(3),
        "step": 0,
    }


def check(loaded: dict[str, Any], rank: int) -> None:
    same(loaded["layer"]["weight"].full_tensor(), whole(0, ROWS, COLUMNS))
    same(loaded["bias"], whole(0, 5, key=1))
    same(loaded[f"of rank {rank}"], whole(rank, 3, key=2))
    assert loaded["step"] == 17


PLACES = [Shard(0), Shard(1), Replicate()]


@pytest.mark.parametrize("target", PLACES, ids=str)
@pytest.mark.parametrize("source", PLACES, ids=str)
def test_save_and_load(here: Path, line: Any, rank: int, source: Any, target: Any) -> None:
    dcp.save(state(line, source, rank), checkpoint_id=here)
    loaded = blank(line, target, rank)
    dcp.load(loaded, checkpoint_id=here)
    check(loaded, rank)


def test_async_save(dist: ModuleType, here: Path, line: Any, rank: int, size: int) -> None:
    """The save uses a group of its own, while the ranks call other collectives."""
    apart = dist.new_group(list(range(size)))
    saved = state(line, Shard(0), rank)
    future = dcp.async_save(saved, checkpoint_id=here, process_group=apart)
    # The tensor has been staged, so this change is not saved.
    saved["layer"]["weight"].to_local().zero_()
    for key in range(20):
        tensor = whole(rank, 100, key=key)
        dist.all_reduce(tensor)
        same(tensor, sum(whole(r, 100, key=key) for r in range(size)))
    future.result(timeout=60)
    loaded = blank(line, Shard(1), rank)
    dcp.load(loaded, checkpoint_id=here)
    check(loaded, rank)
    dist.destroy_process_group(apart)


def test_loaded_by_fewer_ranks(
    dist: ModuleType, here: Path, line: Any, rank: int, size: int
) -> None:
    dcp.save(state(line, Shard(0), rank), checkpoint_id=here)
    members = list(range(1, size))
    part = DeviceMesh("cpu", members)
    if rank in members:
        # from_local, because distribute_tensor would send from rank 0, which is not in this mesh.
        rows = torch.zeros(ROWS, COLUMNS).chunk(len(members))
        mine = rows[members.index(rank)] if members.index(rank) < len(rows) else rows[0][:0]
        weight = DTensor.from_local(
            mine.clone(), part, [Shard(0)], shape=torch.Size((ROWS, COLUMNS)), stride=(COLUMNS, 1)
        )
        loaded = {"layer": {"weight": weight}, "step": 0}
        dcp.load(loaded, checkpoint_id=here, process_group=part.get_group())
        same(weight.full_tensor(), whole(0, ROWS, COLUMNS))
        assert loaded["step"] == 17
    dist.barrier()


def test_read_by_one_process(dist: ModuleType, here: Path, line: Any, rank: int) -> None:
    """One process reads the whole tensor without a process group."""
    dcp.save(state(line, Shard(1), rank), checkpoint_id=here)
    if rank == 0:
        loaded = {"layer": {"weight": torch.zeros(ROWS, COLUMNS)}, "bias": torch.zeros(5)}
        dcp.load(loaded, checkpoint_id=here, no_dist=True)
        same(loaded["layer"]["weight"], whole(0, ROWS, COLUMNS))
        same(loaded["bias"], whole(0, 5, key=1))


def test_what_is_not_there(here: Path, line: Any, rank: int) -> None:
    """Every rank gets the error of every other rank."""
    dcp.save({"a": spread(line, Shard(0), whole(0, 4, 4))}, checkpoint_id=here)
    with pytest.raises((dcp.api.CheckpointException, RuntimeError), match="b"):
        dcp.load({"b": spread(line, Shard(0), torch.zeros(4, 4))}, checkpoint_id=here)


# Models and optimizers


def trained(mesh: Any, rank: int, steps: int) -> tuple[Any, Any]:
    """Return a sharded model and its optimizer after some steps on every rank's own data."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=False)
    for step in range(steps):
        train(model, optimizer, rank, step)
    return model, optimizer


def train(model: Any, optimizer: Any, rank: int, step: int) -> None:
    optimizer.zero_grad()
    model(real(rank, 4, 6, key=step)).square().mean().backward()
    optimizer.step()


def parameters(model: Any) -> list[Any]:
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def test_training_goes_on_from_a_checkpoint(
    dist: ModuleType, here: Path, line: Any, rank: int
) -> None:
    """Three steps, a save, a load into another model and two steps are equal to five steps."""
    wanted, _ = trained(line, rank, 5)
    model, optimizer = trained(line, rank, 3)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=here)

    model, optimizer = trained(line, rank, 1)
    weights, moments = get_state_dict(model, optimizer)
    loaded = {"model": weights, "optimizer": moments}
    dcp.load(loaded, checkpoint_id=here)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=loaded["model"],
        optim_state_dict=loaded["optimizer"],
    )
    for step in (3, 4):
        train(model, optimizer, rank, step)
    for got, parameter in zip(parameters(model), parameters(wanted), strict=True):
        same(got, parameter)


def test_full_state_dict(line: Any, rank: int) -> None:
    """Only rank 0 gets the whole state, and gives it to all ranks."""
    model, _ = trained(line, rank, 2)
    full = StateDictOptions(full_state_dict=True, cpu_offload=True)
    gathered = get_model_state_dict(model, options=full)
    wanted = parameters(model)
    if rank == 0:
        for got, parameter in zip(gathered.values(), wanted, strict=True):
            same(got, parameter)
    else:
        assert gathered == {}

    other, _ = trained(line, rank, 0)
    assert not all(torch.equal(a, b) for a, b in zip(parameters(other), wanted, strict=True))
    from_rank_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(other, copy.deepcopy(gathered), options=from_rank_0)
    for got, parameter in zip(parameters(other), wanted, strict=True):
        same(got, parameter)
