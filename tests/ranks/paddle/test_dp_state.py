"""DataParallel: equal state at the start, buffers, checkpoints, compiled models."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import dp
import numpy as np
import paddle
import paddlempi
import pytest
from paddle import nn
from paddlempi.errors import ArgumentError, MismatchError
from paddlempi.paddle import DataParallel

pytestmark = pytest.mark.usefixtures("dist")


def test_it_is_paddles(dist: ModuleType) -> None:
    assert paddle.DataParallel is dist.DataParallel is dist.parallel.DataParallel is DataParallel
    assert paddlempi.DataParallel is DataParallel
    from paddlempi.paddle.data_parallel import _PaddleDataParallel

    assert issubclass(DataParallel, _PaddleDataParallel)
    assert _PaddleDataParallel.__module__ == "paddle.distributed.parallel"


def test_the_start_is_rank_0s(rank: int) -> None:
    paddle.seed(rank)
    bare = Norm()
    bare.count.set_value(paddle.to_tensor([rank + 3]))
    before: list[Any] = [dp.state(bare)]
    paddlempi.broadcast_object_list(before, src=0)
    dp.agree(dp.state(DataParallel(bare)), before[0], 0)


def test_what_says_no_sync_stays(rank: int, size: int) -> None:
    net = dp.Net()
    own = net.middle.bias
    own.no_sync = True
    own.set_value(paddle.full([16], float(rank)))
    model = DataParallel(net)
    for _ in range(2):
        dp.square(model, dp.part(dp.batch(0, size), rank, size)).backward()
    np.testing.assert_array_equal(own.numpy(), np.full(16, rank, "float32"))
    everyone: list[Any] = [None] * size
    paddlempi.all_gather_object(everyone, own.grad.numpy().tolist())
    assert all(other != everyone[0] for other in everyone[1:])


def wider() -> Any:
    net = dp.Net()
    net.middle = nn.Linear(16, 8)
    return net


def deeper() -> Any:
    net = dp.Net()
    net.extra = nn.Linear(2, 2)
    return net


def finer() -> Any:
    net = dp.Net()
    net.last.bias = net.create_parameter([4], dtype="float64")
    return net


def renamed() -> Any:
    net = dp.Net()
    net.final = net.last
    del net.last
    return net


def frozen() -> Any:
    net = dp.Net()
    net.last.bias.stop_gradient = True
    return net


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (wider, r"'middle\.weight' has shape \[16, 16\] .*'middle\.weight' has shape \[16, 8\]"),
        (deeper, r"6 tensors, .*8 tensors, 'extra\.weight' among them"),
        (finer, r"'last\.bias' .*dtype float32, .*'last\.bias' .*dtype float64"),
        (renamed, r"'last\.weight' .*'final\.weight'"),
        (frozen, r"'last\.bias'"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_another_model_is_an_error_everywhere(build: Any, text: str, rank: int) -> None:
    with pytest.raises(MismatchError, match=rf"rank 1 .*{text}") as raised:
        DataParallel(build() if rank == 1 else dp.Net())
    assert raised.value.ranks == (1,)


def test_other_options_are_an_error_everywhere(rank: int) -> None:
    with pytest.raises(MismatchError, match="'find_unused_parameters': True"):
        DataParallel(dp.Net(), find_unused_parameters=rank == 1)


def test_wrong_options(rank: int) -> None:
    with pytest.raises(ArgumentError, match="comm_buffer_size=0"):
        DataParallel(dp.Net(), comm_buffer_size=0)
    with pytest.raises(ArgumentError, match="buffers='sum'"):
        DataParallel(dp.Net(), buffers="sum")
    with pytest.raises(ArgumentError, match="no parameter to train"):
        DataParallel(nn.ReLU())


# Buffers


class Norm(nn.Layer):
    """BatchNorm, an integer buffer that counts, and a float64 buffer that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 6)
        self.norm = nn.BatchNorm1D(6)
        self.register_buffer("count", paddle.to_tensor([0]))
        self.register_buffer("most", paddle.zeros([2], "float64"))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.count.add_(paddle.to_tensor([1 if x[0, 0] > 0 else 2]))
            self.most = self.most + x[0, :2].astype("float64")  # a new tensor
        return self.norm(self.layer(x))


