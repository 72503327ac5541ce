"""DataParallel: several backwards in a step, no_sync, recompute."""

from __future__ import annotations

from typing import Any

import dp
import numpy as np
import paddle
import pytest
from paddle import nn
from paddle.distributed.fleet.utils import recompute
from paddlempi.errors import ArgumentError
from paddlempi.paddle import DataParallel

pytestmark = pytest.mark.usefixtures("dist")


def pair(size: int, rank: int, build: Any = dp.Net) -> tuple[Any, Any]:
    paddle.seed(rank)
    model = DataParallel(build(), **dp.SMALL)
    alone = dp.twin(build, model)
    # A first backward teaches the model the order of gradients. Later backwards are all alike.
    dp.square(model, dp.part(dp.batch(99, size), rank, size)).backward()
    model.clear_gradients()
    return model, alone


def test_no_sync(rank: int, size: int) -> None:
    model, alone = pair(size, rank)
    mine = paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=model.parameters())
    its = paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=alone.parameters())
    for step in range(3):
        wholes = [dp.batch(10 * step + k, size) for k in range(3)]
        with model.no_sync():
            for whole in wholes[:-1]:
                dp.square(model, dp.part(whole, rank, size)).backward()
        local = dp.gradients(model)
        x = dp.part(wholes[0], rank, size)
        other = dp.twin(dp.Net, model)
        dp.square(other, x).backward()
        dp.square(other, dp.part(wholes[1], rank, size)).backward()
        for name, value in dp.gradients(other).items():  # only this rank's gradients
            np.testing.assert_allclose(local[name], value, rtol=1e-5, atol=1e-6)
        dp.square(model, dp.part(wholes[-1], rank, size)).backward()
        for whole in wholes:
            dp.square(alone, paddle.to_tensor(whole)).backward()
        dp.agree(dp.gradients(model), dp.gradients(alone))
        for optimizer in (mine, its):
            optimizer.step()
            optimizer.clear_grad()
    dp.agree(dp.state(model), dp.state(alone))


def test_the_forward_decides(rank: int, size: int) -> None:
    """As in Paddle: the place of the forward decides, not the place of the backward."""
    model, alone = pair(size, rank)
    whole = dp.batch(0, size)
    with model.no_sync():
        loss = dp.square(model, dp.part(whole, rank, size))
    loss.backward()
    dp.square(alone, dp.part(whole, rank, size)).backward()
    for name, value in dp.gradients(alone).items():
        np.testing.assert_allclose(dp.gradients(model)[name], value, rtol=1e-5, atol=1e-6)
    model.clear_gradients()
    alone.clear_gradients()
    loss = dp.square(model, dp.part(whole, rank, size))
    with model.no_sync():
        loss.backward()
    dp.square(alone, paddle.to_tensor(whole)).backward()
    dp.agree(dp.gradients(model), dp.gradients(alone))


def test_synchronized_backwards_accumulate(rank: int, size: int) -> None:
    model, alone = pair(size, rank)
    for step in range(3):  # without clear_grad, so gradients add up in the bucket
        whole = dp.batch(step, size)
        dp.square(model, dp.part(whole, rank, size)).backward()
        dp.square(alone, paddle.to_tensor(whole)).backward()
        dp.agree(dp.gradients(model), dp.gradients(alone))


def test_two_backwards_of_one_forward(rank: int, size: int) -> None:
    model, alone = pair(size, rank)
    whole = dp.batch(0, size)
    for net, x in ((model, dp.part(whole, rank, size)), (alone, paddle.to_tensor(whole))):
        out = net(x)
        (out**2).mean().backward(retain_graph=True)
        out.mean().backward()
    dp.agree(dp.gradients(model), dp.gradients(alone))


def test_two_forwards_of_one_backward(rank: int, size: int) -> None:
    model, alone = pair(size, rank)
    one, two = dp.batch(0, size), dp.batch(1, size)
    (
        dp.square(model, dp.part(one, rank, size)) + dp.square(model, dp.part(two, rank, size))
    ).backward()
    (dp.square(alone, paddle.to_tensor(one)) + dp.square(alone, paddle.to_tensor(two))).backward()
    dp.agree(dp.gradients(model), dp.gradients(alone))


def test_forwards_without_backward(rank: int, size: int) -> None:
    model, alone = pair(size, rank)
    whole = dp.batch(0, size)
    x = dp.part(whole, rank, size)
    loss = dp.square(model, x)
    with paddle.no_grad():
        model(x)
    if rank == 0:  # evaluation on one rank: its forward does not communicate
        model.eval()
        model(x)
        model.train()
    loss.backward()
    dp.square(alone, paddle.to_tensor(whole)).backward()
    dp.agree(dp.gradients(model), dp.gradients(alone))


