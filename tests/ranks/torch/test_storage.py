"""``torch.distributed.checkpoint`` with paddlempi's storage: one safetensors file of all ranks."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from paddlempi.torch.checkpoint import StorageReader, StorageWriter
from ranks_data import real, same
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def trained(line: Any, seed: int) -> tuple[Any, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    fully_shard(model, mesh=line)
    return model, torch.optim.AdamW(model.parameters(), 1e-2, betas=(0.8, 0.9))


def steps(model: Any, optimizer: Any, numbers: range) -> list[float]:
    losses = []
    for number in numbers:
        optimizer.zero_grad()
        loss = model(real(0, 4, 7, key=number)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def files(here: Path) -> list[str]:
    return sorted(path.name for path in here.iterdir())


@pytest.mark.parametrize("most", [None, 100], ids=["file", "set"])
def test_a_training_goes_on(
    dist: ModuleType, here: Path, line: Any, rank: int, size: int, most: int | None
) -> None:
    model, optimizer = trained(line, 1)
    steps(model, optimizer, range(3))
    weights, states = get_state_dict(model, optimizer)
    more = {"step": 3, "name": "run", "nested": {"a": (1, {2: None}), "b": [1.5, float("inf")]}}
    state = {"model": weights, "optim": states, **more}
    for _ in range(2):  # the second one replaces the first
        dcp.save(state, storage_writer=StorageWriter(here / "out", max_shard_size=most))
    wanted = {name: one.full_tensor() for name, one in weights.items()}
    if rank == 0:
        names = files(here / "out")
        assert sum("-state.safetensors" in name for name in names) == 1
        assert len(names) == 2 or most
        found: dict[str, Any] = {}
        for name in names:
            if name.endswith(".safetensors") and "-state" not in name:
                found |= safetensors.torch.load_file(here / "out" / name)
        assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        if rank == 0:
            same(found[name], tensor)
    losses = steps(model, optimizer, range(3, 6))
    model, optimizer = trained(line, 2)
    weights, states = get_state_dict(model, optimizer)
    state = {"model": weights, "optim": states, "step": 0, "name": "", "nested": {"a": 0, "b": 0}}
    dcp.load(state, storage_reader=StorageReader(here / "out"))
    assert {name: state[name] for name in more} == more
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )
    assert steps(model, optimizer, range(3, 6)) == losses


def test_a_state_dict_without_a_model_in_it(
    dist: ModuleType, here: Path, line: Any, rank: int, size: int
) -> None:
    """Its file is that of safetensors, to the last byte. Other parts and dtypes are loaded."""
    whole = {"model.w": real(0, 9, 6), "head": real(0, 4, key=1), "n": torch.tensor(3)}
    state = {**whole, "model.w": distribute_tensor(whole["model.w"], line, [Shard(1)])}
    dcp.save(state, checkpoint_id=str(here / "out"), storage_writer=StorageWriter())
    if rank == 0:
        safetensors.torch.save_file(whole, here / "t", {"format": "pt"})
        assert (here / "out" / "model.safetensors").read_bytes() == (here / "t").read_bytes()
    dist.barrier()
    for place in (Shard(0), Replicate()):
        state["model.w"] = distribute_tensor(torch.zeros(9, 6, dtype=torch.float64), line, [place])
        dcp.load(state, storage_reader=StorageReader(here / "t"))
        same(state["model.w"].full_tensor(), whole["model.w"].double())
    nested = {"model": {name: torch.zeros_like(one) for name, one in whole.items()}}
    dcp.load(nested, storage_reader=StorageReader(here / "t", prefix="model."))
    same(nested["model"]["head"], whole["head"])


def test_the_first_rank_says_how_far_it_is(
    dist: ModuleType, here: Path, line: Any, rank: int, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"w": distribute_tensor(real(0, 8, 6), line, [Shard(0)])}
    dcp.save(state, storage_writer=StorageWriter(here / "out", progress=True))
    dcp.load(state, storage_reader=StorageReader(here / "out", progress=True))
    mine = state["w"].to_local().nbytes
    said = [line.split(" in ")[0] for line in capsys.readouterr().err.splitlines()]
    expected = [f"StorageWriter: {mine} B", f"StorageReader: {mine} B"]
    assert [one for one in said if one.startswith("Storage")] == (expected if rank == 0 else [])


def test_what_cannot_be_saved(
    dist: ModuleType, here: Path, line: Any, rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks raise, the old checkpoint stays, and the attempt's files go with the writer."""
    good = {"w": distribute_tensor(real(0, 8, 6), line, [Shard(0)])}
    dcp.save(good, storage_writer=StorageWriter(here / "out"))
    before = files(here / "out")
    for wrong, message in (
        ({**good, "x": object()}, "'x' has a object"),
        ({**good, "c": torch.zeros(3, dtype=torch.complex128)}, "'c' is of complex128"),
        ({**good, "text": "x" * 5000}, "give a larger room="),
    ):
        writer = StorageWriter(here / "out", room=1000)
        with pytest.raises(CheckpointException, match=message):
            dcp.save(wrong, storage_writer=writer)
        writer.close()
        dist.barrier()
        assert files(here / "out") == before
        dist.barrier()
    real_pwrite = os.pwrite
    if rank == size - 1:
        monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(116, "Stale")))
    with pytest.raises(CheckpointException, match="Stale"):
        dcp.save(good, storage_writer=StorageWriter(here / "out"))
    monkeypatch.undo()
    assert os.pwrite is real_pwrite
    gc.collect()
    dist.barrier()
    dcp.save(good, storage_writer=StorageWriter(here / "out"))  # removes what is left
    dist.barrier()
    assert files(here / "out") == before
    with pytest.raises(CheckpointException, match="No such file"):
        dcp.load({"w": torch.zeros(8, 6)}, storage_reader=StorageReader(here / "none"))
    with pytest.raises(CheckpointException, match="give a path"):
        dcp.load({"w": torch.zeros(8, 6)}, storage_reader=StorageReader())