BUFFERS = ["norm._mean", "norm._variance", "count", "most"]


def locally(model: Any, xs: list[Any]) -> dict[str, Any]:
    """Return the buffers that this rank's forwards alone would make of ``model``'s buffers."""
    alone = dp.twin(Norm, model)
    for x in xs:
        alone(x)
    return {name: dp.state(alone)[name] for name in BUFFERS}


@pytest.mark.parametrize("how", ["broadcast", "average", "local"])
def test_buffers(how: Any, rank: int, size: int) -> None:
    model = DataParallel(Norm(), buffers=how)
    for step in range(3):
        xs = [dp.part(dp.batch(10 * step + k, size), rank, size) for k in range(2)]
        mine = locally(model, xs)
        everyone: list[Any] = [None] * size
        paddlempi.all_gather_object(everyone, mine)
        with model.no_sync():
            dp.square(model, xs[0]).backward()
        dp.square(model, xs[1]).backward()
        state = dp.state(model)
        now = {name: state[name] for name in BUFFERS}
        if how == "local":
            for name in BUFFERS:
                np.testing.assert_allclose(now[name], mine[name], rtol=1e-6)
            assert any((everyone[0][n] != everyone[1][n]).any() for n in BUFFERS)
            continue
        expected = dict(everyone[0])
        if how == "average":
            for name in BUFFERS:
                if name != "count":
                    expected[name] = np.mean([other[name] for other in everyone], 0)
        dp.agree(now, expected, 1e-6)


def test_a_spoilt_buffer_is_noticed(rank: int, size: int) -> None:
    model = DataParallel(Norm(), buffers="local")
    x = dp.part(dp.batch(0, size), rank, size)
    dp.square(model, x).backward()
    state = dp.state(model)
    assert dp.noticed(lambda: dp.agree(state, state))


# Checkpoints


def test_a_checkpoint_is_the_bare_models(rank: int, size: int, tmp_path: Path) -> None:
    paddle.seed(rank)
    model = DataParallel(Norm())
    bare = Norm()
    assert list(model.state_dict()) == list(bare.state_dict())
    path = str(tmp_path / f"{rank}.pdparams")
    paddle.save(model.state_dict(), path)
    bare.set_state_dict(paddle.load(path))
    dp.agree(dp.state(bare), dp.state(model))
    # Loading keeps the hooks, so training goes on from the loaded values.
    other = Norm()
    other.set_state_dict({k: v * 0.5 for k, v in paddle.load(path).items() if "count" not in k})
    loaded = dp.state(other)
    model.set_state_dict({name: paddle.to_tensor(value) for name, value in loaded.items()})
    dp.agree(dp.state(model), loaded)
    dp.square(model, dp.part(dp.batch(0, size), rank, size)).backward()
    mine = dp.gradients(model)
    dp.agree(mine, mine)


@pytest.mark.parametrize("full_graph", [True, False], ids=["ast", "sot"])
def test_compiled(full_graph: bool, rank: int, size: int) -> None:
    compiled = paddle.jit.to_static(dp.Net(), full_graph=full_graph)
    model = DataParallel(compiled, **dp.SMALL)
    alone = dp.twin(dp.Net, model)
    for step in range(3):
        whole = dp.batch(step, size)
        x = dp.part(whole, rank, size)
        with model.no_sync():
            dp.square(model, x).backward()
        local = dp.gradients(model)
        dp.square(model, x).backward()
        for _ in range(2):
            dp.square(alone, paddle.to_tensor(whole)).backward()
        mine = dp.gradients(model)
        dp.agree(mine, dp.gradients(alone))
        assert any((local[name] * 2 != mine[name]).any() for name in mine)
        model.clear_gradients()
        alone.clear_gradients()


def test_jit_save(rank: int, tmp_path: Path) -> None:
    model = DataParallel(dp.Net())
    path = str(tmp_path / f"net{rank}")
    spec = [paddle.static.InputSpec([None, 8], "float32")]
    paddle.jit.save(model, path, input_spec=spec)
    loaded = paddle.jit.load(path)
    x = paddle.ones([2, 8])
    np.testing.assert_allclose(loaded(x).numpy(), model(x).numpy(), rtol=1e-6)
