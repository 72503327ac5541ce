"""The settings of get_context(): gradients averaged without a wrapper, ZeRO 1 and 2."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import paddlempi
import pytest
from paddlempi import errors

BATCH = 12


@pytest.fixture(params=[0, 1, 2], ids=["data parallel", "zero 1", "zero 2"])
def level(request: pytest.FixtureRequest, dist: ModuleType) -> Iterator[int]:
    """Every level, set for the optimizers that the test makes."""
    context = paddlempi.get_context()
    context.enable_data_parallel = True
    context.zero_opt_level = request.param
    context.group_bucket_size = 150  # makes several buckets of these few numbers
    yield request.param
    context.enable_data_parallel = False
    context.zero_opt_level = 0
    context.group_bucket_size = 25 << 20


def make(seed: int) -> Any:
    paddle.seed(seed)
    return paddle.nn.Sequential(
        paddle.nn.Linear(6, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 3), paddle.nn.Linear(3, 2)
    )


def batch(step: int) -> tuple[Any, Any]:
    random = np.random.RandomState(step)
    return random.randn(BATCH, 6).astype("float32"), random.randn(BATCH, 2).astype("float32")


def train(model: Any, optimizer: Any, part: slice, steps: range, halves: int = 1) -> None:
    """Train on a part of the global batches, with `halves` backwards in every step."""
    for step in steps:
        x, y = batch(step)
        for half in range(halves):
            given, wanted = x[half::halves][part], y[half::halves][part]
            loss = ((model(paddle.to_tensor(given)) - paddle.to_tensor(wanted)) ** 2).mean()
            (loss / halves).backward()
        optimizer.step()
        optimizer.clear_grad(set_to_zero=step % 2 == 0)


def alone(seed: int, build: Any, steps: range, halves: int = 1) -> tuple[Any, Any]:
    """Return the model and optimizer after one process has trained on the global batches."""
    context = paddlempi.get_context()
    saved = context.enable_data_parallel, context.zero_opt_level
    context.enable_data_parallel, context.zero_opt_level = False, 0
    model = make(seed)
    optimizer = build(model.parameters())
    context.enable_data_parallel, context.zero_opt_level = saved
    train(model, optimizer, slice(None), steps, halves)
    return model, optimizer


def distance(model: Any, other: Any) -> float:
    return max(
        float((a - b).abs().max())
        for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def all_equal(dist: ModuleType, model: Any) -> None:
    """Assert that the parameters are equal to the bit on all ranks."""
    found: list[Any] = []
    dist.all_gather_object(found, [p.numpy().tobytes() for p in model.parameters()])
    assert all(one == found[0] for one in found)


BUILDS = {
    "sgd": lambda p: paddle.optimizer.SGD(0.1, parameters=p),
    "momentum": lambda p: paddle.optimizer.Momentum(0.1, parameters=p, weight_decay=0.01),
    "adamw": lambda p: paddle.optimizer.AdamW(0.01, parameters=p),
    "adam, clipped": lambda p: paddle.optimizer.Adam(
        0.01, parameters=p, grad_clip=paddle.nn.ClipGradByGlobalNorm(0.3)
    ),
    "lamb, clipped each": lambda p: paddle.optimizer.Lamb(
        0.01, parameters=p, grad_clip=paddle.nn.ClipGradByNorm(0.2)
    ),
    "groups": lambda p: paddle.optimizer.Adam(
        0.01,
        parameters=[
            {"params": p[:3], "learning_rate": 0.5},
            {"params": p[3:], "weight_decay": 0.01},
        ],
    ),
    "scheduler": lambda p: paddle.optimizer.SGD(
        paddle.optimizer.lr.StepDecay(0.1, step_size=1), parameters=p
    ),
}


@pytest.mark.parametrize("name", BUILDS)
def test_as_one_process(dist: ModuleType, level: int, rank: int, size: int, name: str) -> None:
    build = BUILDS[name]
    if rank:
        paddle.nn.Linear(1, 1)  # so Paddle gives this rank's later layers other names
    model = make(7 + rank)  # rank 0's parameters replace the others
    optimizer = build(model.parameters())
    train(model, optimizer, slice(rank, None, size), range(4), halves=2)
    wanted, _ = alone(7, build, range(4), halves=2)
    assert distance(model, wanted) < 2e-6
    all_equal(dist, model)


def test_states_are_sharded(dist: ModuleType, level: int, rank: int, size: int) -> None:
    model = make(1)
    optimizer = paddle.optimizer.Adam(0.01, parameters=model.parameters())
    train(model, optimizer, slice(rank, None, size), range(1))
    counts: list[Any] = []
    dist.all_gather_object(counts, len(optimizer._accumulators["moment1"]))
    assert sum(counts) == (6 if level else 6 * size)
    x, y = batch(5)
    loss = ((model(paddle.to_tensor(x[rank::size])) - paddle.to_tensor(y[rank::size])) ** 2).mean()
    loss.backward()
    held: list[Any] = []
    dist.all_gather_object(held, sum(p.grad is not None for p in model.parameters()))
    assert sum(held) == (6 if level == 2 else 6 * size)
    optimizer.step()
    all_equal(dist, model)


def test_a_spoilt_gradient_is_noticed(dist: ModuleType, level: int, rank: int, size: int) -> None:
    build = BUILDS["sgd"]
    model = make(7)
    optimizer = build(model.parameters())
    if rank == 0:
        model.parameters()[0].register_hook(lambda g: g * 1.01)
    train(model, optimizer, slice(rank, None, size), range(2))
    wanted, _ = alone(7, build, range(2))
    assert distance(model, wanted) > 1e-5


def words(sparse: bool) -> Any:
    """A table and a layer. Every rank's part of the batch uses only some rows of the table."""
    paddle.seed(5)
    return paddle.nn.Sequential(
        paddle.nn.Embedding(30, 4, sparse=sparse), paddle.nn.Flatten(), paddle.nn.Linear(8, 2)
    )


