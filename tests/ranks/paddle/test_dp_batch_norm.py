"""SyncBatchNorm over MPI computes what BatchNorm of one process computes on the global batch."""

from __future__ import annotations

from typing import Any

import dp
import numpy as np
import paddle
import pytest
from paddle import nn
from paddlempi.paddle import DataParallel, batch_norm

pytestmark = pytest.mark.usefixtures("dist")

SHAPES = {"NC": (5, 3), "NCL": (4, 3, 6), "NLC": (4, 6, 3), "NCHW": (2, 3, 4, 5)}


def data(step: int, size: int, shape: tuple[int, ...]) -> Any:
    rng = np.random.default_rng(step)
    return (rng.standard_normal((size * shape[0], *shape[1:])) * 3 + 50).astype("float32")


class Normed(nn.Layer):
    """A norm over 3 channels. Its input is scaled by a parameter, so it has a gradient."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.before = self.create_parameter([1], default_initializer=nn.initializer.Constant(1.5))
        self.norm = norm

    def forward(self, x: Any) -> Any:
        return paddle.sin(self.norm(x * self.before))


def plain(form: str) -> Any:
    kind = {2: nn.BatchNorm1D, 3: nn.BatchNorm1D, 4: nn.BatchNorm2D}[len(form)]
    return kind(3, data_format=form, momentum=0.8)


@pytest.mark.parametrize("form", SHAPES)
def test_training(form: str, rank: int, size: int) -> None:
    shape = SHAPES[form]
    model = DataParallel(Normed(nn.SyncBatchNorm(3, momentum=0.8, data_format=form)))
    alone = dp.twin(lambda: Normed(plain(form)), model)
    mine = paddle.optimizer.SGD(0.2, parameters=model.parameters())
    its = paddle.optimizer.SGD(0.2, parameters=alone.parameters())
    for step in range(3):
        whole = data(step, size, shape)
        weights = np.random.default_rng(77).standard_normal(whole.shape).astype("float32")
        (model(dp.part(whole, rank, size)) * dp.part(weights, rank, size)).mean().backward()
        (alone(paddle.to_tensor(whole)) * paddle.to_tensor(weights)).mean().backward()
        dp.agree(dp.gradients(model), dp.gradients(alone), 1e-4)
        for optimizer in (mine, its):
            optimizer.step()
            optimizer.clear_grad()
    dp.agree(dp.state(model), dp.state(alone), 1e-4)
    model.eval()
    alone.eval()
    x = paddle.to_tensor(data(9, 1, shape))
    if rank == 0:  # in eval mode a forward does not communicate
        np.testing.assert_allclose(model(x).numpy(), alone(x).numpy(), rtol=1e-3, atol=1e-4)


def test_converted_frozen_and_uneven(rank: int, size: int) -> None:
    """Ranks with different numbers of rows; no affine parameters; input without a gradient."""
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(
        nn.BatchNorm1D(3, weight_attr=False, bias_attr=False)
    )
    assert isinstance(norm, nn.SyncBatchNorm)
    parts = [data(r, 1, (r + 2, 3)) for r in range(size)]
    whole = np.concatenate(parts)
    out = norm(paddle.to_tensor(parts[rank]))
    expected = (whole - whole.mean(0)) / np.sqrt(whole.var(0) + 1e-5)
    start = sum(len(p) for p in parts[:rank])
    np.testing.assert_allclose(
        out.numpy(), expected[start : start + rank + 2], rtol=1e-3, atol=1e-3
    )
    x = paddle.to_tensor(parts[rank])
    x.stop_gradient = False
    (norm(x) ** 2).sum().backward()  # constant, so the gradient is 0
    np.testing.assert_allclose(x.grad.numpy(), np.zeros(x.shape), atol=1e-3)


def test_a_spoilt_statistic_is_noticed(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = DataParallel(Normed(nn.SyncBatchNorm(3)))
    alone = dp.twin(lambda: Normed(nn.BatchNorm1D(3)), model)
    gather = batch_norm.all_gather_into_tensor

    def wrong(everyone: Any, mine: Any) -> None:
        gather(everyone, mine + (1.0 if rank == 0 else 0.0))

    monkeypatch.setattr(batch_norm, "all_gather_into_tensor", wrong)
    whole = data(0, size, (4, 3))
    dp.square(model, dp.part(whole, rank, size)).backward()
    dp.square(alone, paddle.to_tensor(whole)).backward()
    assert dp.noticed(lambda: dp.agree(dp.gradients(model), dp.gradients(alone)))
