"""DataParallel: hooks that compress the gradients before they are sent."""

from __future__ import annotations

from typing import Any

import dp
import numpy as np
import paddle
import pytest
from paddlempi.errors import MismatchError, RefusedError
from paddlempi.paddle import Cast, DataParallel

pytestmark = pytest.mark.usefixtures("dist")


def compare(compression: Any, rank: int, size: int, tolerance: float, **options: Any) -> float:
    """Train on ranks and in one process; return the greatest difference of the gradients."""
    paddle.seed(rank)
    model = DataParallel(dp.Net(), compression=compression, **dp.SMALL, **options)
    alone = dp.twin(dp.Net, model)
    worst = 0.0
    for step in range(3):
        whole = dp.batch(step, size)
        dp.square(model, dp.part(whole, rank, size)).backward()
        dp.square(alone, paddle.to_tensor(whole)).backward()
        mine, expected = dp.gradients(model), dp.gradients(alone)
        dp.agree(mine, expected, tolerance)
        worst = max(worst, *(float(abs(mine[n] - expected[n]).max()) for n in mine))
        model.clear_gradients()
        alone.clear_gradients()
    return worst


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2e-2), ("float16", 2e-3)])
def test_casts(dtype: Any, tolerance: float, rank: int, size: int) -> None:
    worst = compare(Cast(dtype), rank, size, tolerance)
    assert worst > 1e-6  # the cast did round


class Signed:
    """Sends the negative of the gradients, which loses nothing."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def compress(self, gradients: Any) -> Any:
        self.calls.append("compress")
        return -gradients

    def decompress(self, total: Any, gradients: Any) -> None:
        self.calls.append("decompress")
        gradients.copy_(-total, True)


def test_a_hook_of_the_users(rank: int, size: int) -> None:
    hook = Signed()
    compare(hook, rank, size, 1e-5, find_unused_parameters=True)
    assert hook.calls.count("compress") == hook.calls.count("decompress") > 3


class Wrong(Signed):
    """Doubles the gradients on rank 0."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def compress(self, gradients: Any) -> Any:
        return super().compress(gradients) * (2 if self.rank == 0 else 1)


def test_a_spoilt_message_is_noticed(rank: int, size: int) -> None:
    assert dp.noticed(lambda: compare(Wrong(rank), rank, size, 1e-5))


class Failing(Signed):
    """Raises an error if ``fails`` is set."""

    fails = False

    def compress(self, gradients: Any) -> Any:
        if self.fails:
            raise OSError("no room")
        return super().compress(gradients)


@pytest.mark.parametrize("learnt", [0, 1])
def test_a_hook_that_fails(learnt: int, rank: int, size: int) -> None:
    hook = Failing()
    model = DataParallel(dp.Net(), compression=hook, **dp.SMALL)
    x = dp.part(dp.batch(0, size), rank, size)
    for _ in range(learnt):
        dp.square(model, x).backward()
    hook.fails = rank == 1
    with pytest.raises(OSError if rank == 1 else RefusedError):
        dp.square(model, x).backward()
    hook.fails = False
    model.clear_gradients()
    alone = dp.twin(dp.Net, model)
    whole = dp.batch(1, size)
    dp.square(model, dp.part(whole, rank, size)).backward()
    dp.square(alone, paddle.to_tensor(whole)).backward()
    dp.agree(dp.gradients(model), dp.gradients(alone))


def test_an_unused_parameter_is_seen_through_a_cast(rank: int, size: int) -> None:
    class Ways(dp.Net):
        def forward(self, x: Any) -> Any:
            return self.first(x) if rank == 1 else self.middle(self.first(x))

    model = DataParallel(Ways(), compression=Cast("bfloat16"), find_unused_parameters=True)
    model(dp.part(dp.batch(0, size), rank, size)).mean().backward()
    assert model._layers.last.weight.grad is None
    assert np.abs(model._layers.middle.weight.grad.numpy()).sum() > 0


def test_other_hooks_are_an_error_everywhere(rank: int) -> None:
    with pytest.raises(MismatchError, match="'compression': 'Cast'"):
        DataParallel(dp.Net(), compression=Cast("bfloat16") if rank == 1 else None)
