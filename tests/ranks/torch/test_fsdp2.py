"""``fully_shard`` against one process that trains on the whole batch."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from models import Net, agree, alone, batches, close, loss_of, part, seeded, spoilt, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

# A torch built for CUDA warns that a mesh on the CPU cannot set the device.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def sharded(module: nn.Module, mesh: Any, **options: Any) -> nn.Module:
    """Shard every layer as a unit of its own, and then the model."""
    model = copy.deepcopy(module)
    for layer in (model.first, model.middle, model.last):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def whole(tensors: Any) -> list[torch.Tensor]:
    """Return sharded tensors, put together on every rank."""
    return [t.detach().full_tensor() for t in tensors]


@pytest.fixture
def mesh(dist: ModuleType, size: int) -> Any:
    return init_device_mesh("cpu", (size,))


@pytest.mark.parametrize("reshard", [True, False], ids=["reshard", "keep"])
def test_steps(dist: ModuleType, rank: int, size: int, mesh: Any, reshard: bool) -> None:
    start = seeded(Net)
    model = sharded(start, mesh, reshard_after_forward=reshard)
    train(model, loss_of(size), rank)
    got = whole(model.parameters())
    close(got, alone(start, loss_of(size), size))
    agree(dist, got)
    # 16, 32 and 3 rows cannot always be divided evenly. A rank holds the part of torch.chunk.
    held = [p.to_local().shape[0] for p in model.parameters()]
    rows = [len(p.chunk(size)[rank]) if rank < len(p.chunk(size)) else 0 for p in got]
    assert held == rows


def test_mixed_precision(dist: ModuleType, rank: int, size: int, mesh: Any) -> None:
    half = torch.bfloat16
    start = seeded(Net, torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    model = sharded(start, mesh, mp_policy=policy)
    x, y = (part(t, rank, size) for t in batches(0, dtype=torch.float32))
    out = model(x)
    assert out.dtype == half
    nn.functional.mse_loss(out.float(), y).backward()
    grads = whole(p.grad for p in model.parameters())
    assert all(g.dtype == torch.float32 for g in grads)
    single = copy.deepcopy(start)
    loss_of(1, torch.float32)(single, 0, 0).backward()
    close(grads, [p.grad for p in single.parameters()], rtol=0.1, atol=0.01)
    agree(dist, grads)


def test_clip_and_accumulate(dist: ModuleType, rank: int, size: int, mesh: Any) -> None:
    """Two batches, the first without a reduction. The norm is over all shards."""
    start = seeded(Net)
    model = sharded(start, mesh)
    model.set_requires_gradient_sync(False)
    loss_of(size)(model, 0, rank).backward()
    model.set_requires_gradient_sync(True)
    loss_of(size)(model, 1, rank).backward()
    total = nn.utils.clip_grad_norm_(model.parameters(), 0.01).full_tensor()

    single = copy.deepcopy(start)
    for step in range(2):
        loss_of(1)(single, step, 0).backward()
    close([total], [nn.utils.clip_grad_norm_(single.parameters(), 0.01)])
    grads = whole(p.grad for p in model.parameters())
    # torch 2.8 has the clipping factor in float32.
    close(grads, [p.grad for p in single.parameters()], rtol=1e-5, atol=1e-12)
    agree(dist, grads)


def test_adam_state_is_sharded(dist: ModuleType, rank: int, size: int, mesh: Any) -> None:
    def adam(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    start = seeded(Net)
    model = sharded(start, mesh)
    optimizer = adam(model)
    train(model, loss_of(size), rank, optimizer)
    close(whole(model.parameters()), alone(start, loss_of(size), size, adam))
    for p in model.parameters():
        assert optimizer.state[p]["exp_avg"].to_local().shape == p.to_local().shape


@pytest.mark.mpi(ranks=[4])
@pytest.mark.parametrize("reshard", [True, False], ids=["reshard", "keep"])
def test_hybrid(dist: ModuleType, rank: int, size: int, reshard: bool) -> None:
    """HSDP: two replicas of two shards, reduced within a replica and then between replicas."""
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    start = seeded(Net)
    model = sharded(start, grid, reshard_after_forward=reshard)
    train(model, loss_of(size), rank)
    got = whole(model.parameters())
    close(got, alone(start, loss_of(size), size))
    agree(dist, got)
    held = sum(p.to_local().numel() for p in model.parameters())
    assert held < sum(p.numel() for p in got)
    agree(dist, [p.to_local() for p in model.parameters()], grid.get_group("replicate"))


@pytest.mark.parametrize("method", ["reduce_scatter_single", "all_gather_single"])
def test_a_spoilt_collective_is_noticed(
    dist: ModuleType,
    rank: int,
    size: int,
    mesh: Any,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = seeded(Net)
    model = sharded(start, mesh)
    with spoilt(monkeypatch, method, 0):
        train(model, loss_of(size), rank, steps=range(1))
    with pytest.raises(AssertionError, match="not close"):
        close(whole(model.parameters()), alone(start, loss_of(size), size, steps=range(1)))
