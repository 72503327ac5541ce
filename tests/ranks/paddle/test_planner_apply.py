"""``paddlempi.paddle.apply``: the losses of every plan are those of one process."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import paddle
import paddlempi
import paddlempi.paddle
import pytest
from paddlempi.errors import ArgumentError, DtypeError, MismatchError, NotInitializedError

PLANS = ["ddp", "zero1", "zero2"]
STEPS, ROWS = 20, 12
mse = paddle.nn.functional.mse_loss

OPTIMIZERS = {
    "sgd": lambda p: paddle.optimizer.SGD(0.1, parameters=p),
    "momentum": lambda p: paddle.optimizer.Momentum(0.05, parameters=p),
    "adam": lambda p: paddle.optimizer.Adam(0.01, parameters=p),
    "adamw": lambda p: paddle.optimizer.AdamW(0.01, parameters=p),
}


def make(seed: int = 7) -> Any:
    paddle.seed(seed)
    return paddle.nn.Sequential(
        paddle.nn.Linear(6, 16), paddle.nn.Tanh(), paddle.nn.LayerNorm(16), paddle.nn.Linear(16, 2)
    )


def batch(step: int, rows: int = ROWS) -> tuple[Any, Any]:
    random = np.random.RandomState(step)
    return tuple(paddle.to_tensor(random.randn(rows, width).astype("float32")) for width in (6, 2))


def alone(name: str) -> list[float]:
    """Return the losses of one process on the whole batches."""
    model = make()
    optimizer = OPTIMIZERS[name](model.parameters())
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        loss = mse(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        losses.append(float(loss))
    return losses


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_losses_are_those_of_one_process(dist: ModuleType, rank: int, size: int, name: str) -> None:
    wanted = alone(name)
    for plan in PLANS:
        model = make(7 + rank)  # rank 0's parameters replace the others
        optimizer = OPTIMIZERS[name](model.parameters())
        model, step, shard_batch = paddlempi.paddle.apply(model, optimizer, plan, loss=mse)
        losses = [float(step(shard_batch(batch(number)))) for number in range(STEPS)]
        assert losses == pytest.approx(wanted, abs=1e-5), plan
        assert step.optimizer is optimizer
        counts: list[Any] = [0] * size
        paddlempi.all_gather_object(counts, len(optimizer._accumulators.get("moment1", ())))
        if name == "adam":
            assert sum(counts) == (6 * size if plan == "ddp" else 6), plan


class Worded(paddle.nn.Layer):  # type: ignore[misc]
    """It is called by keywords and returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.last = paddle.nn.Linear(6, 2)

    def forward(self, x: Any, labels: Any = None) -> Any:
        output = self.last(x)
        return SimpleNamespace(output=output, loss=None if labels is None else mse(output, labels))


def test_other_batches(dist: ModuleType, size: int) -> None:
    x, y = batch(0)
    layer = Worded()
    _, step, cut = paddlempi.paddle.apply(
        layer, paddle.optimizer.SGD(0.1, parameters=layer.parameters()), "zero2"
    )
    wanted = float(layer(x, y).loss)
    part = cut({"x": x, "labels": y})
    assert part["x"].shape == [ROWS // size, 6]
    assert float(step(part)) == pytest.approx(wanted, abs=1e-6)
    with pytest.raises(ArgumentError, match="returned no loss: give it labels"):
        step(cut({"x": x}))

    model = make()
    _, step, cut = paddlempi.paddle.apply(
        model, paddle.optimizer.SGD(0.1, parameters=model.parameters()), "ddp", loss=paddle.mean
    )
    assert float(step(cut(x))) == pytest.approx(float(make()(x).mean()), abs=1e-6)
    if size > 1:
        with pytest.raises(ArgumentError, match=rf"batch\[0\] of shape \({ROWS + 1}, 6\)"):
            cut(batch(0, ROWS + 1))


def test_wrong_use(dist: ModuleType, rank: int, size: int, monkeypatch: Any) -> None:
    def sgd(model: Any) -> Any:
        return paddle.optimizer.SGD(0.1, parameters=model.parameters())

    model = make()
    apply = paddlempi.paddle.apply
    with pytest.raises(ArgumentError, match="plan='fsdp2': it must be one of ddp, zero1, zero2"):
        apply(model, sgd(model), "fsdp2")
    with pytest.raises(DtypeError, match=r"it must be a paddle\.nn\.Layer"):
        apply(3, sgd(model), "ddp")
    with pytest.raises(ArgumentError, match="parameter 0 of the optimizer, of shape"):
        apply(model, sgd(make()), "ddp")
    stepped = paddle.optimizer.Adam(0.1, parameters=model.parameters())
    model(batch(0)[0]).mean().backward()
    stepped.step()
    with pytest.raises(ArgumentError, match="before the first step"):
        apply(model, stepped, "zero1")
    if size > 1:
        with pytest.raises(MismatchError, match=r"'plan': '(zero1|ddp)'"):
            apply(model, sgd(model), "zero1" if rank else "ddp")
        with pytest.raises(ArgumentError, match=r"plan='none'|rank 0 refused: apply: plan='none'"):
            apply(model, sgd(model), "zero1" if rank else "none")
    monkeypatch.setattr(paddlempi.group, "WORLD", None)
    with pytest.raises(NotInitializedError, match="init_parallel_env"):
        apply(model, sgd(model), "ddp")
