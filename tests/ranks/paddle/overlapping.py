"""Helpers of the tests of overlap_next_forward: models with it and without, and their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dp
import numpy as np
import paddle
from paddle import nn
from paddlempi.paddle import DataParallel


def decayed(kind: str, **more: Any) -> Callable[[Any], Any]:
    return lambda p: getattr(paddle.optimizer, kind)(0.01, parameters=p, weight_decay=0.1, **more)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": decayed("SGD"),
    "Momentum, by value": decayed("Momentum", grad_clip=nn.ClipGradByValue(1e-3)),
    "Adam, by norm": decayed("Adam", grad_clip=nn.ClipGradByNorm(1e-2)),
    "AdamW": decayed("AdamW", apply_decay_param_fun=lambda name: "w_0" in name),
    "Adamax": decayed("Adamax"),
    "Adagrad": decayed("Adagrad"),
    "Adadelta": decayed("Adadelta"),
    "RMSProp": decayed("RMSProp", momentum=0.5),
    "NAdam": decayed("NAdam"),
    "RAdam": decayed("RAdam"),
    "Lamb": lambda p: paddle.optimizer.Lamb(0.01, 0.1, parameters=p),
    "Rprop": lambda p: paddle.optimizer.Rprop(0.01, parameters=p),
    "ASGD": lambda p: paddle.optimizer.ASGD(0.01, 3, parameters=p),
    "scheduler": lambda p: paddle.optimizer.Adam(
        paddle.optimizer.lr.ExponentialDecay(0.1, 0.5), parameters=p
    ),
    "no decay": lambda p: paddle.optimizer.SGD(paddle.optimizer.lr.StepDecay(0.1, 1), parameters=p),
    "groups": lambda p: paddle.optimizer.AdamW(
        0.01,
        parameters=[
            {"params": p[:3], "learning_rate": 0.5, "beta1": 0.8},
            {"params": p[3:], "weight_decay": 0.2, "grad_clip": nn.ClipGradByValue(1e-3)},
        ],
    ),
}


def overlapping(net: Any, **more: Any) -> Any:
    return DataParallel(net, overlap_next_forward=True, **{**dp.SMALL, **more})


def pair(build: Callable[[], Any] = dp.Net, **more: Any) -> tuple[Any, Any]:
    """Return the same model twice: with the overlap and without."""
    paddle.seed(3)
    model = overlapping(build(), **more)
    return model, DataParallel(dp.twin(build, model), **{**dp.SMALL, **more})


def same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert value.tobytes() == other[name].tobytes(), name


def under_way(model: Any) -> int:
    """Return the number of buckets whose steps a forward must still make."""
    return sum(pending.has_step for pending in model._reducer._overlap._pending)


def values(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's states in order, because Paddle's names for them contain a counter."""
    found = optimizer.state_dict()
    found.pop("LR_Scheduler", None)
    return {str(number): np.array(t.numpy()) for number, t in enumerate(found.values())}


def step(model: Any, optimizer: Any, x: Any, loss: dp.Loss = dp.square, zero: bool = True) -> None:
    loss(model, x).backward()
    optimizer.step()
    optimizer.clear_grad(set_to_zero=zero)
    if isinstance(optimizer._learning_rate, paddle.optimizer.lr.LRScheduler):
        optimizer._learning_rate.step()


def trained(rank: int, size: int) -> tuple[Any, Any, Any, Any]:
    """Return two models and their optimizers. The first model has a step under way."""
    model, other = pair()
    mine, its = (OPTIMIZERS["AdamW"](net.parameters()) for net in (model, other))
    for net, optimizer in ((other, its), (model, mine)):
        for k in range(3):
            step(net, optimizer, dp.part(dp.batch(k, size), rank, size))
    assert under_way(model) == len(model._reducer._buckets)
    return model, other, mine, its


class Chain(nn.Layer):
    """Layers of one parameter each. With ``EACH`` every parameter has a bucket of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.LayerList([nn.Linear(8, 8, bias_attr=False) for _ in range(4)])

    def forward(self, x: Any) -> Any:
        for layer in self.steps:
            x = layer(x)
        return x


class Branches(nn.Layer):
    """Every step uses one of two layers. A third is never used, and a fourth is frozen."""

    used = 0

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.never = (nn.Linear(8, 8) for _ in range(3))
        self.frozen = nn.Linear(8, 8)
        for parameter in self.frozen.parameters():
            parameter.stop_gradient = True

    def forward(self, x: Any) -> Any:
        return (self.one, self.two)[Branches.used](self.frozen(x))
