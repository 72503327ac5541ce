"""DataParallel with overlap_next_forward: what it refuses, and errors in the middle of a step."""

from __future__ import annotations

from typing import Any

import dp
import paddle
import paddlempi
import pytest
from overlapping import OPTIMIZERS, Branches, Chain, overlapping, pair, same_bits, step, trained
from paddle import nn
from paddle.amp.grad_scaler import OptimizerState
from paddlempi.errors import ArgumentError, MismatchError, RefusedError

pytestmark = pytest.mark.usefixtures("dist")


# Refusals.


def test_refused_optimizers(rank: int) -> None:
    model = overlapping(dp.Net())
    parameters = model.parameters()

    class Own(paddle.optimizer.SGD):
        pass

    clip = nn.ClipGradByGlobalNorm(1.0)
    for text, make in {
        "grad_clip=ClipGradByGlobalNorm needs all": lambda: paddle.optimizer.SGD(
            0.1, parameters=parameters, grad_clip=clip
        ),
        "grad_clip=ClipGradByGlobalNorm ": lambda: paddle.optimizer.Adam(
            0.1, parameters=[{"params": parameters, "grad_clip": clip}]
        ),
        "use_multi_tensor may update several": lambda: paddle.optimizer.Adam(
            0.1, parameters=parameters, use_multi_tensor=True
        ),
        "optimizer .*Own may update": lambda: Own(0.1, parameters=parameters),
        "optimizer LBFGS may update": lambda: paddle.optimizer.LBFGS(0.1, parameters=parameters),
    }.items():
        with pytest.raises(ArgumentError, match=f"overlap_next_forward: {text}"):
            make()
    optimizer = paddle.optimizer.SGD(0.1, parameters=parameters)
    optimizer._grad_clip = clip
    with pytest.raises(ArgumentError, match="grad_clip=ClipGradByGlobalNorm"):
        optimizer.step()
    net = dp.Net()
    late = paddle.optimizer.SGD(0.1, parameters=net.parameters(), grad_clip=clip)
    with pytest.raises(ArgumentError, match="grad_clip=ClipGradByGlobalNorm"):
        overlapping(net)  # an optimizer that is older than the wrapper
    del late


def test_a_grad_scaler_is_refused(rank: int, size: int) -> None:
    model = overlapping(dp.Net())
    optimizer = paddle.optimizer.SGD(0.1, parameters=model.parameters())
    with pytest.warns(UserWarning, match="only be enabled on"):
        scaler = paddle.amp.GradScaler()
    x = dp.part(dp.batch(0, size), rank, size)
    scaler.scale(dp.square(model, x)).backward()
    scaler.step(optimizer)  # a scaler that does nothing, as on the CPU, is accepted
    scaler._enable = True
    scaler._found_inf = paddle.to_tensor([False])
    scaler._optimizer_states = {id(optimizer): {"state": OptimizerState.INIT}}
    scaler._unscale = lambda optimizer: None
    with pytest.raises(ArgumentError, match="GradScaler looks at all gradients"):
        scaler.step(optimizer)


def test_zero_is_refused(rank: int) -> None:
    model = overlapping(dp.Net())
    context = paddlempi.get_context()
    context.zero_opt_level = 1
    try:
        with pytest.raises(ArgumentError, match="zero_opt_level shards"):
            paddle.optimizer.SGD(0.1, parameters=model.parameters())
    finally:
        context.zero_opt_level = 0


# Errors.


def test_a_parameter_without_gradient(rank: int, size: int) -> None:
    """The error comes before the next forward, and nothing was updated."""
    Branches.used = 0
    model = overlapping(Branches(), find_unused_parameters=False)
    for layer in (model._layers.never, model._layers.two):
        for parameter in layer.parameters():
            parameter.stop_gradient = True
    optimizer = OPTIMIZERS["SGD"](model.parameters())
    x = dp.part(dp.batch(0, size), rank, size)
    step(model, optimizer, x)
    for parameter in model._layers.two.parameters():
        parameter.stop_gradient = False
    before = dp.state(model)
    Branches.used = int(rank == 1)
    step(model, optimizer, x)
    with pytest.raises(MismatchError, match=r"'(one|two)\.\w+' had no gradient"):
        model(x)
    same_bits(dp.state(model), before)
    Branches.used = 0
    model.clear_gradients()
    step(model, optimizer, x)
    after = dp.state(model)
    dp.agree(after, after)
    assert any((after[name] != before[name]).any() for name in after)


def test_backward_fails_on_a_rank(rank: int, size: int) -> None:
    model = overlapping(dp.Net())
    optimizer = OPTIMIZERS["AdamW"](model.parameters())
    x = dp.part(dp.batch(0, size), rank, size)
    for _ in range(2):
        step(model, optimizer, x)
    before = dp.state(model)
    loss = dp.square(model, x)
    fails = rank == 1
    handle = model._layers.middle.weight.register_hook(lambda g: 1 / 0 if fails else None)
    if rank == 1:
        with pytest.raises(BaseException, match="division by zero"):
            loss.backward()
    else:
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        with pytest.raises(RefusedError, match=r"\[1\]"):
            model(x)
    handle.remove()
    same_bits(dp.state(model), before)  # no rank has made the step
    model.clear_gradients()
    for _ in range(2):
        step(model, optimizer, x)
    after = dp.state(model)
    dp.agree(after, after)


def test_a_spoilt_gradient_is_noticed(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, other = pair()
    mine, its = (OPTIMIZERS["SGD"](net.parameters()) for net in (model, other))
    x = dp.part(dp.batch(0, size), rank, size)
    for k in range(2):
        step(other, its, x)
        if k:
            dp.spoil(monkeypatch, rank)
        step(model, mine, x)
    assert dp.noticed(lambda: same_bits(dp.state(model), dp.state(other)))


def test_the_model_may_go_before_its_step(rank: int, size: int) -> None:
    model, other, _, _ = trained(rank, size)
    net = model._layers
    del model
    same_bits(dp.state(net), dp.state(other))


class Headless(Chain):
    """The caller runs its last layer."""

    def forward(self, x: Any) -> Any:
        for layer in self.steps[:-1]:
            x = layer(x)
        return x


def test_a_layer_that_runs_after_the_model(rank: int, size: int) -> None:
    model, other = pair(Headless)
    for net in (model, other):
        optimizer = OPTIMIZERS["SGD"](net.parameters())
        for k in range(3):
            x = dp.part(dp.batch(k, size), rank, size)
            step(lambda x, net=net: net._layers.steps[-1](net(x)), optimizer, x)
    same_bits(dp.state(model), dp.state(other))
