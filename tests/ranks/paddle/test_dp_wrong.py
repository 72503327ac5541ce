"""Wrong use of DataParallel: every rank raises an error, and the model stays usable. No hangs."""

from __future__ import annotations

import copy
import gc
import weakref
from types import ModuleType
from typing import Any

import dp
import paddle
import paddlempi
import paddlempi.paddle
import pytest
from paddle import nn
from paddle.autograd import PyLayer
from paddlempi.errors import ArgumentError, MismatchError, RefusedError, UnsupportedError
from paddlempi.paddle import DataParallel, data_parallel

pytestmark = pytest.mark.usefixtures("dist")


class Fragile(PyLayer):
    """The identity. Its backward fails if ``fails`` is set."""

    fails = False

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if Fragile.fails:
            raise OSError("the disk is full")
        return gradient * 1


class Breaking(dp.Net):
    """Its backward may fail before all layers, after `last`, or after all layers but the table."""

    at = "middle"

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 8, sparse=True)
        self.register_buffer("count", paddle.to_tensor([0]))

    def forward(self, x: Any) -> Any:
        x = x + self.table(paddle.zeros([x.shape[0]], "int64"))
        x = Fragile.apply(x) if self.at == "end" else x
        x = nn.functional.tanh(self.middle(self.first(x)))
        x = Fragile.apply(x) if self.at == "middle" else x
        self.count.add_(paddle.to_tensor([1]))
        x = self.last(x)
        return Fragile.apply(x) if self.at == "outputs" else x


