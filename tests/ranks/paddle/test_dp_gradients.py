"""DataParallel gives the gradients and parameters of one process on the global batch."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import dp
import numpy as np
import paddle
import pytest
from paddle import nn
from paddlempi.errors import ArgumentError, UnsupportedError
from paddlempi.paddle import DataParallel

pytestmark = pytest.mark.usefixtures("dist")

OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: paddle.optimizer.SGD(0.1, parameters=p),
    "Adam": lambda p: paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=p),
    "clipped": lambda p: paddle.optimizer.Momentum(
        0.1, parameters=p, grad_clip=nn.ClipGradByGlobalNorm(0.05)
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("sizes", [{}, dp.SMALL, {"comm_buffer_size": 1e-6}], ids=str)
@pytest.mark.parametrize("zero", [True, False], ids=["zeroed", "cleared"])
def test_training(
    optimizer: str, sizes: dict[str, float], zero: bool, rank: int, size: int
) -> None:
    paddle.seed(rank)
    model = DataParallel(dp.Net(), **sizes)
    alone = dp.twin(dp.Net, model)
    wholes = [dp.batch(step, size) for step in range(4)]
    make = OPTIMIZERS[optimizer]
    mine = dp.train(
        model, make(model.parameters()), [dp.part(w, rank, size) for w in wholes], zero=zero
    )
    expected = dp.train(
        alone, make(alone.parameters()), [paddle.to_tensor(w) for w in wholes], zero=zero
    )
    dp.agree(mine, expected)
    dp.agree(dp.state(model), dp.state(alone))


def test_a_spoilt_gradient_is_noticed(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = DataParallel(dp.Net(), **dp.SMALL)
    alone = dp.twin(dp.Net, model)
    whole = dp.batch(0, size)
    dp.square(alone, paddle.to_tensor(whole)).backward()
    dp.spoil(monkeypatch, rank)
    for _ in range(2):  # the backward that learns the order, and a later one
        dp.square(model, dp.part(whole, rank, size)).backward()
        spoilt = dp.gradients(model)
        assert dp.noticed(lambda spoilt=spoilt: dp.agree(spoilt, dp.gradients(alone)))
        model.clear_gradients()


class Backwards(dp.Net):
    """Its forward uses the layers in another order than that in which they were made."""

    def forward(self, x: Any) -> Any:
        x = nn.functional.tanh(self.middle(paddle.concat([x, x], 1)))
        return self.last(x) + self.first(x[:, :8]).mean()


def test_buckets_are_in_the_order_of_use(rank: int, size: int) -> None:
    model = DataParallel(Backwards(), comm_buffer_size=5e-4, last_comm_buffer_size=3e-4)
    came: list[str] = []
    for name, parameter in model._layers.named_parameters():
        parameter._register_backward_hook(lambda name=name: came.append(name))
    x = dp.part(dp.batch(0, size), rank, size)
    dp.square(model, x).backward()
    reducer = model._reducer
    learnt = [[reducer._names[entry.index] for entry in b.entries] for b in reducer._buckets]
    assert len(learnt) > 2
    assert [name for names in learnt for name in names] == came
    assert len(learnt[-1]) < len(came) - 1  # the last bucket is short
    started: list[int] = []
    for parameter in model.parameters():
        parameter._register_backward_hook(lambda: started.append(reducer._started))
    dp.square(model, x).backward()
    assert started[-1] == len(learnt)  # all buckets were started before the end of backward
    assert 0 < started[-2] < len(learnt)  # some were started before the last gradient


def test_rank_0_tells_the_order(rank: int, size: int) -> None:
    class Turned(dp.Net):
        """Three branches, which autograd visits in different orders on even and odd ranks."""

        def forward(self, x: Any) -> Any:
            y = paddle.concat([x, x], 1)
            if rank % 2:
                return self.last(y).mean() + self.middle(y).mean() + self.first(x).mean()
            return self.first(x).mean() + self.middle(y).mean() + self.last(y).mean()

    model = DataParallel(Turned(), **dp.SMALL)
    alone = dp.twin(Turned, model)
    for step in range(3):
        whole = dp.batch(step, size)
        model(dp.part(whole, rank, size)).backward()
        alone(paddle.to_tensor(whole)).backward()
        dp.agree(dp.gradients(model), dp.gradients(alone))
        model.clear_gradients()
        alone.clear_gradients()


@pytest.mark.parametrize("zero", [True, False], ids=["zeroed", "cleared"])
def test_gradients_view_the_bucket(zero: bool, rank: int, size: int) -> None:
    model = DataParallel(dp.Net(), **dp.SMALL)
    x = dp.part(dp.batch(0, size), rank, size)
    dp.square(model, x).backward()
    dp.train(model, paddle.optimizer.SGD(0.1, parameters=model.parameters()), [x], zero=zero)
    dp.square(model, x).backward()
    reducer = model._reducer
    for index, parameter in enumerate(reducer._parameters):
        bucket = reducer._entries[index].bucket
        inside = parameter.grad.data_ptr() - bucket.storage.data_ptr()
        assert 0 <= inside < bucket.array.nbytes
        assert parameter.grad.shape == parameter.shape
    before = dp.gradients(model)
    for bucket in reducer._buckets:
        bucket.storage.scale_(2.0)
    for name, gradient in dp.gradients(model).items():
        np.testing.assert_array_equal(gradient, 2 * before[name])


def test_what_others_hold_of_a_gradient_stays(rank: int, size: int) -> None:
    model = DataParallel(dp.Net())
    raw: list[Any] = []
    model._layers.last.weight.register_hook(lambda g: raw.append(g))
    kept = []
    for step in range(2):
        dp.square(model, dp.part(dp.batch(step, size), rank, size)).backward()
        kept.append(raw[-1].numpy().copy())
        model.clear_gradients()
    for gradient, value in zip(raw, kept, strict=True):
        np.testing.assert_array_equal(gradient.numpy(), value)
    assert raw[0].data_ptr() != raw[1].data_ptr()


class Odd(nn.Layer):
    """A shared weight, its transpose, a scalar, an empty parameter, a sum of two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.turned = nn.Linear(4, 8, bias_attr=False)
        self.scalar = self.create_parameter([], default_initializer=nn.initializer.Constant(2.0))
        self.empty = self.create_parameter([0, 3])
        self.one = self.create_parameter([8])
        self.other = self.create_parameter([8])
        self.tied = self.inner

    def forward(self, x: Any) -> Any:
        x = self.tied(nn.functional.tanh(self.inner(x))) + (self.one + self.other)
        x = x @ paddle.transpose(self.inner.weight, [1, 0])
        x = x @ paddle.transpose(self.turned.weight, [1, 0]) @ self.turned.weight
        return x * self.scalar + self.empty.sum()


