"""What an optimizer of Paddle has goes to servers and comes back: begun here, it goes on there."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from paddlempi import errors, ps
from paddlempi.testing import World
from ps_roles import BOTH

pytestmark = pytest.mark.mpi(ranks=[2])

ROWS, DIM, HALF = 6, 3, 4
names = iter(range(1000))


@pytest.fixture(autouse=True)
def ended(mpi_world: World) -> Iterator[None]:
    yield
    ps.shutdown()


class Net(paddle.nn.Layer):
    """Rows with sparse gradients, and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = paddle.nn.Embedding(ROWS, DIM, sparse=True)
        self.up = paddle.nn.Linear(DIM, 4)
        self.down = paddle.nn.Linear(4, 1)

    def forward(self, ids: Any) -> Any:
        return self.down(paddle.tanh(self.up(self.rows(ids))))


Make = Callable[[Any, Any, Any], Any]


def adagrad(rate: Any, rows: Any, dense: Any) -> Any:
    return [
        paddle.optimizer.Adagrad(
            rate, parameters=rows + dense, initial_accumulator_value=0.1, epsilon=1e-3
        )
    ]


def adam(rate: Any, rows: Any, dense: Any) -> Any:
    return [
        paddle.optimizer.Adam(rate, parameters=rows, lazy_mode=True, epsilon=1e-3),
        paddle.optimizer.AdamW(rate, parameters=dense, weight_decay=0.1, name="mine"),
    ]


def momentum(rate: Any, rows: Any, dense: Any) -> Any:
    return [
        paddle.optimizer.SGD(rate, parameters=rows),
        paddle.optimizer.Momentum(rate, parameters=dense, use_nesterov=True),
    ]


class Program:
    """A model, its optimizers, and their learning rate. All have parameters of the same names."""

    def __init__(self, make: Make, seed: int = 3) -> None:
        paddle.seed(seed)
        with paddle.utils.unique_name.guard():
            self.model = Net()
        rows = [self.model.rows.weight]
        dense = [p for p in self.model.parameters() if p is not rows[0]]
        self.rate = paddle.optimizer.lr.ExponentialDecay(0.05, 0.9)
        self.optimizers = make(self.rate, rows, dense)
        self.plan: Any = None

    def on_servers(self) -> Program:
        self.plan = ps.transpile(
            self.model,
            self.optimizers,
            None if ps.session.is_begun() else BOTH,
            average=False,
            name=f"plan{next(names)}",
        )
        self.model, self.optimizers = self.plan.model, self.plan.optimizer
        return self

    def train(self, begin: int, end: int, ranks: range) -> Program:
        with paddle.utils.unique_name.guard():  # names of states end with 0
            for step in range(begin, end):
                for one in self.optimizers:
                    one.clear_grad()
                for rank in ranks:
                    ids = paddle.to_tensor([rank, 2, step % ROWS])
                    self.model(ids).square().sum().backward()
                for one in self.optimizers:
                    one.step()
                self.rate.step()
        return self

    def state(self) -> dict[str, Any]:
        if self.plan is not None:
            state: Any = self.plan.state_dict(optimizer=True)
        else:
            optimizers = [one.state_dict() for one in self.optimizers]
            state = {"model": self.model.state_dict(), "optimizer": optimizers}
        file = io.BytesIO()
        paddle.save(state, file)
        file.seek(0)
        return dict(paddle.load(file))

    def load(self, state: dict[str, Any]) -> Program:
        if self.plan is not None:
            self.plan.set_state_dict(state, optimizer=True)
        else:
            self.model.set_state_dict(state["model"])
            for one, its in zip(self.optimizers, state["optimizer"], strict=True):
                one.set_state_dict(its)
        return self


def same(found: Any, wanted: Any, close: float = 1e-4) -> None:
    assert list(found["model"]) == list(wanted["model"])
    pairs = [(found["model"], wanted["model"])]
    for one, other in zip(found["optimizer"], wanted["optimizer"], strict=True):
        assert set(one) == set(other)
        assert one["LR_Scheduler"] == other["LR_Scheduler"]
        pairs.append((one, other))
    for one, other in pairs:
        for name, value in other.items():
            if name != "LR_Scheduler":
                assert one[name].dtype == value.dtype and one[name].shape == value.shape
                np.testing.assert_allclose(
                    one[name].numpy(), value.numpy(), close, close / 10, err_msg=name
                )


@pytest.mark.parametrize("make", [adagrad, adam, momentum], ids=lambda make: make.__name__)
def test_from_servers_to_one_process_and_back(rank: int, size: int, make: Make) -> None:
    """With sparse gradients Paddle's Adam takes the powers of the next step: it is not compared."""
    mine, every = range(rank, rank + 1), range(size)
    of_paddle = make is not adam
    alone = Program(make).train(0, HALF, every)
    here = Program(make, seed=3 + rank).on_servers().train(0, HALF, mine)
    there = here.state()
    if of_paddle:
        same(there, alone.state())
    went = Program(make).load(there).train(HALF, 2 * HALF, every)
    if of_paddle:
        same(went.state(), alone.train(HALF, 2 * HALF, every).state())
    back = Program(make, seed=5 + rank).on_servers().load(there)
    same(back.state(), there, close=0)  # on the way no bit is lost
    ps.barrier()
    stayed = here.train(HALF, 2 * HALF, mine).state()
    ps.barrier()
    same(back.train(HALF, 2 * HALF, mine).state(), stayed, close=0)
    ps.barrier()


