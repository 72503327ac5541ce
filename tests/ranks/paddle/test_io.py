"""``paddlempi.io`` with Paddle's tensors: distributed ones, models and optimizers, in one file."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import paddlempi
import pytest
import safetensors.numpy
from paddlempi import errors, io


def whole(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


def test_distributed_tensors(dist: ModuleType, here: Path, rank: int, size: int) -> None:
    mesh = dist.ProcessMesh(list(range(size)))
    kinds = {"rows": [dist.Shard(0)], "columns": [dist.Shard(1)], "all": [dist.Replicate()]}
    values = whole(7, 9)
    tensors = {
        name: dist.shard_tensor(paddle.to_tensor(values + n), mesh, kind)
        for n, (name, kind) in enumerate(kinds.items())
    }
    io.save_file(tensors, here / "m")
    if rank == 0:
        wanted = {name: values + n for n, name in enumerate(kinds)}
        safetensors.numpy.save_file(wanted, here / "t")
        assert (here / "m").read_bytes() == (here / "t").read_bytes()
    paddlempi.barrier()
    like = {
        "rows": dist.shard_tensor(paddle.zeros([7, 9]), mesh, [dist.Shard(1)]),
        "columns": paddle.zeros([7, 9]),
    }
    io.load_file(here / "m", like)
    assert np.array_equal(like["columns"].numpy(), values + 1)
    local = like["rows"]._local_value().numpy()
    begin = 9 - local.shape[1] if rank == size - 1 else rank * local.shape[1]
    assert np.array_equal(local, values[:, begin : begin + local.shape[1]])


def test_partial_sums_are_no_boxes(dist: ModuleType, here: Path, size: int) -> None:
    mesh = dist.ProcessMesh(list(range(size)))
    partial = dist.shard_tensor(paddle.zeros([4, 4]), mesh, [dist.Partial()])
    with pytest.raises(errors.ArgumentError, match="'w': it is Partial"):
        io.save_file({"w": partial}, here / "m")


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int64", "float8_e4m3fn"])
def test_dtypes(here: Path, dtype: str) -> None:
    tensor = paddle.to_tensor(whole(3, 4) > 5).astype("float32").astype(dtype)
    io.save_file({"w": tensor, "turned": tensor.astype(dtype).t().clone()}, here / "m")
    found = io.load_file(here / "m", framework="paddle")
    for name, wanted in (("w", tensor), ("turned", tensor.t())):
        assert found[name].dtype == tensor.dtype and found[name].shape == wanted.shape
        assert np.array_equal(found[name].astype("float32"), wanted.astype("float32"))


def build(seed: int) -> tuple[Any, Any]:
    paddle.seed(seed)
    model = paddle.nn.Linear(6, 4)
    rate = paddle.optimizer.lr.StepDecay(0.02, step_size=2)
    optimizer = paddle.optimizer.Adam(rate, parameters=model.parameters())
    return model, optimizer


def steps(model: Any, optimizer: Any, numbers: range) -> list[float]:
    losses = []
    for number in numbers:
        loss = (model(paddle.to_tensor(whole(2, 6) / 9 + number)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        optimizer._learning_rate.step()
        losses.append(float(loss))
    return losses


def test_a_training_goes_on(here: Path) -> None:
    """The states of an optimizer have tensors, numbers and maps."""
    with paddle.utils.unique_name.guard():  # Paddle names states after parameters and a number
        model, optimizer = build(1)
        steps(model, optimizer, range(3))
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
        io.save_state(state, here / "s")
        losses = steps(model, optimizer, range(3, 6))
    with paddle.utils.unique_name.guard():
        model, optimizer = build(2)
        found = io.load_state(here / "s", {"model": model.state_dict()}, framework="paddle")
        assert found["step"] == 3
        optimizer.set_state_dict(found["optimizer"])
        assert steps(model, optimizer, range(3, 6)) == losses
