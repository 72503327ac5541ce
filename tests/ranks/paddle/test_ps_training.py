"""Training with tables on servers is training in one process, for Paddle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
from paddlempi import ps
from ps_roles import begin, layouts

__all__ = ["begin"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

ROWS, DIM, STEPS, EACH = 12, 4, 5, 6


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


def batch(step: int, trainers: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and targets of all trainers, EACH for every one."""
    random = np.random.default_rng(step)
    ids = random.integers(0, ROWS, (EACH * trainers, 3))
    return ids, random.random((EACH * trainers, 1), np.float32)


def loss_of(model: Any, layer: Any, ids: np.ndarray, target: np.ndarray) -> Any:
    out = model(layer(paddle.to_tensor(ids)).sum(1))
    return (out - paddle.to_tensor(target)).square().mean()


@pytest.mark.parametrize("way", ["all_reduce", "server"])
def test_it_is_like_one_process(
    begin: Callable[..., bool], rank: int, roles: str, way: str
) -> None:
    paddle.seed(rank)  # the parameters of the first trainer count
    if not begin(roles):
        return
    trainers = len(ps.trainers())
    me = ps.trainers().index(rank)
    layer = ps.SparseEmbedding(ROWS, DIM, 3, name="rows", optimizer=ps.SGD(0.2), seed=1)
    model = paddle.nn.Sequential(paddle.nn.Linear(DIM, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 1))
    optimizer = ps.DistributedOptimizer(
        paddle.optimizer.Momentum(0.05, parameters=model.parameters()), dense=way
    )
    same = paddle.nn.Sequential(paddle.nn.Linear(DIM, 8), paddle.nn.Tanh(), paddle.nn.Linear(8, 1))
    same.set_state_dict(model.state_dict())
    same_rows = paddle.nn.Embedding(ROWS, DIM, 3)
    same_rows.weight.set_value(layer(paddle.arange(ROWS)))
    ps.barrier("read")
    others = [
        paddle.optimizer.Momentum(0.05, parameters=same.parameters()),
        paddle.optimizer.SGD(0.2, same_rows.parameters()),
    ]
    mine = slice(me * EACH, (me + 1) * EACH)
    for step in range(STEPS):
        ids, target = batch(step, trainers)
        loss_of(model, layer, ids[mine], target[mine]).backward()
        optimizer.step()
        optimizer.clear_grad()
        loss_of(same, same_rows, ids, target).backward()
        for other in others:
            other.step()
            other.clear_grad()
    rows = layer(paddle.arange(ROWS)).numpy()
    np.testing.assert_allclose(rows, same_rows.weight.numpy(), 1e-4, 1e-5)
    for here, there in zip(model.parameters(), same.parameters(), strict=True):
        np.testing.assert_allclose(here.numpy(), there.numpy(), 1e-4, 1e-5)
