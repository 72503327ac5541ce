"""FullyShardedDataParallel (FSDP 1) against one process that trains on the whole batch."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
from models import Net, agree, alone, batches, close, loss_of, part, seeded, spoilt, train
from torch import nn
from torch.distributed.fsdp import (
    FullStateDictConfig,
    MixedPrecision,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def wrapped(module: nn.Module, **options: Any) -> FSDP:
    """Wrap every layer as a unit of its own, and the rest of the model as another unit."""
    return FSDP(
        copy.deepcopy(module),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
        **options,
    )


def whole(model: FSDP) -> list[torch.Tensor]:
    """Return all parameters, put together on every rank."""
    with FSDP.summon_full_params(model):
        return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("original", [False, True], ids=["flat", "original"])
@pytest.mark.parametrize(
    "strategy",
    [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD],
    ids=lambda strategy: strategy.name,
)
def test_strategies(
    dist: ModuleType, rank: int, size: int, strategy: ShardingStrategy, original: bool
) -> None:
    start = seeded(Net)
    model = wrapped(start, sharding_strategy=strategy, use_orig_params=original)
    train(model, loss_of(size), rank)
    expected = alone(start, loss_of(size), size)
    got = whole(model)
    close([torch.cat([p.flatten() for p in got])], [_flat(expected)])
    agree(dist, got)
    if strategy is not ShardingStrategy.NO_SHARD:  # this rank holds only its share
        held = sum(p.numel() for p in model.parameters())
        assert held < _flat(expected).numel()


def _flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_mixed_precision(dist: ModuleType, rank: int, size: int) -> None:
    """Forward and reduction in bfloat16, parameters in float32."""
    half = torch.bfloat16
    start = seeded(Net, torch.float32)
    model = wrapped(
        start,
        use_orig_params=True,
        mixed_precision=MixedPrecision(param_dtype=half, reduce_dtype=half),
    )

    x, y = (part(t, rank, size) for t in batches(0, dtype=torch.float32))
    out = model(x)
    assert out.dtype == half
    nn.functional.mse_loss(out.float(), y).backward()
    single = copy.deepcopy(start)
    loss_of(1, torch.float32)(single, 0, 0).backward()
    with FSDP.summon_full_params(model, with_grads=True):
        grads = [p.grad.clone() for p in model.parameters()]
    assert all(g.dtype == torch.float32 for g in grads)
    close(grads, [p.grad for p in single.parameters()], rtol=0.1, atol=0.01)
    agree(dist, grads)


def test_accumulation(dist: ModuleType, rank: int, size: int) -> None:
    """The gradients of two batches. The second backward reduces both."""
    start = seeded(Net)
    model = wrapped(start, use_orig_params=True)
    with model.no_sync():
        loss_of(size)(model, 0, rank).backward()
    loss_of(size)(model, 1, rank).backward()
    single = copy.deepcopy(start)
    for step in range(2):
        loss_of(1)(single, step, 0).backward()
    with FSDP.summon_full_params(model, with_grads=True):
        grads = [p.grad.clone() for p in model.parameters()]
    close(grads, [p.grad for p in single.parameters()])
    agree(dist, grads)


@pytest.mark.parametrize("norm", [2.0, 1.0, float("inf")])
def test_clip_grad_norm(dist: ModuleType, rank: int, size: int, norm: float) -> None:
    start = seeded(Net, torch.float32)
    model = wrapped(start, use_orig_params=True)
    loss_of(size, torch.float32)(model, 0, rank).backward()
    total = model.clip_grad_norm_(0.01, norm)
    single = copy.deepcopy(start)
    loss_of(1, torch.float32)(single, 0, 0).backward()
    expected = nn.utils.clip_grad_norm_(single.parameters(), 0.01, norm)
    close([total], [expected], rtol=1e-5, atol=1e-7)
    with FSDP.summon_full_params(model, with_grads=True):
        grads = [p.grad.clone() for p in model.parameters()]
    close(grads, [p.grad for p in single.parameters()], rtol=1e-4, atol=1e-7)
    agree(dist, [total])


def test_full_state_dict(dist: ModuleType, rank: int, size: int) -> None:
    """The whole state on every rank, loaded into another model.

    The optimizer's state is left out: torch puts its pieces together wrong on the CPU, with gloo
    too.
    """
    start = seeded(Net)
    model = train(wrapped(start, use_orig_params=True), loss_of(size), rank)
    everywhere = FullStateDictConfig(rank0_only=False)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, everywhere):
        saved = copy.deepcopy(model.state_dict())
    expected = dict(alone(start, loss_of(size), size).named_parameters())
    assert saved.keys() == expected.keys()
    close(saved.values(), expected.values())
    agree(dist, saved.values())

    other = wrapped(Net().double(), use_orig_params=True)
    with FSDP.state_dict_type(other, StateDictType.FULL_STATE_DICT):
        other.load_state_dict(saved)
    close(whole(other), expected.values())


def test_sharded_state_dict(dist: ModuleType, rank: int, size: int) -> None:
    """Saved after some steps and loaded into another model, which continues the training."""
    types = (
        StateDictType.SHARDED_STATE_DICT,
        ShardedStateDictConfig(),
        ShardedOptimStateDictConfig(),
    )
    start = seeded(Net)
    model = wrapped(start, use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, loss_of(size), rank, optimizer)
    with FSDP.state_dict_type(model, *types):
        saved = copy.deepcopy(model.state_dict())
        state = copy.deepcopy(FSDP.optim_state_dict(model, optimizer))
    other = wrapped(Net().double(), use_orig_params=True)
    resumed = torch.optim.Adam(other.parameters(), lr=0.5)
    with FSDP.state_dict_type(other, *types):
        other.load_state_dict(saved)
        resumed.load_state_dict(FSDP.optim_state_dict_to_load(other, resumed, state))
    train(other, loss_of(size), rank, resumed, range(3, 5))
    got = whole(other)
    close(got, alone(start, loss_of(size), size, _adam, range(5)))
    agree(dist, got)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.mark.parametrize("method", ["reduce_scatter_single", "allgather"])
def test_a_spoilt_collective_is_noticed(
    dist: ModuleType, rank: int, size: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = seeded(Net)
    model = wrapped(start)
    with spoilt(monkeypatch, method, 0):
        train(model, loss_of(size), rank, steps=range(1))
    got = torch.cat([p.flatten() for p in whole(model)])
    with pytest.raises(AssertionError, match="not close"):
        close([got], [_flat(alone(start, loss_of(size), size, steps=range(1)))])