def test_while_training_goes_on(
    dist: ModuleType, here: Path, line: Any, rank: int, size: int
) -> None:
    """A copy is saved while the tensors change. There is one, which the next save waits for."""
    group = dist.new_group()
    state = {"w": distribute_tensor(real(0, 64, 60), line, [Shard(0)]), "b": real(0, 5), "n": 1}
    wanted = {"w": real(0, 64, 60), "b": real(0, 5)}
    writer = StorageWriter(here / "out")
    places = set()
    for number in range(3):
        future = dcp.async_save(state, storage_writer=writer, process_group=group)
        places.add(tuple(one.data_ptr() for one in writer._snapshots._tensors.values()))
        for name in wanted:
            state[name].add_(1)
        if number == 1:
            future.result()
            found = {"w": torch.zeros(64, 60), "b": torch.zeros(5), "n": 0}
            dcp.load(found, storage_reader=StorageReader(here / "out"))
            for name, tensor in wanted.items():
                same(found[name], tensor + 1)
    future.result()
    assert len(places) == 1
    (memory,) = {sum(t.nbytes for t in writer._snapshots._tensors.values())}
    assert memory == state["w"].to_local().nbytes + state["b"].nbytes
    writer.close()
    dist.destroy_process_group(group)


def test_tied_weights(dist: ModuleType, here: Path, line: Any, rank: int, size: int) -> None:
    """They are written under each of their names, as torch's own storage does, and copied once."""
    group = dist.new_group()
    w = distribute_tensor(real(0, 8, 6), line, [Shard(0)])
    writer = StorageWriter(here / "out")
    for state in ({"w": w, "tied": w.detach()}, {"w": w + 1, "tied": w}, {"w": w, "tied": w}):
        saving = dcp.async_save({"model": state}, storage_writer=writer, process_group=group)
        wanted = {name: one.full_tensor().clone() for name, one in state.items()}
        copies = {id(one): one.nbytes for one in writer._snapshots._tensors.values()}
        assert len(copies) == (2 if state["tied"] is w and state["w"] is not w else 1)
        saving.result()
        found = safetensors.torch.load_file(here / "out" / "model.safetensors")
        for name, tensor in wanted.items():
            same(found[name], tensor)
        dist.barrier()
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    model[1].weight = model[0].weight
    fully_shard(model, mesh=line)
    weights, _ = get_state_dict(model, [])
    dcp.save({"model": weights}, storage_writer=StorageWriter(here / "tied"))
    wanted = {name: one.full_tensor().clone() for name, one in weights.items()}
    for one in model.parameters():
        one.detach().zero_()
    weights, _ = get_state_dict(model, [])
    dcp.load({"model": weights}, storage_reader=StorageReader(here / "tied"))
    for name, tensor in wanted.items():
        same(weights[name].full_tensor(), tensor)
    writer.close()
    dist.destroy_process_group(group)


