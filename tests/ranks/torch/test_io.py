"""``paddlempi.io`` with DTensors: FSDP2, tensor parallel and both, into and out of one file."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import safetensors.torch
import torch
from paddlempi import errors, io
from paddlempi.io import elements
from ranks_data import real, same
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(10, 18)
        self.down = torch.nn.Linear(18, 10)
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x: Any) -> Any:
        return self.down(self.up(x).relu())


def block(seed: int) -> Any:
    torch.manual_seed(seed)
    return Block()


def spread(model: Any, dist: ModuleType, kind: str) -> Any:
    size = dist.get_world_size()
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    if kind == "fsdp2":
        return fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    if kind == "tp":
        return parallelize_module(model, init_device_mesh("cpu", (size,)), plan)
    if kind == "hsdp":
        shape = max(1, size // 2), min(2, size)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))
        return fully_shard(model, mesh=mesh)
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], plan)
    return fully_shard(model, mesh=mesh["dp"])


@pytest.mark.parametrize("kind", ["fsdp2", "tp", "hsdp", "fsdp2 and tp"])
def test_a_model(dist: ModuleType, here: Path, rank: int, size: int, kind: str) -> None:
    if size % 2 and kind in ("hsdp", "fsdp2 and tp"):
        kind = "fsdp2"
    model = spread(block(1), dist, kind)
    io.save_file(model.state_dict(), here / "m", metadata={"format": "pt"})
    wanted = block(1).state_dict()
    if rank == 0:
        safetensors.torch.save_file(wanted, here / "t", {"format": "pt"})
        assert (here / "m").read_bytes() == (here / "t").read_bytes()
    dist.barrier()
    other = spread(block(2), dist, "fsdp2" if kind == "tp" else "tp")
    io.load_file(here / "m", other.state_dict())
    for name, one in other.state_dict().items():
        same(one.full_tensor() if isinstance(one, DTensor) else one, wanted[name])
    found = io.load_file(here / "m", framework="torch")
    for name, one in found.items():
        same(one, wanted[name])


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool]
)
def test_dtypes(here: Path, line: Any, size: int, dtype: Any) -> None:
    """Also of a tensor that is not contiguous, and of one with less rows than ranks."""
    whole = torch.randint(0, 2, (9, 14), generator=torch.Generator().manual_seed(3)).to(dtype)
    mine = whole.clone()[: int(line.get_local_rank() == 0)]
    tensors = {
        "rows": distribute_tensor(whole.view(torch.uint8), line, [Shard(0)]),
        "turned": whole.clone().t(),
        "few": DTensor.from_local(mine, line, [Shard(0)], shape=(1, 14), stride=(14, 1)),
    }
    io.save_file(tensors, here / "m")
    found = safetensors.torch.load_file(here / "m")
    assert torch.equal(found["turned"].view(torch.uint8), whole.t().contiguous().view(torch.uint8))
    assert torch.equal(found["few"].view(torch.uint8), whole[:1].view(torch.uint8))
    assert torch.equal(found["rows"], whole.view(torch.uint8))


def test_what_is_held_in_no_boxes(here: Path, line: Any, size: int) -> None:
    whole = real(0, 8 * size, 3)
    partial = DTensor.from_local(whole, line, [Partial()])
    with pytest.raises(errors.ArgumentError, match=r"'layer.w': it is Partial .* redistribute\(\)"):
        io.save_file({"layer.w": partial}, here / "m")
    if size > 1:
        strided = DTensor.from_local(whole[:8], line, [_StridedShard(0, split_factor=2)])
        with pytest.raises(errors.ArgumentError, match=r"'layer\.w': .*without the Shard"):
            io.save_file({"b": whole, "layer.w": strided}, here / "m")
    tied = torch.nn.Linear(3, 3, bias=False)
    with pytest.raises(errors.ArgumentError, match="'a' and 'b' share memory"):
        io.save_file({"a": tied.weight, "b": tied.weight}, here / "m")
    for wrong in (whole.to_sparse(), whole.to("meta")):
        with pytest.raises(errors.DtypeError, match="'w': a torch tensor"):
            io.save_file({"w": wrong}, here / "m")
    assert not list(here.iterdir())


def test_memory_that_has_other_values(here: Path) -> None:
    """A lazy conjugate is saved with its values, and not loaded into."""
    lazy = torch.view_as_complex(real(0, 2, 2)).conj()
    assert lazy.is_conj()
    io.save_file({"w": lazy}, here / "m")
    same(io.load_file(here / "m", {"w": torch.empty_like(lazy)})["w"], lazy.resolve_conj())
    with pytest.raises(errors.DtypeError, match=r"'w' is a lazy conjugate .*resolve_conj\(\)"):
        io.load_file(here / "m", {"w": torch.zeros(2, dtype=lazy.dtype).conj()})


def test_replicas_and_views(here: Path, line: Any) -> None:
    """What all ranks have; a part of a larger tensor; a parameter that needs a gradient."""
    whole = real(0, 12, 6)
    tensors = {
        "replica": distribute_tensor(whole, line, [Replicate()]),
        "view": whole.clone()[2:9:3, 1:],
        "parameter": torch.nn.Parameter(whole.clone()),
    }
    io.save_file(tensors, here / "m")
    like = {name: torch.empty_like(one) for name, one in tensors.items()}
    version = like["view"]._version
    found = io.load_file(here / "m", like)
    assert like["view"]._version > version  # autograd is told
    same(found["replica"].full_tensor(), whole)
    same(found["view"], whole[2:9:3, 1:])
    same(found["parameter"].detach(), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.bool])
def test_parts_of_a_tensor_that_is_not_in_host_memory(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are copied part by part. A tensor in host memory stands for it."""
    monkeypatch.setattr(elements, "STAGED", 64)
    tensor = torch.randint(0, 2, (11, 7), generator=torch.Generator().manual_seed(3)).to(dtype)
    source, target = elements.Elements(tensor), elements.Elements(torch.zeros_like(tensor))
    source.array = target.array = None
    count = 0
    for index, array in source.parts():
        target.store(index, array)
        count += 1
    assert count > 1
    same(target.tensor, tensor)
