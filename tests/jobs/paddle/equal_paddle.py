"""The program of every rank of test_ps_equal_paddle.py, with layers of Paddle in dynamic mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddlempi
import ps_equal
from paddle import optimizer as optimizers
from paddlempi import ps
from ps_equal import DIM, ROLES, ROWS, STEPS, WIDTH, compare

RATE = 1e-3
LARGE = 100.0  # so that gradients are far above an epsilon of 1e-8


class Net(paddle.nn.Layer):
    """A table, and weights of several blocks and of one."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words = paddle.nn.Embedding(ROWS, DIM, sparse=sparse)
        self.up = paddle.nn.Linear(DIM, WIDTH)
        self.down = paddle.nn.Linear(WIDTH, 1)
        self.words.weight.set_value(0.1 * self.words.weight)  # so that 1e-6 is several bits

    def forward(self, ids: Any) -> Any:
        return self.down(paddle.tanh(self.up(self.words(ids).mean(1))))


def backward(model: Any, step: int, trainer: int) -> Any:
    """Add up gradients; return the ids of the batch."""
    ids, target = ps_equal.batch(step, trainer)
    lost = (model(paddle.to_tensor(ids)) - paddle.to_tensor(target)).square().mean()
    (LARGE * lost).backward()
    return ids


def sgd(parameters: Any) -> Any:
    return optimizers.SGD(RATE, parameters)


def adagrad(parameters: Any) -> Any:
    return optimizers.Adagrad(RATE, parameters=parameters)


def adam(parameters: Any) -> Any:
    return optimizers.Adam(RATE, parameters=parameters, lazy_mode=True)


def momentum(parameters: Any) -> Any:
    return optimizers.Momentum(RATE, parameters=parameters, use_nesterov=True)


def adamw(parameters: Any) -> Any:
    return optimizers.AdamW(RATE, parameters=parameters)


# What rows have, and what the rest has.
KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sgd": (sgd, sgd),
    "momentum": (adagrad, momentum),
    "adagrad": (adam, adagrad),
    "adam": (adam, adam),
    "adamw": (sgd, adamw),
}


def split(model: Any) -> tuple[list[Any], list[Any]]:
    """The rows, and the other parameters."""
    rest = [p for name, p in model.named_parameters() if name != "words.weight"]
    return [model.words.weight], rest


def main() -> None:
    """Train with every optimizer, and compare."""
    roles: str | None = ROLES
    for name, (of_rows, of_rest) in KINDS.items():
        paddle.seed(5)
        model = Net(sparse=True)
        alone = Net(sparse=name not in ("sgd", "adagrad", "adam"))
        alone.set_state_dict(model.state_dict())
        rows, rest = split(model)
        given = [of_rows(rows), of_rest(rest)]
        plan = ps.transpile(model, given, roles, average=False, name=name)
        roles = None  # a server serves in the first call, and ends in it
        me = ps.trainers().index(paddlempi.get_rank())
        for step in range(STEPS):
            backward(plan.model, step, me)
            for one in plan.optimizer:
                one.step()
                one.clear_grad()
        ps.barrier()
        if me == 0:
            if name == "sgd":
                by_hand(alone)
            else:
                of_paddle(alone, of_rows, of_rest)
            states = (plan.state_dict(), alone.state_dict())
            found, wanted = ({k: v.numpy() for k, v in state.items()} for state in states)
            compare(name, found, wanted, bits=name == "sgd")
        ps.barrier()


def of_paddle(model: Any, of_rows: Any, of_rest: Any) -> None:
    """One process runs all batches one after another, with Paddle's own optimizers.

    But not with its Adam of rows: Paddle 3.3.1 takes t + 1 for t there.
    """
    rows, rest = split(model)
    own = ps_equal.LazyAdam(RATE) if of_rows is adam else None
    used = [of_rest(rest)] + ([] if own else [of_rows(rows)])
    for step in range(STEPS):
        ids = [backward(model, step, trainer) for trainer in range(2)]
        if own:
            weight = model.words.weight
            touched = np.unique(np.concatenate([one.reshape(-1) for one in ids]))
            weight.set_value(own.update(weight.numpy(), touched, weight.grad.numpy()))
            weight.clear_gradient()
        for one in used:
            one.step()
            one.clear_grad()


def by_hand(model: Any) -> None:
    """One process, which adds up gradients in the order of ranks: w - r g in float32."""
    for step in range(STEPS):
        parts = []
        for trainer in range(2):
            backward(model, step, trainer)
            parts.append([p.grad.numpy().copy() for p in model.parameters()])
            model.clear_gradients()
        for parameter, first, second in zip(model.parameters(), *parts, strict=True):
            parameter.set_value(ps_equal.sgd(parameter.numpy(), first + second, RATE))
