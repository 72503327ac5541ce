"""Files of all ranks from and into torch tensors on the GPU."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROWS, COLUMNS = 3000, 700  # 8 MiB of float32: more than one piece of a copy


def matrix(torch: Any, size: int, dtype: Any) -> Any:
    """The whole matrix: small whole numbers, which no dtype rounds."""
    return (torch.arange(size * ROWS * COLUMNS) % 119).to(dtype).view(size * ROWS, COLUMNS)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_save_and_load(
    dist: ModuleType, torch: Any, here: Path, rank: int, size: int, dtype: str, strided: bool
) -> None:
    from paddlempi import io

    whole = matrix(torch, size, getattr(torch, dtype))
    rows = whole[rank * ROWS : (rank + 1) * ROWS].cuda()
    if strided:
        rows = rows.t().contiguous().t()
    bias = whole[0].cuda()
    given = {"rows": io.Shard(rows, whole.shape, (rank * ROWS, 0)), "bias": bias}
    # It reads what the stream has still to write.
    rows.add_(1), bias.mul_(2)
    io.save_file(given, here / "file.safetensors")
    read = io.load_file(here / "file.safetensors", framework="torch")
    assert torch.equal(read["rows"], whole + 1)
    assert torch.equal(read["bias"], whole[0] * 2)

    columns = COLUMNS // size
    part = torch.zeros(whole.shape[0], columns, dtype=rows.dtype, device="cuda")
    bias.zero_()
    box = io.Shard(part, whole.shape, (0, rank * columns))
    io.load_file(here / "file.safetensors", like={"rows": box, "bias": bias})
    wanted = (whole + 1)[:, rank * columns : (rank + 1) * columns]
    assert torch.equal(part.cpu(), wanted)
    assert torch.equal(bias.cpu(), whole[0] * 2)


def test_views(dist: ModuleType, torch: Any, here: Path, rank: int, size: int) -> None:
    from paddlempi import io

    whole = matrix(torch, 1, torch.float32)[:, : size * (COLUMNS // size)]
    own = slice(rank * (COLUMNS // size), (rank + 1) * (COLUMNS // size))
    with io.File(here / "array", "w") as file:
        view = file.view("float32", whole.shape, (0, own.start), (ROWS, own.stop - own.start))
        view.write_all(whole[:, own].cuda())
        file.sync()
        back = torch.zeros(ROWS, own.stop - own.start, device="cuda")
        view.read_all(back)
        assert torch.equal(back.cpu(), whole[:, own])
        row = torch.zeros(whole.shape[1], device="cuda")
        file.read_at((ROWS - 1) * 4 * whole.shape[1], row)
        assert torch.equal(row.cpu(), whole[-1])


@pytest.mark.parametrize("asynchronous", [False, True], ids=["save", "async_save"])
def test_checkpoints(
    tdist: ModuleType, torch: Any, here: Path, rank: int, size: int, asynchronous: bool
) -> None:
    """FSDP2's parameters on the GPU, saved in shards, read whole by one process."""
    import torch.distributed.checkpoint as dcp
    from paddlempi import io
    from paddlempi.torch.checkpoint import StorageReader, StorageWriter
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(37, 111), torch.nn.Linear(111, 5)).cuda()
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    mesh = tdist.init_device_mesh("cuda", (size,))
    fully_shard(model, mesh=mesh)
    weights = get_model_state_dict(model)
    group = tdist.new_group()
    with contextlib.closing(StorageWriter(here / "out")) as writer:
        if asynchronous:
            saving = dcp.async_save({"model": weights}, storage_writer=writer, process_group=group)
            with torch.no_grad():  # what is saved is what was there
                for parameter in model.parameters():
                    parameter.to_local().zero_()
            saving.result(timeout=60)
        else:
            dcp.save({"model": weights}, storage_writer=writer)
    read = io.load_file(here / "out" / "model.safetensors", framework="torch")
    assert read.keys() == wanted.keys()
    for name, value in read.items():
        assert torch.equal(value, wanted[name].cpu()), name
    for value in weights.values():
        value.to_local().zero_()
    dcp.load({"model": weights}, storage_reader=StorageReader(here / "out"))
    for name, value in weights.items():
        assert torch.equal(value.full_tensor(), wanted[name]), name
    tdist.destroy_process_group(group)