def test_sparse_gradients(dist: ModuleType, level: int, rank: int, size: int) -> None:
    """Sparse gradients are averaged as whole tables; level 2 refuses them."""
    model, wanted = words(True), words(False)
    optimizer = paddle.optimizer.SGD(0.5, parameters=model.parameters())
    context = paddlempi.get_context()
    context.enable_data_parallel, context.zero_opt_level = False, 0
    its = paddle.optimizer.SGD(0.5, parameters=wanted.parameters())
    for step in range(3):
        given = np.random.RandomState(step).randint(0, 30, [BATCH, 2])
        loss = (model(paddle.to_tensor(given[rank::size])) ** 2).mean()
        if level == 2:
            with pytest.raises(errors.UnsupportedError, match="is sparse: use level 1"):
                loss.backward()
            return
        loss.backward()
        (wanted(paddle.to_tensor(given)) ** 2).mean().backward()
        for one in (optimizer, its):
            one.step()
            one.clear_grad()
    assert distance(model, wanted) < 2e-6
    all_equal(dist, model)


def test_an_exception_in_backward(dist: ModuleType, level: int, rank: int, size: int) -> None:
    model = make(3)
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    train(model, optimizer, slice(rank, None, size), range(1))
    x = paddle.to_tensor(batch(0)[0][rank::size])
    loss = model(x).mean()
    handle = model[0].weight.register_hook(lambda g: 1 / 0 if rank == size - 1 else None)
    if rank == size - 1:
        with pytest.raises(BaseException, match="division by zero"):
            loss.backward()
    elif size > 1:
        with pytest.raises(errors.RefusedError, match=rf"\[{size - 1}\] refused"):
            loss.backward()
    handle.remove()
    model.clear_gradients()
    train(model, optimizer, slice(rank, None, size), range(2))
    all_equal(dist, model)


def test_an_unused_parameter(dist: ModuleType, level: int, rank: int, size: int) -> None:
    used, unused = make(1), make(2)
    optimizer = paddle.optimizer.SGD(0.1, parameters=used.parameters() + unused.parameters())
    before = [p.numpy() for p in unused.parameters()]
    train(used, optimizer, slice(rank, None, size), range(2))
    wanted, _ = alone(1, BUILDS["sgd"], range(2))
    assert distance(used, wanted) < 2e-6
    for parameter, value in zip(unused.parameters(), before, strict=True):
        assert (parameter.numpy() == value).all()


def test_different_models_are_named(dist: ModuleType, level: int, rank: int, size: int) -> None:
    if size < 2:
        return
    layer = paddle.nn.Linear(3, 4 if rank else 5)
    with pytest.raises(errors.MismatchError, match=r"parameters\[0\]"):
        paddle.optimizer.SGD(0.1, parameters=layer.parameters())
    x = paddle.ones([1])
    dist.all_reduce(x)
    assert x.tolist() == [size]


def test_auto_parallels_optimizer_is_refused(level: int, dist: ModuleType) -> None:
    inner = paddle.optimizer.AdamW(0.1, parameters=make(0).parameters())
    with pytest.raises(errors.ArgumentError, match="_ShardOptimizer is Paddle's own way"):
        dist.shard_optimizer(inner)


@pytest.mark.parametrize("where", ["update", "norm"])
def test_a_step_that_fails_on_one_rank(
    dist: ModuleType, level: int, rank: int, size: int, where: str
) -> None:
    """That rank raises its error, and the others RefusedError, which names it. All can go on."""
    if level == 0:
        return
    model = make(1)
    clip = paddle.nn.ClipGradByGlobalNorm(1.0) if where == "norm" else None
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters(), grad_clip=clip)
    part = slice(rank * BATCH // size, (rank + 1) * BATCH // size)
    train(model, optimizer, part, range(1))
    zero = optimizer._paddlempi_zero
    name = "_update_owned" if where == "update" else "_owned_square"
    whole = getattr(zero, name)

    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError("the learning rate")

    if rank == size - 1:
        setattr(zero, name, fail)
    with pytest.raises(ZeroDivisionError if rank == size - 1 else errors.RefusedError) as caught:
        train(model, optimizer, part, range(1, 2))
    if rank < size - 1:
        assert caught.value.ranks == (size - 1,)
    setattr(zero, name, whole)
    optimizer.clear_grad()
    train(model, optimizer, part, range(2, 3))
    weights = np.concatenate([p.numpy().ravel() for p in model.parameters()])
    other = weights.copy()
    paddlempi.broadcast(other, 0)
    assert (weights == other).all()