def test_paddle_grad_stays_local(rank: int, size: int) -> None:
    model, alone = pair(size, rank)
    whole = dp.batch(0, size)
    x = dp.part(whole, rank, size)
    loss = dp.square(model, x)
    weights = [model._layers.last.weight]
    if rank == 0:
        (value,) = paddle.grad([loss], weights, retain_graph=True)
        assert abs(value.numpy()).sum() > 0
    loss.backward()
    dp.square(alone, paddle.to_tensor(whole)).backward()
    dp.agree(dp.gradients(model), dp.gradients(alone))


def test_two_models_in_one_backward(rank: int, size: int) -> None:
    first, first_alone = pair(size, rank)
    second, second_alone = pair(size, rank)
    whole = dp.batch(0, size, features=8)
    x, all_of_it = dp.part(whole, rank, size), paddle.to_tensor(whole)

    def both(a: Any, b: Any, x: Any) -> Any:
        y = a(x)
        return (b(paddle.concat([y, y], 1)) ** 2).mean()

    for _ in range(2):
        both(first, second, x).backward()
        both(first_alone, second_alone, all_of_it).backward()
        dp.agree(dp.gradients(first), dp.gradients(first_alone))
        dp.agree(dp.gradients(second), dp.gradients(second_alone))
        # A step of the first model alone. Its gradient passes through the second model.
        second_before = dp.gradients(second)
        for parameter in second.parameters():
            parameter.stop_gradient = True
        first.clear_gradients()
        first_alone.clear_gradients()
        both(first, second, x).backward()
        both(first_alone, second_alone, all_of_it).backward()
        for parameter in second.parameters():
            parameter.stop_gradient = False
        dp.agree(dp.gradients(first), dp.gradients(first_alone))
        dp.agree(dp.gradients(second), second_before)
        for net in (first, second, first_alone, second_alone):
            net.clear_gradients()


class Recomputed(nn.Layer):
    """Layers whose inner values are computed again in backward. `twice` uses one of them twice."""

    def __init__(self, reentrant: bool, twice: bool) -> None:
        super().__init__()
        self.reentrant, self.twice = reentrant, twice
        self.first = nn.Linear(8, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.last = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        x = recompute(self.block, x, use_reentrant=self.reentrant)
        if self.twice:
            x = recompute(self.block, x, use_reentrant=self.reentrant)
        return self.last(x)


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])
def test_recompute(reentrant: bool, twice: bool, rank: int, size: int) -> None:
    paddle.seed(rank)
    model = DataParallel(Recomputed(reentrant, twice), **dp.SMALL)
    alone = dp.twin(lambda: Recomputed(reentrant, twice), model)
    for step in range(3):
        whole = dp.batch(step, size)
        dp.square(model, dp.part(whole, rank, size)).backward()
        dp.square(alone, paddle.to_tensor(whole)).backward()
        dp.agree(dp.gradients(model), dp.gradients(alone))
        model.clear_gradients()
        alone.clear_gradients()
    if reentrant:
        # A layer that is used twice gets its gradient twice. Only the second one is complete.
        index = model._reducer._names.index("block.0.weight")
        assert model._reducer._usage.times[index] == 1 + twice


def test_a_layer_recomputed_once_more_than_at_first(rank: int, size: int) -> None:
    model, _ = pair(size, rank, lambda: Recomputed(True, False))
    model._layers.twice = True
    x = dp.part(dp.batch(0, size), rank, size)
    with pytest.raises(ArgumentError, match=r"'block\.0\.\w+' came 2 times .*, and 1 times in"):
        dp.square(model, x).backward()
    model._layers.twice = False
    model.clear_gradients()
    dp.square(model, x).backward()  # the model is still usable


def test_a_spoilt_gradient_is_noticed(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, alone = pair(size, rank)
    dp.spoil(monkeypatch, rank)
    wholes = [dp.batch(k, size) for k in range(2)]
    with model.no_sync():
        dp.square(model, dp.part(wholes[0], rank, size)).backward()
    dp.square(model, dp.part(wholes[1], rank, size)).backward()
    for whole in wholes:
        dp.square(alone, paddle.to_tensor(whole)).backward()
    assert dp.noticed(lambda: dp.agree(dp.gradients(model), dp.gradients(alone)))