def test_shared_turned_scalar_and_empty_parameters(rank: int, size: int) -> None:
    paddle.seed(rank)
    model = DataParallel(Odd(), **dp.SMALL)
    alone = dp.twin(Odd, model)
    assert len(model._reducer._parameters) == len({id(p) for p in alone.parameters()})
    wholes = [dp.batch(step, size) for step in range(3)]
    mine = dp.train(
        model,
        paddle.optimizer.SGD(0.01, parameters=model.parameters()),
        [dp.part(w, rank, size) for w in wholes],
    )
    expected = dp.train(
        alone,
        paddle.optimizer.SGD(0.01, parameters=alone.parameters()),
        [paddle.to_tensor(w) for w in wholes],
    )
    dp.agree(mine, expected, 1e-4)
    dp.agree(dp.state(model), dp.state(alone), 1e-4)


def test_a_turned_gradient(rank: int, size: int) -> None:
    class Turned(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.weight = self.create_parameter([4, 8])

        def forward(self, x: Any) -> Any:
            return (paddle.transpose(self.weight, [1, 0]) * x[0].unsqueeze(1)).sum()

    model = DataParallel(Turned())
    layouts: list[bool] = []
    model._layers.weight.register_hook(lambda g: layouts.append(g.is_contiguous()))
    for step in range(3):
        whole = dp.batch(step, size, rows=1)
        model(dp.part(whole, rank, size)).backward()
        expected = np.tile(whole.mean(0), (4, 1))
        dp.agree(dp.gradients(model), {"weight": expected})
        model.clear_gradients()
    assert layouts == [False] * 3  # the gradient is indeed not contiguous


class Mixed(nn.Layer):
    """Parameters of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes = ["float32", "float64", "float16", "bfloat16", "complex64"]
        for dtype in self.dtypes:
            weight = (paddle.arange(8, dtype="float32") / 8 - 0.5).astype(dtype)
            self.add_parameter(
                "in_" + dtype, paddle.base.framework.EagerParamBase.from_tensor(weight)
            )

    def forward(self, x: Any) -> Any:
        total = paddle.zeros([], "float64")
        for dtype in self.dtypes:
            weight = getattr(self, "in_" + dtype)
            if dtype == "complex64":
                weight = paddle.real(weight * weight)
            total = total + (weight.astype("float64") * x.astype("float64")).mean()
        return total


def test_mixed_dtypes(rank: int, size: int) -> None:
    model = DataParallel(Mixed())
    # Quarters of small integers, which every dtype holds exactly.
    x = paddle.full([8], 2.0 * rank + 2.0)
    for _ in range(3):
        model(x).backward()
        mean = float(np.mean([2.0 * r + 2.0 for r in range(size)])) / 8
        parameters = dict(model._layers.named_parameters())
        for dtype in model._layers.dtypes:
            gradient = parameters["in_" + dtype].grad
            assert gradient.dtype == parameters["in_" + dtype].dtype
            if dtype == "complex64":
                expected = 2 * mean * parameters["in_" + dtype].numpy().conj()
                np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-5, atol=1e-6)
            else:
                value = gradient.astype("float32").numpy()
                np.testing.assert_allclose(value, np.full(8, mean), rtol=4e-3)
        model._layers.clear_gradients()
    buckets = model._reducer._buckets
    assert len({bucket.dtype for bucket in buckets}) == len(buckets) == 5


def test_a_dtype_without_gradients(dist: ModuleType) -> None:
    class Small(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            weight = paddle.zeros([2]).astype("float8_e4m3fn")
            self.w = paddle.base.framework.EagerParamBase.from_tensor(weight)

    with pytest.raises(UnsupportedError, match=r"'w' has dtype .*float8_e4m3fn"):
        DataParallel(Small())


def test_frozen_parameters(rank: int, size: int) -> None:
    def build() -> Any:
        net = dp.Net()
        net.middle.weight.stop_gradient = True
        return net

    paddle.seed(rank)
    model = DataParallel(build(), **dp.SMALL)
    alone = dp.twin(build, model)  # the broadcast at the start includes frozen parameters
    for step in range(2):
        whole = dp.batch(step, size)
        dp.square(model, dp.part(whole, rank, size)).backward()
        dp.square(alone, paddle.to_tensor(whole)).backward()
        mine = dp.gradients(model)
        assert "middle.weight" not in mine
        dp.agree(mine, dp.gradients(alone))
        if step == 0:
            for net in (model._layers, alone):  # frozen later, on all ranks
                net.first.weight.stop_gradient = True
                net.clear_gradients()
    model._layers.middle.weight.stop_gradient = False
    with pytest.raises(ArgumentError, match=r"'middle\.weight' was frozen"):
        dp.square(model, dp.part(dp.batch(9, size), rank, size)).backward()


def test_a_group(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group(list(range(1, size)) if size > 2 else [0, 1])
    if rank in group.ranks:
        model = DataParallel(dp.Net(), group=group)
        alone = dp.twin(dp.Net, model)
        whole = dp.batch(0, group.nranks)
        dp.square(model, dp.part(whole, group.rank, group.nranks)).backward()
        dp.square(alone, paddle.to_tensor(whole)).backward()
        expected = dp.gradients(alone)
        for name, gradient in dp.gradients(model).items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-5, atol=1e-6)
    else:
        with pytest.raises(ArgumentError, match="not in group"):
            DataParallel(dp.Net(), group=group)
    dist.destroy_process_group(group)


def test_one_rank_alone(dist: ModuleType, rank: int) -> None:
    import paddlempi

    alone = paddlempi.new_group([rank])
    with pytest.warns(UserWarning, match="one rank"):
        model = DataParallel(dp.Net(), group=alone)
    dp.square(model, paddle.ones([2, 8])).backward()
    assert len(dp.gradients(model)) == 6
    paddlempi.destroy_process_group(alone)
