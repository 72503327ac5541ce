"""A single-machine program of Paddle that is spread over trainers and servers is what it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from paddlempi import barrier, errors, ps
from paddlempi.testing import World
from ps_roles import BOTH, ONE_TRAINER, layouts

pytestmark = pytest.mark.mpi(ranks=[2, 3])

ROWS, DIM, STEPS, EACH = 40, 6, 4, 5


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "roles" in metafunc.fixturenames:
        metafunc.parametrize("roles", layouts(metafunc.config))


@pytest.fixture(autouse=True)
def ended(mpi_world: World) -> Iterator[None]:
    yield
    ps.shutdown()


class Net(paddle.nn.Layer):
    """Two embeddings, one of them with sparse gradients, and dense layers of several blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.words = paddle.nn.LayerList([paddle.nn.Embedding(ROWS, DIM, 3, sparse=True)])
        self.plain = paddle.nn.Embedding(4, DIM)
        self.up = paddle.nn.Linear(2 * DIM, 900)
        self.norm = paddle.nn.LayerNorm(900)
        self.down = paddle.nn.Linear(900, 1)
        self.register_buffer("shift", paddle.rand([900]))

    def forward(self, ids: Any) -> Any:
        rows = paddle.concat([self.words[0](ids).sum(1), self.plain(ids[:, 0] % 4)], 1)
        return self.down(paddle.tanh(self.norm(self.up(rows))) * self.shift)


def batch(step: int, trainer: int) -> tuple[Any, Any]:
    random = np.random.default_rng(1000 * step + trainer)
    ids = random.integers(0, ROWS, (EACH, 3))
    return paddle.to_tensor(ids), paddle.to_tensor(random.random((EACH, 1), np.float32))


def sgd(model: Net) -> tuple[list[Any], Any]:
    rate = paddle.optimizer.lr.ExponentialDecay(0.001, 0.9)
    return [paddle.optimizer.SGD(rate, parameters=model.parameters())], rate


def several(model: Net) -> tuple[list[Any], Any]:
    rate = paddle.optimizer.lr.ExponentialDecay(0.001, 0.9)
    sparse = [model.words[0].weight]
    rest = [p for p in model.parameters() if p is not sparse[0]]
    return [
        paddle.optimizer.Momentum(rate, parameters=rest, use_nesterov=True),
        paddle.optimizer.Adagrad(rate, parameters=sparse),
    ], rate


def one_process(make: Any, trainers: int, first: int = 0) -> dict[str, Any]:
    """The state after STEPS steps of one process, which adds the gradients in order."""
    paddle.seed(7)
    model = Net()
    optimizers, rate = make(model)
    for step in range(STEPS):
        for trainer in range(first, first + trainers):
            ids, target = batch(step, trainer)
            ((model(ids) - target).square().mean()).backward()
        for one in optimizers:
            one.step()
            one.clear_grad()
        rate.step()
    return {name: np.array(value.numpy()) for name, value in model.state_dict().items()}


@pytest.mark.parametrize("make", [sgd, several], ids=lambda make: make.__name__)
def test_it_is_like_one_process(rank: int, roles: str, make: Any) -> None:
    paddle.seed(7 if rank == 0 or roles == ONE_TRAINER else rank)  # the first trainer's count
    model = Net()
    optimizers, rate = make(model)
    given = optimizers if len(optimizers) > 1 else optimizers[0]
    try:
        plan = ps.transpile(model, given, roles, average=False)
    except SystemExit as ended:  # this rank has served
        assert ended.code == 0
        return
    trainers, me = len(ps.trainers()), ps.trainers().index(rank)
    made = plan.optimizer if len(optimizers) > 1 else [plan.optimizer]
    assert plan.model is model and isinstance(model.words[0], ps.SparseEmbedding)
    for step in range(STEPS):
        ids, target = batch(step, me)
        ((plan.model(ids) - target).square().mean()).backward()
        for one in made:
            one.step()
            one.clear_grad()
        rate.step()
    ps.barrier()
    found, text = plan.state_dict(), str(plan)
    assert "words.0.weight  40x6" in text and "up.weight       12x900  2 blocks" in text, text
    ps.shutdown()  # servers wait for it, in transpile
    wanted = one_process(make, trainers)
    assert list(wanted) == list(found)
    # With sparse gradients Paddle trains the row of the padding, which forward does not read.
    wanted["words.0.weight"][3] = 0
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name].numpy(), value, 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize("mode", ["geo", "dc_asgd"])
def test_modes(rank: int, size: int, mode: str) -> None:
    """Geo averages what trainers train by themselves; alone, both are training in one process."""
    roles = BOTH if mode == "geo" else ONE_TRAINER
    paddle.seed(7)
    model = Net()
    (optimizer,), rate = sgd(model)
    try:
        plan = ps.transpile(model, optimizer, roles, mode=mode)
    except SystemExit as ended:
        assert ended.code == 0
        return
    for step in range(STEPS):
        ids, target = batch(step, ps.trainers().index(rank))
        ((plan.model(ids) - target).square().mean()).backward()
        plan.optimizer.step()
        plan.optimizer.clear_grad()
        rate.step()
    barrier(ps.trainer_group())  # of a trainer that is faster nobody has seen anything
    ps.barrier()
    plan.optimizer.refresh()
    found = plan.state_dict()
    ps.shutdown()
    alone = [one_process(sgd, 1, at) for at in range(size if mode == "geo" else 1)]
    for name, value in found.items():
        wanted = np.mean([one[name] for one in alone], 0)
        if name == "words.0.weight":
            wanted[3] = 0
        np.testing.assert_allclose(value.numpy(), wanted, 1e-4, 1e-5, err_msg=name)


def refused(model: Any, optimizer: Any, kind: type[BaseException], text: str) -> None:
    with pytest.raises(kind, match=text):
        ps.transpile(model, optimizer, BOTH)


def test_what_cannot_be() -> None:
    """All of it is seen before ranks talk to each other, so it may differ between them."""
    adam, momentum = paddle.optimizer.Adam, paddle.optimizer.Momentum
    two = paddle.nn.Sequential(paddle.nn.Linear(2, 2), paddle.nn.Linear(2, 2))
    half = adam(parameters=two[0].parameters())
    refused(two, half, errors.ArgumentError, "'1.weight' belongs to nobody")
    both = [adam(parameters=two.parameters()), half]
    refused(two, both, errors.ArgumentError, "'0.weight' belongs to two")
    refused(two, 3, errors.DtypeError, "no optimizer of Paddle")
    clip = paddle.nn.ClipGradByNorm(1.0)
    clipped = adam(parameters=two.parameters(), grad_clip=clip)
    refused(two, clipped, errors.UnsupportedError, "grad_clip")
    rows = paddle.nn.Embedding(4, 2, sparse=True)
    refused(rows, adam(parameters=rows.parameters()), errors.UnsupportedError, "lazy_mode")
    one = momentum(parameters=rows.parameters())
    refused(rows, one, errors.UnsupportedError, "not Momentum")
    tied = paddle.nn.Sequential(rows, paddle.nn.Linear(2, 4, bias_attr=False))
    tied[1]._parameters["weight"] = rows.weight
    one = paddle.optimizer.SGD(parameters=rows.parameters())
    refused(tied, one, errors.UnsupportedError, "'0.weight'.*'1' too")
