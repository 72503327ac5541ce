"""DataParallel: parameters that a backward does not reach, on all ranks or on some ranks."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import dp
import numpy as np
import paddle
import pytest
from paddle import nn
from paddlempi.errors import MismatchError
from paddlempi.paddle import DataParallel

pytestmark = pytest.mark.usefixtures("dist")


class Branches(nn.Layer):
    """A common layer and two branches. The argument `way` of forward says which of them it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Linear(8, 8)
        self.left = nn.Linear(8, 4)
        self.right = nn.Linear(8, 4)

    def forward(self, x: Any, way: str) -> Any:
        x = self.common(x)
        outs = [getattr(self, name)(x) for name in way.split("+")]
        return (outs[0] if len(outs) == 1 else outs[0] + outs[1]).square().mean()


def test_differing_ways(rank: int, size: int) -> None:
    paddle.seed(rank)
    model = DataParallel(Branches(), find_unused_parameters=True, **dp.SMALL)
    alone = dp.twin(Branches, model)
    ways = [
        ["left", "right", "left+right", "right"],
        ["left+right"] * 4,
        ["right", "left", "left", "left"],
        ["left"] * 4,
        ["left+right", "left", "right", "left"],
    ]
    for zero in (True, False):
        mine = paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=model.parameters())
        its = paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=alone.parameters())
        for step, taken in enumerate(ways):
            whole = dp.batch(step, size)
            model(dp.part(whole, rank, size), taken[rank]).backward()
            for other in range(size):
                (alone(dp.part(whole, other, size), taken[other]) / size).backward()
            dp.agree(dp.gradients(model), dp.gradients(alone))
            for optimizer in (mine, its):
                optimizer.step()
                optimizer.clear_grad(set_to_zero=zero)
        dp.agree(dp.state(model), dp.state(alone))


def test_a_parameter_that_no_rank_uses_keeps_its_gradient(rank: int, size: int) -> None:
    model = DataParallel(Branches(), find_unused_parameters=True)
    x = dp.part(dp.batch(0, size), rank, size)
    for _ in range(2):
        model(x, "left").backward()
        assert model._layers.right.weight.grad is None
        model.clear_gradients()
    model(x, "right").backward()
    before = dp.gradients(model)["right.weight"]
    for _ in range(2):
        model(x, "left").backward()
        after = dp.gradients(model)
        np.testing.assert_allclose(after["right.weight"], before, rtol=1e-6)
    dp.agree(after, after)


def test_unused_after_local_backwards(rank: int, size: int) -> None:
    """Gradients gathered under no_sync count, even if the last backward did not reach them."""
    model = DataParallel(Branches(), find_unused_parameters=True, **dp.SMALL)
    alone = dp.twin(Branches, model)
    whole = dp.batch(0, size)
    with model.no_sync():
        model(dp.part(whole, rank, size), "right" if rank == 0 else "left").backward()
    model(dp.part(whole, rank, size), "left").backward()
    for other in range(size):
        x = dp.part(whole, other, size)
        (alone(x, "right" if other == 0 else "left") / size).backward()
        (alone(x, "left") / size).backward()
    dp.agree(dp.gradients(model), dp.gradients(alone))


@pytest.mark.parametrize("learnt", [False, True], ids=["first", "later"])
def test_a_way_of_its_own_is_an_error_everywhere(learnt: bool, rank: int, size: int) -> None:
    model = DataParallel(Branches(), **dp.SMALL)
    x = dp.part(dp.batch(0, size), rank, size)
    if learnt:
        model(x, "left+right").backward()
    with pytest.raises(MismatchError, match=r"'left\.weight' had no gradient .* \[1\]") as raised:
        model(x, "right" if rank == 1 else "left+right").backward()
    assert raised.value.ranks == (1,)
    model.clear_gradients()
    alone = dp.twin(Branches, model)  # and the model stays usable
    whole = dp.batch(1, size)
    model(dp.part(whole, rank, size), "left+right").backward()
    alone(paddle.to_tensor(whole), "left+right").backward()
    dp.agree(dp.gradients(model), dp.gradients(alone))


def test_what_no_rank_uses_is_accepted(rank: int, size: int) -> None:
    """Accepted without find_unused_parameters, as in Paddle. Only rank 0 warns, and only once."""
    model = DataParallel(Branches(), **dp.SMALL)
    alone = dp.twin(Branches, model)
    mine = paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=model.parameters())
    its = paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=alone.parameters())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step, way in enumerate(["left", "left", "right", "left+right", "left", "right"]):
            whole = dp.batch(step, size)
            model(dp.part(whole, rank, size), way).backward()
            alone(paddle.to_tensor(whole), way).backward()
            dp.agree(dp.gradients(model), dp.gradients(alone))
            for optimizer in (mine, its):
                optimizer.step()
                optimizer.clear_grad(set_to_zero=False)
    dp.agree(dp.state(model), dp.state(alone))
    told = [str(one.message) for one in seen if "no rank's backward" in str(one.message)]
    assert len(told) == (rank == 0), told
    assert all("'right.weight' (nor 1 others): this step does not train it" in one for one in told)


def test_some_after_all_is_an_error(rank: int, size: int) -> None:
    """A parameter that no rank used is expected to stay unused. If one rank uses it, all raise."""
    model = DataParallel(Branches(), **dp.SMALL)
    x = dp.part(dp.batch(0, size), rank, size)
    for _ in range(2):
        model(x, "left").backward()
        model.clear_gradients()
    lacking = [one for one in range(size) if one != 1]
    with pytest.raises(MismatchError, match=r"'right\.weight' had no gradient") as raised:
        model(x, "left+right" if rank == 1 else "left").backward()
    assert raised.value.ranks == tuple(lacking)
    model.clear_gradients()
    alone = dp.twin(Branches, model)
    whole = dp.batch(1, size)
    model(dp.part(whole, rank, size), "left+right").backward()
    alone(paddle.to_tensor(whole), "left+right").backward()
    dp.agree(dp.gradients(model), dp.gradients(alone))


def test_frozen_on_some_ranks_only(rank: int, size: int) -> None:
    model = DataParallel(Branches(), **dp.SMALL)
    if rank == 1:
        model._layers.left.bias.stop_gradient = True
    with pytest.raises(MismatchError, match=r"'left\.bias' .* \[1\], where it is frozen"):
        model(dp.part(dp.batch(0, size), rank, size), "left+right").backward()


def test_a_parameter_taken_out_of_the_model(rank: int, size: int) -> None:
    model = DataParallel(Branches(), **dp.SMALL)
    x = dp.part(dp.batch(0, size), rank, size)
    model(x, "left+right").backward()
    model._layers.right = nn.Linear(8, 4)  # the old layer's parameters are in no model
    expected = r"'right\.weight' \(nor 1 others\): .* wrap the model again"
    told = pytest.warns(UserWarning, match=expected) if rank == 0 else contextlib.nullcontext()
    with told:
        model(x, "left+right").backward()


def test_a_spoilt_gradient_is_noticed(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = DataParallel(Branches(), find_unused_parameters=True)
    alone = dp.twin(Branches, model)
    dp.spoil(monkeypatch, rank)
    whole = dp.batch(0, size)
    model(dp.part(whole, rank, size), "left").backward()
    alone(paddle.to_tensor(whole), "left").backward()
    assert dp.noticed(lambda: dp.agree(dp.gradients(model), dp.gradients(alone)))