@pytest.mark.parametrize("learnt", [0, 1], ids=["first", "later"])
@pytest.mark.parametrize("at", ["outputs", "middle", "end"])
@pytest.mark.parametrize("buffers", ["broadcast", "local"])
def test_an_exception_in_backward(
    at: str,
    learnt: int,
    buffers: Any,
    rank: int,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = DataParallel(Breaking(), buffers=buffers, **dp.SMALL)
    model._layers.at = at
    x = dp.part(dp.batch(0, size), rank, size)
    for _ in range(learnt):
        dp.square(model, x).backward()
        model.clear_gradients()
    loss = dp.square(model, x)
    monkeypatch.setattr(Fragile, "fails", rank == 1)
    if rank == 1:
        with pytest.raises((SystemError, OSError)) as raised:
            loss.backward()
        error: Any = raised.value
        assert "disk is full" in f"{error} {error.__cause__}"
    else:
        with pytest.raises(RefusedError, match=r"\[1\] refused"):
            loss.backward()
    monkeypatch.setattr(Fragile, "fails", False)
    model.clear_gradients()
    alone = dp.twin(Breaking, model)
    for _ in range(2):
        whole = dp.batch(1, size)
        dp.square(model, dp.part(whole, rank, size)).backward()
        dp.square(alone, paddle.to_tensor(whole)).backward()
        dp.agree(dp.gradients(model), dp.gradients(alone))
        model.clear_gradients()
        alone.clear_gradients()


def test_backward_without_forward(rank: int, size: int) -> None:
    model = DataParallel(dp.Net())
    x = dp.part(dp.batch(0, size), rank, size)
    inner = model._layers
    with pytest.raises(ArgumentError, match=r"'last\.\w+' without a forward: call the DataPar"):
        dp.square(inner, x).backward()
    if rank == 1:  # on one rank
        with pytest.raises(ArgumentError, match="without a forward"):
            dp.square(inner, x).backward()
    else:
        with pytest.raises(RefusedError, match=r"\[1\]"):
            dp.square(model, x).backward()
    inner.clear_gradients()
    dp.square(model, x).backward()
    mine = dp.gradients(model)
    dp.agree(mine, mine)


class Detour(dp.Net):
    """A model whose layers one rank skips."""

    around = False

    def forward(self, x: Any) -> Any:
        return x * 1 if Detour.around else super().forward(x)


def test_a_backward_that_reaches_no_parameter_on_a_rank(
    rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = DataParallel(Detour(), **dp.SMALL)
    x = dp.part(dp.batch(0, size), rank, size)
    x.stop_gradient = False
    for _ in range(2):
        monkeypatch.setattr(Detour, "around", rank == 1)
        loss = dp.square(model, x)
        with pytest.raises(MismatchError, match=r"no gradient .*rank\(s\) \[1\]") as raised:
            loss.backward()
        assert raised.value.ranks == (1,)
        monkeypatch.setattr(Detour, "around", False)
        model.clear_gradients()
        dp.square(model, x).backward()
    mine = dp.gradients(model)
    dp.agree(mine, mine)


def test_wrapped_twice(rank: int, size: int) -> None:
    net = dp.Net()
    old = DataParallel(net)
    new = DataParallel(net, **dp.SMALL)
    x = dp.part(dp.batch(0, size), rank, size)
    with pytest.raises(ArgumentError, match="newer DataParallel"):
        old(x)
    alone = dp.twin(dp.Net, new)
    for _ in range(2):
        dp.square(new, x).backward()
        dp.square(alone, paddle.to_tensor(dp.batch(0, size))).backward()
    dp.agree(dp.gradients(new), dp.gradients(alone))


def test_a_model_and_its_parameters_are_freed(rank: int, size: int) -> None:
    net = dp.Net()
    model = DataParallel(net)
    x = dp.part(dp.batch(0, size), rank, size)
    for _ in range(2):
        dp.square(model, x).backward()
    reducer = weakref.ref(model._reducer)
    del model
    gc.collect()
    assert reducer() is None
    dp.square(net, x).backward()  # the hooks that are left do nothing
    weight = weakref.ref(net.first.weight)
    del net
    gc.collect()
    assert weight() is None


def test_a_copy_is_a_model_of_its_own(rank: int, size: int) -> None:
    model = DataParallel(dp.Net())
    twin = copy.deepcopy(model._layers)
    x = dp.part(dp.batch(0, size), rank, size)
    dp.square(model, x).backward()
    before = dp.gradients(model)
    dp.square(twin, x).backward()  # the copy has no hooks, so this is local
    for name, value in dp.gradients(model).items():
        assert (value == before[name]).all()
    other = DataParallel(twin)
    dp.square(other, x).backward()


def test_uninstalled(dist: ModuleType, rank: int, size: int) -> None:
    model = DataParallel(dp.Net())
    x = dp.part(dp.batch(0, size), rank, size)
    paddlempi.paddle.uninstall()
    try:
        assert paddle.DataParallel is not DataParallel
        with pytest.raises(ArgumentError, match="was uninstalled"):
            model(x)
    finally:
        paddlempi.paddle.install()
    dp.square(model, x).backward()
    assert paddle.DataParallel is DataParallel


def test_amp_and_a_scaler_change_nothing(rank: int, size: int) -> None:
    """On the CPU Paddle's autocast and GradScaler do nothing, so scripts that use them can run."""
    model = DataParallel(dp.Net(), **dp.SMALL)
    alone = dp.twin(dp.Net, model)
    for net in (model, alone):
        optimizer = paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=net.parameters())
        with pytest.warns(UserWarning, match="only be enabled on"):
            scaler = paddle.amp.GradScaler(init_loss_scaling=1024.0)
        for step in range(3):
            whole = dp.batch(step, size)
            x = paddle.to_tensor(whole) if net is alone else dp.part(whole, rank, size)
            with (
                pytest.warns(UserWarning, match="only be enabled on"),
                paddle.amp.auto_cast(dtype="bfloat16"),
            ):
                loss = dp.square(net, x)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.clear_grad()
    dp.agree(dp.state(model), dp.state(alone))


def test_a_loss_scaled_by_hand(rank: int, size: int) -> None:
    """An overflow on one rank reaches all ranks through the average, so all skip the step."""
    model = DataParallel(dp.Net())
    x = dp.part(dp.batch(0, size), rank, size)
    (dp.square(model, x) * (float("inf") if rank == 1 else 1.0)).backward()
    weight = model._layers.last.weight.grad
    assert not bool(paddle.isfinite(weight).any())


def test_group_destroyed(rank: int, size: int) -> None:
    """A DataParallel has a group of its own, so its parent group may be destroyed."""
    parent = paddlempi.new_group(list(range(size)))
    model = DataParallel(dp.Net(), group=parent)
    paddlempi.destroy_process_group(parent)
    dp.square(model, dp.part(dp.batch(0, size), rank, size)).backward()
    mine = dp.gradients(model)
    dp.agree(mine, mine)


@pytest.mark.parametrize("where", ["everywhere", "on one rank"])
def test_parameters_on_a_gpu(rank: int, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy reads the buckets, so parameters on a GPU must raise an error and not crash."""
    there = where == "everywhere" or rank == 0
    monkeypatch.setattr(data_parallel, "on_host", lambda _: not there)
    error: type[Exception] = UnsupportedError
    if where != "everywhere":
        error = MismatchError
    with pytest.raises(error, match="host memory"):
        DataParallel(dp.Net())
