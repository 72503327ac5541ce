"""Static programs of Paddle on trainers and servers have the bits of one process, with plain SGD.

One process runs the trainers' batches one after another in the order of ranks, each with a program
and a scope of its own, in which batch_norm has its statistics. It adds their gradients, and makes
the step with NumPy: ``w - r g`` in float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddlempi import ps
from paddlempi.testing import World
from ps_roles import BOTH

pytestmark = pytest.mark.mpi(ranks=[2])

ROWS, DIM, STEPS, EACH = 12, 4, 5, 6
NAMES = ("words", "up", "scale", "shift", "down")
STATISTICS = ("mean", "variance")
lr = paddle.optimizer.lr


@contextlib.contextmanager
def apart() -> Iterator[None]:
    scope = paddle.static.scope_guard(paddle.static.Scope())
    with paddle.base.unique_name.guard(), scope:
        yield


@pytest.fixture(autouse=True)
def legacy(mpi_world: World) -> Iterator[None]:
    """Programs of the legacy IR, with names and a scope of their own."""
    with paddle.pir_utils.OldIrGuard(), apart():
        yield
    ps.shutdown()


def batch(step: int, trainer: int) -> dict[str, Any]:
    random = np.random.default_rng(1000 * step + trainer)
    ids = random.integers(0, ROWS, (EACH, 3))
    return {"ids": ids, "target": random.random((EACH, 1), np.float32)}


def loss_of(sparse: bool) -> Any:
    """A table, dense layers, batch_norm, and a parameter with half of the learning rate."""
    named = paddle.ParamAttr
    ids = paddle.static.data("ids", [None, 3], "int64")
    target = paddle.static.data("target", [None, 1], "float32")
    shape, attr = (ROWS, DIM), named("words")
    rows = paddle.static.nn.embedding(ids, shape, is_sparse=sparse, param_attr=attr)
    hidden = paddle.static.nn.fc(paddle.mean(rows, 1), 8, weight_attr=named("up"), bias_attr=False)
    norm = {"param_attr": named("scale"), "bias_attr": named("shift")}
    norm |= dict(zip(("moving_mean_name", "moving_variance_name"), STATISTICS, strict=True))
    hidden = paddle.static.nn.batch_norm(hidden, act="relu", **norm)
    slow = named("down", learning_rate=0.5)
    return F.mse_loss(paddle.static.nn.fc(hidden, 1, weight_attr=slow, bias_attr=False), target)


class Alone:
    """The program of one trainer, without an optimizer."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.scope = paddle.static.Scope()
        self.main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.base.unique_name.guard(), paddle.static.program_guard(self.main, startup):
            pairs = paddle.static.append_backward(loss_of(False))
        self.gradients = {parameter.name: gradient for parameter, gradient in pairs}
        self.executor = paddle.static.Executor()
        with paddle.static.scope_guard(self.scope):
            self.executor.run(startup)
        self.set(start)

    def set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.scope.find_var(name).get_tensor().set(value, paddle.CPUPlace())

    def get(self, name: str) -> Any:
        return np.array(self.scope.find_var(name).get_tensor())

    def backward(self, feed: dict[str, Any]) -> list[Any]:
        wanted = [self.gradients[name] for name in NAMES]
        with paddle.static.scope_guard(self.scope):
            found: list[Any] = self.executor.run(self.main, feed=feed, fetch_list=wanted)
        return found


def one_process(start: dict[str, Any], count: int, rates: list[float]) -> list[Alone]:
    """Return the trainers after a step with each of these rates."""
    trainers = [Alone(start) for _ in range(count)]
    for step, rate in enumerate(rates):
        parts = [one.backward(batch(step, k)) for k, one in enumerate(trainers)]
        for name, *gradients in zip(NAMES, *parts, strict=True):
            shares = [gradient / np.float32(count) for gradient in gradients]
            own = np.float32(rate) * np.float32(0.5 if name == "down" else 1)
            new = trainers[0].get(name) - own * sum(shares[1:], shares[0])
            for one in trainers:
                one.set({name: new})
    return trainers


def fixed(loss: Any) -> Callable[[int], float]:
    paddle.optimizer.SGD(0.1).minimize(loss)
    return lambda step: 0.1


def by_operators(loss: Any) -> Callable[[int], float]:
    """Operators of the program make the rate, as schedules of Fluid did."""
    rate = paddle.static.create_global_var([1], 0.1, "float32", True, name="rate")
    loss.block.append_op(
        type="scale", inputs={"X": rate}, outputs={"Out": rate}, attrs={"scale": 0.5}
    )
    made = paddle.optimizer.SGD(0.1)
    made._learning_rate_map[loss.block.program] = rate
    made.minimize(loss)
    return lambda step: 0.1 * 0.5 ** (step + 1)


def scheduled(schedule: Any, *metric: float) -> Callable[[Any], Callable[[int], float]]:
    def make(loss: Any) -> Callable[[int], float]:
        rate = schedule()
        paddle.optimizer.SGD(rate).minimize(loss)

        def now(step: int) -> float:
            if step:
                rate.step(*metric)
            return float(rate())

        return now

    return make


CASES: dict[str, Callable[[Any], Callable[[int], float]]] = {
    "fixed": fixed,
    "by operators": by_operators,
    "step": scheduled(lambda: lr.StepDecay(0.2, 2, 0.5)),
    "lambda": scheduled(lambda: lr.LambdaDecay(0.2, lambda step: float(step != 2))),
    "one cycle": scheduled(lambda: lr.OneCycleLR(0.3, STEPS + 1)),
    "warm up": scheduled(lambda: lr.LinearWarmup(lr.PolynomialDecay(0.2, 9), 2, 0.01, 0.2)),
    "plateau": scheduled(lambda: lr.ReduceOnPlateau(0.2, factor=0.5, patience=1), 1.0),
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_it_is_one_process(rank: int, make: Any) -> None:
    paddle.seed(rank)  # the first trainer's values count
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        loss = loss_of(True)
        now = make(loss)
    plan = ps.transpile(main, startup, BOTH)
    me, executor = ps.trainers().index(rank), paddle.static.Executor()
    executor.run(startup)
    start, rates = plan.state_dict(), []
    ps.barrier()
    for step in range(STEPS):
        rates.append(now(step))
        executor.run(main, feed=batch(step, me), fetch_list=[loss])
    found = plan.state_dict()
    wanted = one_process({name: start[name] for name in NAMES}, len(ps.trainers()), rates)[me]
    for name in (*NAMES, *STATISTICS):
        assert np.array_equal(found[name], wanted.get(name)), name
        assert not np.array_equal(found[name], start[name]), name
