"""The program of every rank of test_ps_equal_paddle.py, with static programs of Paddle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
import paddlempi
import ps_equal
from paddle import optimizer as optimizers
from paddlempi import ps
from ps_equal import DIM, ROLES, ROWS, STEPS, WIDTH, compare

RATE = 1e-3
LARGE = 100.0  # so that gradients are far above an epsilon of 1e-8
NAMES = ("words", "up", "down", "shift")


def sgd() -> Any:
    return optimizers.SGD(RATE)


def adagrad() -> Any:
    return optimizers.Adagrad(RATE)


def adam() -> Any:
    return optimizers.Adam(RATE, lazy_mode=True)


def momentum() -> Any:
    return optimizers.Momentum(RATE, use_nesterov=True)


def adamw() -> Any:
    return optimizers.AdamW(RATE)


# What rows have, and what the rest has.
KINDS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "sgd": (sgd, sgd),
    "momentum": (adagrad, momentum),
    "adagrad": (adam, adagrad),
    "adam": (adam, adam),
    "adamw": (sgd, adamw),
}


class Program:
    """A table, and weights of several blocks and of one.

    Args:
        of_rows, of_rest: make the optimizers. None: these parameters are not trained here.
        count: how many batches it adds up.
    """

    def __init__(self, of_rows: Any, of_rest: Any, count: int = 1) -> None:
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        self.rows = []
        with (
            paddle.base.unique_name.guard(),
            paddle.static.program_guard(self.main, self.startup),
        ):
            losses = [self.loss_of(number) for number in range(count)]
            self.loss = losses[0] if count == 1 else paddle.add_n(losses)
            pairs = paddle.static.append_backward(self.loss)
            for make, mine in ((of_rows, True), (of_rest, False)):
                if make is not None:
                    make().apply_gradients(
                        [one for one in pairs if (one[0].name == "words") == mine]
                    )
        self.gradients = {parameter.name: gradient for parameter, gradient in pairs}
        self.executor, self.scope = paddle.static.Executor(), paddle.static.Scope()

    def loss_of(self, number: int) -> Any:
        named = {name: paddle.ParamAttr(name=name) for name in NAMES}
        ids = paddle.static.data(f"ids{number}", [None, 3], "int64")
        target = paddle.static.data(f"target{number}", [None, 1], "float32")
        rows = paddle.static.nn.embedding(
            ids, (ROWS, DIM), is_sparse=True, param_attr=named["words"]
        )
        self.rows.append(rows)
        hidden = paddle.static.nn.fc(
            paddle.mean(rows, 1), WIDTH, weight_attr=named["up"], bias_attr=False, activation="tanh"
        )
        out = paddle.static.nn.fc(hidden, 1, weight_attr=named["down"], bias_attr=named["shift"])
        return F.mse_loss(out, target) * LARGE

    def run(self, step: int, batches: list[int], fetch: list[Any]) -> list[Any]:
        """Make a step with the batches of these trainers."""
        feed = {}
        for number, trainer in enumerate(batches):
            feed[f"ids{number}"], feed[f"target{number}"] = ps_equal.batch(step, trainer)
        with paddle.static.scope_guard(self.scope):
            found: list[Any] = self.executor.run(self.main, feed=feed, fetch_list=fetch)
        return found

    def begin(self, start: dict[str, Any] | None = None) -> None:
        """Run the startup program, and set parameters."""
        with paddle.static.scope_guard(self.scope):
            self.executor.run(self.startup)
        for name, value in (start or {}).items():
            self.tensor(name).set(value, paddle.CPUPlace())

    def tensor(self, name: str) -> Any:
        return self.scope.find_var(name).get_tensor()


def main() -> None:
    """Train with every optimizer, and compare."""
    paddle.enable_static()
    roles: str | None = ROLES
    for name, (of_rows, of_rest) in KINDS.items():
        paddle.seed(5 + paddlempi.get_rank())  # the first trainer's values count
        program = Program(of_rows, of_rest)
        plan = ps.transpile(program.main, program.startup, roles, average=False, name=name)
        roles = None  # a server serves in the first call, and ends in it
        me = ps.trainers().index(paddlempi.get_rank())
        program.begin()
        with paddle.static.scope_guard(program.scope):
            start = plan.state_dict()
            ps.barrier()
            start["words"] *= 0.1  # so that 1e-6 is several bits
            plan.set_state_dict(start)
        for step in range(STEPS):
            program.run(step, [me], [])
        ps.barrier()
        if me == 0:
            with paddle.static.scope_guard(program.scope):
                found = plan.state_dict()
            wanted = by_hand(start) if name == "sgd" else of_paddle(start, of_rows, of_rest)
            compare(name, found, {key: wanted[key] for key in found}, bits=name == "sgd")
        ps.barrier()


def of_paddle(start: dict[str, Any], of_rows: Any, of_rest: Any) -> dict[str, Any]:
    """One process adds up the batches, with Paddle's own optimizers.

    But not with its Adam of rows: Paddle 3.3.1 takes t + 1 for t there.
    """
    own = ps_equal.LazyAdam(RATE) if of_rows is adam else None
    program = Program(None if own else of_rows, of_rest, count=2)
    program.begin(start)
    gradients = [rows.name + "@GRAD" for rows in program.rows]
    for step in range(STEPS):
        parts = program.run(step, [0, 1], gradients)
        if own:
            rows = [
                ps_equal.of_rows(ps_equal.batch(step, trainer)[0], part)
                for trainer, part in enumerate(parts)
            ]
            tensor = program.tensor("words")
            tensor.set(own.update(np.array(tensor), *ps_equal.added(rows)), paddle.CPUPlace())
    return {name: np.array(program.tensor(name)) for name in NAMES}


def by_hand(start: dict[str, Any]) -> dict[str, Any]:
    """One process, which adds up gradients in the order of ranks: w - r g in float32."""
    program = Program(None, None)
    program.begin(start)
    weights = {name: value.copy() for name, value in start.items()}
    fetch = [program.rows[0].name + "@GRAD", *(program.gradients[name] for name in NAMES[1:])]
    for step in range(STEPS):
        rows, dense = [], []
        for trainer in range(2):
            part, *rest = program.run(step, [trainer], fetch)
            rows.append(ps_equal.of_rows(ps_equal.batch(step, trainer)[0], part))
            dense.append(rest)
        touched, total = ps_equal.added(rows)
        words = weights["words"]
        words[touched] = ps_equal.sgd(words[touched], total[touched], RATE)
        for name, first, second in zip(NAMES[1:], *dense, strict=True):
            weights[name] = ps_equal.sgd(weights[name], first + second, RATE)
        for name, value in weights.items():
            program.tensor(name).set(value, paddle.CPUPlace())
    return weights
