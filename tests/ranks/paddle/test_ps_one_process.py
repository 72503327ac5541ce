"""Programs of Paddle with a parameter server do what they do in one process, or say why not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from paddlempi import errors, ps
from paddlempi.testing import World
from ps_roles import BOTH

pytestmark = pytest.mark.mpi(ranks=[2])

ROWS, DIM = 6, 3


@pytest.fixture(autouse=True)
def ended(mpi_world: World) -> Iterator[None]:
    yield
    ps.shutdown()


class Part(paddle.nn.Layer):
    """Rows with sparse gradients at two places, and a dense layer with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = paddle.nn.Embedding(ROWS, DIM, sparse=True)
        self.again = paddle.nn.LayerList([self.rows])
        self.up = paddle.nn.Linear(DIM, 1)
        self.register_buffer("shift", paddle.ones([1]))

    def forward(self, ids: Any) -> Any:
        return self.up(self.rows(ids) + self.again[0](ids + 1)) * self.shift


class Pair(paddle.nn.Layer):
    """Two parts that are trained in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Part(), Part()


def pair() -> Pair:
    paddle.seed(3)
    return Pair()


def optimizers(model: Pair) -> list[Any]:
    return [
        paddle.optimizer.Adagrad(0.1, parameters=model.a.parameters(), epsilon=0.1),
        paddle.optimizer.SGD(0.02, parameters=model.b.parameters()),
    ]


def train(model: Any, a: Any, b: Any, ranks: range) -> None:
    """Each one's loss has gradients of both. b steps more often, and drops what a's loss gave."""
    for step in range(6):
        for of_a in (True, False) if step % 3 == 0 else (False,):
            a.clear_grad()
            b.clear_grad()
            for rank in ranks:
                ids = paddle.to_tensor([rank, 2, step % 4])
                loss = model.a(ids) * model.b(ids) if of_a else model.b(ids) - model.a(ids)
                paddle.tanh(loss).sum().backward()
            b.clear_grad() if of_a else a.clear_grad()
            (a if of_a else b).step()


def arrays(state: Any) -> dict[str, Any]:
    return {name: np.array(value.numpy()) for name, value in state.items()}


def equal(found: Any, wanted: Any) -> None:
    assert list(found) == list(wanted)
    for name, value in arrays(wanted).items():
        np.testing.assert_allclose(found[name].numpy(), value, 1e-4, 1e-5, err_msg=name)


def test_steps_names_and_states_are_those_of_one_process(rank: int, size: int) -> None:
    alone, model = pair(), pair()
    theirs = optimizers(alone)
    plan = ps.transpile(model, optimizers(model), BOTH, average=False)
    train(plan.model, *plan.optimizer, range(rank, rank + 1))
    train(alone, *theirs, range(size))
    state = plan.state_dict()
    equal(state, alone.state_dict())  # with all names
    changed = {name: value * 1.5 for name, value in arrays(state).items()}
    ps.barrier()
    # The values of the first trainer count.
    plan.set_state_dict(changed if rank == 0 else {name: 7 + changed[name] for name in changed})
    alone.set_state_dict(changed)
    equal(plan.state_dict(), alone.state_dict())
    train(plan.model, *plan.optimizer, range(rank, rank + 1))
    train(alone, *theirs, range(size))
    equal(plan.state_dict(), alone.state_dict())


@paddle.no_grad()
def clip(parameter: Any) -> None:
    parameter.clip_(-0.01, 0.01)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "load": lambda model: model.set_state_dict(
        {name: value + 1 for name, value in model.state_dict().items()}
    ),
    "in place": lambda model: clip(model.up.weight),
    "one element": lambda model: model.up.bias.set_value(model.up.bias + 1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_set_is_not_undone(rank: int, change: Any) -> None:
    paddle.seed(rank)
    model = Part()
    plan = ps.transpile(model, paddle.optimizer.SGD(0.1, parameters=model.parameters()), BOTH)
    plan.model(paddle.to_tensor([1])).sum().backward()
    plan.optimizer.step()
    plan.optimizer.clear_grad()
    ps.barrier()
    change(plan.model)
    wanted = arrays(plan.model.state_dict())
    for call in (plan.state_dict, plan.optimizer.step):
        with pytest.raises(errors.UnsupportedError, match=r"'up\..*was changed.*publish"):
            call()
    for name, value in arrays(plan.model.state_dict()).items():
        assert (value == wanted[name]).all(), name
    plan.optimizer.publish()
    plan.optimizer.step()  # without gradients
    for name, value in arrays(plan.model.state_dict()).items():
        assert (value == wanted[name]).all(), name


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_that_forward_changes(sparse: bool) -> None:
    model = paddle.nn.Sequential(paddle.nn.Embedding(ROWS, DIM, max_norm=1.0, sparse=sparse))
    with pytest.raises(errors.UnsupportedError, match=r"'0.*max_norm"):
        ps.transpile(model, paddle.optimizer.SGD(0.1, parameters=model.parameters()), BOTH)


def test_what_is_set_in_a_static_program_is_not_undone(rank: int) -> None:
    with paddle.pir_utils.OldIrGuard(), paddle.static.scope_guard(paddle.static.Scope()):
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [None, 2], "float32")
            loss = paddle.mean(paddle.static.nn.fc(x, 1, weight_attr=paddle.ParamAttr(name="up")))
            paddle.optimizer.SGD(0.5).minimize(loss)
        plan = ps.transpile(main, startup, BOTH)
        executor = paddle.static.Executor()
        executor.run(startup)
        ones = np.ones((1, 2), np.float32)

        def step() -> None:
            executor.run(main, feed={"x": ones})

        step()
        up = paddle.static.global_scope().find_var("up").get_tensor()
        for change in (
            lambda: up.set(3 * np.ones((2, 1), np.float32), paddle.CPUPlace()),
            lambda: main.set_state_dict({"up": 3 * np.ones((2, 1), np.float32)}),
        ):
            change()
            for call in (step, plan.state_dict):
                with pytest.raises(errors.UnsupportedError, match=r"'up' was changed"):
                    call()
            assert (np.array(up) == 3).all()
            plan.optimizer.refresh()
            assert (np.array(up) != 3).all()
        plan.set_state_dict({"up": 3 * np.ones((2, 1))})
        step()
        assert (plan.state_dict()["up"] == 2.5).all()