def test_dense_adam_is_that_of_one_process(rank: int, size: int) -> None:
    def make(rate: Any, rows: Any, dense: Any) -> Any:
        return [
            paddle.optimizer.SGD(rate, parameters=rows),
            paddle.optimizer.Adam(rate, parameters=dense, epsilon=1e-3),
        ]

    mine, every = range(rank, rank + 1), range(size)
    alone = Program(make).train(0, HALF, every)
    begun = Program(make).train(0, HALF, every).on_servers()
    same(begun.state(), alone.state(), close=1e-6)
    ps.barrier()
    same(
        begun.train(HALF, 2 * HALF, mine).state(),
        alone.train(HALF, 2 * HALF, every).state(),
        close=1e-3,
    )
    ps.barrier()


@pytest.mark.parametrize("loaded", [False, True], ids=["stepped", "loaded"])
def test_a_plan_of_an_optimizer_that_has_begun(rank: int, size: int, loaded: bool) -> None:
    mine, every = range(rank, rank + 1), range(size)
    alone, begun = (Program(adagrad).train(0, HALF, every) for _ in range(2))
    if loaded:
        begun = Program(adagrad, seed=9).load(begun.state())
    begun.on_servers()
    same(begun.state(), alone.state(), close=0)
    assert not begun.optimizers[0].optim._accumulators_holder
    ps.barrier()
    same(
        begun.train(HALF, 2 * HALF, mine).state(),
        alone.train(HALF, 2 * HALF, every).state(),
    )
    begun.optimizers[0].optim.set_state_dict(alone.state()["optimizer"][0])  # behind its back
    with pytest.raises(errors.UnsupportedError, match=r"moment.* of parameter.*load them by this"):
        begun.optimizers[0].step()


def test_what_servers_have_no_place_for() -> None:
    state = Program(adagrad).train(0, 1, range(1)).state()
    other = {name.replace("moment", "velocity"): one for name, one in state["optimizer"][0].items()}
    renamed = {f"other_{name}": value for name, value in state["optimizer"][0].items()}
    with paddle.utils.unique_name.guard():
        begun = Program(adagrad)
        begun.optimizers[0].set_state_dict({**renamed, "LR_Scheduler": begun.rate.state_dict()})
    with pytest.raises(errors.UnsupportedError, match=r"states of other names \(other_"):
        begun.on_servers()
    plan = Program(adagrad).on_servers().plan
    first = plan.optimizer[0]
    before = {name: one for name, one in first.state_dict().items() if name != "LR_Scheduler"}
    assert before == {}
    scheduler = {"LR_Scheduler": state["optimizer"][0]["LR_Scheduler"]}
    some = dict(list(state["optimizer"][0].items())[:2])
    for wrong, error, text in (
        ({**renamed, **scheduler}, errors.ArgumentError, "of no parameter here"),
        ({**some, **scheduler}, errors.ArgumentError, "nothing of parameter"),
        (other, errors.UnsupportedError, "velocity"),
        ({**scheduler, "master_weights": {"x": 1}}, errors.UnsupportedError, "master_weights"),
    ):
        with pytest.raises(error, match=text):
            first.set_state_dict(wrong)
    ps.barrier()


def test_a_wrapped_optimizer_with_dense_parameters_on_servers(rank: int, size: int) -> None:
    """Without a plan all parameters are one vector."""

    def train(model: Any, optimizer: Any, steps: int, ranks: range) -> None:
        with paddle.utils.unique_name.guard():
            for _ in range(steps):
                for one in ranks:
                    model(paddle.full([1, DIM], one + 1.0)).square().sum().backward()
                optimizer.step()
                optimizer.clear_grad()

    def made() -> tuple[Any, Any]:
        paddle.seed(3)
        with paddle.utils.unique_name.guard():
            model = paddle.nn.Linear(DIM, 2)
        return model, paddle.optimizer.Adam(0.1, parameters=model.parameters())

    ps.init(BOTH)
    (alone, theirs), (model, begun) = made(), made()
    train(alone, theirs, 3, range(size))
    train(model, begun, 3, range(size))
    mine = ps.DistributedOptimizer(begun, dense="server", average=False)
    train(model, mine, 3, range(rank, rank + 1))
    train(alone, theirs, 3, range(size))
    wanted = theirs.state_dict()
    found = mine.state_dict()
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].numpy(), value.numpy(), 1e-3, 1e-5, err_msg=name)
    ps.barrier()
    mine.set_state_dict(wanted)
    for name, value in mine.state_dict().items():
        np.testing.assert_allclose(value.numpy(), wanted[name].numpy(), 1e-6)
    ps.barrier()