def columns(line: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return tensors that are cut by columns, into many short runs, with others; whole and cut."""
    whole = {"w": real(0, 90, 40), "v": real(0, 9, 50, 12, key=1), "rows": real(0, 64, 3)}
    places = {"w": Shard(1), "v": Shard(1), "rows": Shard(0)}
    state: dict[str, Any] = {
        n: distribute_tensor(one, line, [places[n]]) for n, one in whole.items()
    }
    whole["replica"] = state["replica"] = real(0, 70, 30, key=2)
    return whole, state


@pytest.mark.parametrize("most", [None, 9000], ids=["file", "set"])
def test_columns_are_brought_together(
    dist: ModuleType,
    here: Path,
    line: Any,
    rank: int,
    size: int,
    most: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bytes are those of one process, and each rank writes a few long runs."""
    whole, state = columns(line)
    group = dist.new_group()
    lengths: list[int] = []
    real_pwrite = os.pwrite

    def pwrite(descriptor: int, data: Any, at: int) -> int:
        lengths.append(len(data))
        return real_pwrite(descriptor, data, at)

    monkeypatch.setattr(os, "pwrite", pwrite)
    for way in (dist.group.WORLD, group):
        lengths.clear()
        writer = StorageWriter(here / "out", max_shard_size=most, process_group=way)
        if way is group:
            dcp.async_save(state, storage_writer=writer, process_group=group).result()
        else:
            dcp.save(state, storage_writer=writer)
        assert len(lengths) < 40 or size == 1, lengths  # with the headers; there are 99 runs
        dist.barrier()
        found = {name: torch.zeros_like(one) for name, one in whole.items()}
        dcp.load(found, storage_reader=StorageReader(here / "out"))
        for name, tensor in whole.items():
            same(found[name], tensor)
        dist.barrier()
    if rank == 0 and most is None:
        safetensors.torch.save_file(whole, here / "t", {"format": "pt"})
        assert (here / "out" / "model.safetensors").read_bytes() == (here / "t").read_bytes()
    dist.destroy_process_group(group)


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("name", ["pwrite", "open", "fsync"])
def test_a_disk_fails_while_columns_are_brought_together(
    dist: ModuleType,
    here: Path,
    line: Any,
    rank: int,
    size: int,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, state = columns(line)
    writer = StorageWriter(here / "out", process_group=dist.group.WORLD)
    real_call = getattr(os, name)

    def fails(*arguments: Any, **named: Any) -> Any:
        if name == "open" and "partial" not in str(arguments[0]):
            return real_call(*arguments, **named)
        raise OSError(116, "Stale")

    with monkeypatch.context() as patch:
        if rank == size - 1:
            patch.setattr(os, name, fails)
        with pytest.raises(CheckpointException, match="Stale"):
            dcp.save(state, storage_writer=writer)
    writer.close()
    dist.barrier()
    assert not files(here / "out")
    dist.barrier()
    dcp.save(state, storage_writer=writer)
