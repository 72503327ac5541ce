"""Functions of paddle.distributed that use the group: checkpoints, samplers, auto-parallel."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import pytest


@pytest.fixture
def folder(dist: ModuleType, rank: int, tmp_path: Path) -> str:
    """Rank 0's folder, for every rank."""
    place = [str(tmp_path) if rank == 0 else None]
    dist.broadcast_object_list(place, 0)
    assert place[0] is not None
    return place[0]


def test_checkpoint(dist: ModuleType, rank: int, folder: str) -> None:
    if ".flex_checkpoint." not in dist.load_state_dict.__module__:
        pytest.skip("Paddle 3.0 loads such checkpoints on a GPU only")
    layer = paddle.nn.Linear(4, 3)
    with paddle.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            dist.broadcast(parameter, 0)
            parameter.set_value(parameter + number)
    dist.save_state_dict(layer.state_dict(), folder)
    dist.barrier()
    other = paddle.nn.Linear(4, 3)
    state = other.state_dict()
    dist.load_state_dict(state, folder)
    for mine, theirs in zip(other.parameters(), layer.parameters(), strict=True):
        assert (mine.numpy() == theirs.numpy()).all()
    # load_state_dict replaces Tensor.cuda while it runs. Now the method is Paddle's own again.
    with pytest.raises(ValueError, match="device"):
        paddle.ones([1]).cuda()


def test_batch_sampler(dist: ModuleType, rank: int, size: int) -> None:
    samples = list(range(20))
    sampler = paddle.io.DistributedBatchSampler(samples, batch_size=2, shuffle=True)
    sampler.set_epoch(3)
    mine = [index for batch in sampler for index in batch]
    everyone: list[Any] = []
    dist.all_gather_object(everyone, mine)
    assert {index for one in everyone for index in one} == set(samples)
    assert len({len(one) for one in everyone}) == 1


def test_shards(dist: ModuleType, rank: int, size: int) -> None:
    """shard_tensor, and reshard to the whole tensor from parts and from partial sums."""
    mesh = dist.ProcessMesh(list(range(size)), dim_names=["x"])
    whole = paddle.arange(3 * size, dtype="float32")
    part = dist.shard_tensor(whole, mesh, [dist.Shard(0)])
    assert part._local_value().tolist() == list(range(3 * rank, 3 * rank + 3))
    back = dist.reshard(part, mesh, [dist.Replicate()])
    assert back._local_value().tolist() == whole.tolist()
    local = paddle.full([2], float(rank + 1))
    partial = dist.auto_parallel.api.dtensor_from_local(local, mesh, [dist.Partial()])
    total = dist.reshard(partial, mesh, [dist.Replicate()])
    assert total._local_value().tolist() == [size * (size + 1) / 2] * 2


def test_sharded_optimizer(dist: ModuleType, rank: int, size: int) -> None:
    """Auto-parallel's optimizer copies its attributes to the optimizer that it wraps."""
    mesh = dist.ProcessMesh(list(range(size)), dim_names=["x"])
    rng = np.random.default_rng(0)
    first = rng.standard_normal((4, 2)).astype("float32")
    whole, alone = paddle.nn.Linear(4, 2), paddle.nn.Linear(4, 2)
    for layer in (whole, alone):
        layer.weight.set_value(first)
        layer.bias.set_value(first[0])
    for name in ("weight", "bias"):
        setattr(whole, name, dist.shard_tensor(getattr(whole, name), mesh, [dist.Replicate()]))
    mine = dist.shard_optimizer(paddle.optimizer.AdamW(0.1, parameters=whole.parameters()))
    its = paddle.optimizer.AdamW(0.1, parameters=alone.parameters())
    assert vars(mine)["_inner_opt"] is not None
    for _ in range(3):
        x = paddle.to_tensor(rng.standard_normal((2 * size, 4)).astype("float32"))
        for layer, optimizer, batch in (
            (whole, mine, dist.shard_tensor(x, mesh, [dist.Shard(0)])),
            (alone, its, x),
        ):
            layer(batch).square().mean().backward()
            optimizer.step()
            optimizer.clear_grad()
    for found, expected in zip(whole.parameters(), alone.parameters(), strict=True):
        np.testing.assert_allclose(
            found._local_value().numpy(), expected.numpy(), rtol=1e-4, atol=1e-5
        )


def test_averaging_by_hand(dist: ModuleType, rank: int, size: int) -> None:
    """A loop that many scripts have: all_reduce of every gradient."""
    paddle.seed(1)
    layer = paddle.nn.Linear(5, 2)
    x = np.random.RandomState(0).randn(4 * size, 5).astype("float32")
    layer(paddle.to_tensor(x[rank::size])).square().mean().backward()
    for parameter in layer.parameters():
        dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
    mine = [p.grad.numpy() for p in layer.parameters()]
    for parameter in layer.parameters():
        parameter.clear_gradient()
    layer(paddle.to_tensor(x)).square().mean().backward()
    for found, parameter in zip(mine, layer.parameters(), strict=True):
        np.testing.assert_allclose(found, parameter.grad.numpy(), rtol=1e-5, atol=1e-6)
