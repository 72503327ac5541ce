"""Helpers of the DataParallel tests: models, data, and the comparison with one process's run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
import paddlempi
from paddle import nn
from paddlempi.paddle import DataParallel
from paddlempi.paddle.buckets import Entry

SMALL = {"comm_buffer_size": 1e-3, "last_comm_buffer_size": 3e-4}
"""Buckets of about 1 KiB: the small models of the tests have several."""

Loss = Callable[[Any, Any], Any]


class Net(nn.Layer):
    """Three linear layers, from 8 features to 4."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.middle = nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        x = nn.functional.tanh(self.first(x))
        return self.last(nn.functional.tanh(self.middle(x)))


def square(model: Any, x: Any) -> Any:
    """Return a loss that is a mean over the batch."""
    return (model(x) ** 2).mean()


def batch(step: int, size: int, rows: int = 4, features: int = 8) -> Any:
    """Return the global batch of a step: one block of rows for each rank."""
    rng = np.random.default_rng(step)
    return rng.standard_normal((size * rows, features)).astype("float32")


def part(whole: Any, rank: int, size: int) -> Any:
    """Return this rank's rows as a tensor."""
    return paddle.to_tensor(np.split(whole, size)[rank])


def twin(build: Callable[[], Any], model: Any) -> Any:
    """Return a model for one process, with the parameters and buffers of ``model``."""
    alone = build()
    alone.set_state_dict({name: value.clone() for name, value in model.state_dict().items()})
    return alone


def gradients(model: Any) -> dict[str, Any]:
    """Return copies of a model's gradients as dense arrays, by their names in the bare model."""
    bare = getattr(model, "_layers", model)
    found = {}
    for name, parameter in bare.named_parameters():
        gradient = parameter.grad
        if gradient is not None and gradient.is_selected_rows():
            dense = np.zeros(parameter.shape, "float32")
            rows = gradient.rows()
            if rows:
                np.add.at(dense, rows, np.array(gradient.get_selected_rows().get_tensor()))
            found[name] = dense
        elif gradient is not None:
            found[name] = np.array(gradient.astype("float64").numpy())
    return found


def state(model: Any) -> dict[str, Any]:
    """Return copies of the tensors that a checkpoint holds."""
    return {name: np.array(value.numpy()) for name, value in model.state_dict().items()}


def agree(mine: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-5) -> None:
    """Assert that the values are those expected, to rounding, and equal to the bit on all ranks."""
    everyone: list[Any] = [None] * paddlempi.get_world_size()
    paddlempi.all_gather_object(everyone, {name: value.tobytes() for name, value in mine.items()})
    for rank, other in enumerate(everyone):
        differing = [name for name in mine if other.get(name) != everyone[0].get(name)]
        assert not differing, f"rank {rank} has other bits than rank 0: {differing}"
    assert mine.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(mine[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def noticed(check: Callable[[], None]) -> bool:
    """Return whether a check fails on this rank or on another rank."""
    try:
        check()
        seen = False
    except AssertionError:
        seen = True
    everyone = [False] * paddlempi.get_world_size()
    paddlempi.all_gather_object(everyone, seen)
    return any(everyone)


def spoil(monkeypatch: Any, rank: int) -> None:
    """From now on rank 0 spoils every gradient that it packs into a bucket."""
    pack = Entry.pack

    def wrong(self: Entry, parameter: Any, gradient: Any) -> None:
        pack(self, parameter, gradient)
        if rank == 0:
            self._flat_array[0] += 1

    monkeypatch.setattr(Entry, "pack", wrong)


def train(
    model: Any, optimizer: Any, parts: Sequence[Any], loss: Loss = square, zero: bool = True
) -> dict[str, Any]:
    """Train for some steps and return the gradients of the last step."""
    last: dict[str, Any] = {}
    for x in parts:
        loss(model, x).backward()
        last = gradients(model)
        optimizer.step()
        optimizer.clear_grad(set_to_zero=zero)
    return last


__all__ = ["SMALL", "DataParallel", "Net"]
