"""DataParallel: sparse embeddings, whose gradients are sent as rows."""

from __future__ import annotations

import contextlib
from typing import Any

import dp
import numpy as np
import paddle
import pytest
from paddle import nn
from paddlempi.errors import MismatchError
from paddlempi.paddle import DataParallel, selected_rows

pytestmark = pytest.mark.usefixtures("dist")

HEIGHT, WIDTH = 40, 4


class Words(nn.Layer):
    """An embedding, and a layer over the mean of its words. `tied`: the table is a weight too."""

    def __init__(self, sparse: bool = True, tied: bool = False, declared: bool = True) -> None:
        super().__init__()
        self.tied, self.sparse = tied, sparse
        self.table = nn.Embedding(HEIGHT, WIDTH, sparse=sparse and declared)
        self.last = nn.Linear(WIDTH, 3)

    def forward(self, words: Any) -> Any:
        found = nn.functional.embedding(words, self.table.weight, sparse=self.sparse)
        x = found.mean(1)
        out = self.last(x)
        return out if not self.tied else out.sum(1, keepdim=True) + x @ self.table.weight.T


def words(step: int, size: int, kinds: int, rows: int = 3) -> Any:
    """Return word numbers of the global batch, [size x rows, 2], below ``kinds``."""
    return np.random.default_rng(step).integers(0, kinds, (size * rows, 2))


OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda p: paddle.optimizer.SGD(0.1, parameters=p),
    "lazy Adam": lambda p: paddle.optimizer.Adam(0.05, epsilon=1e-3, parameters=p, lazy_mode=True),
    "clipped": lambda p: paddle.optimizer.Adam(
        0.05, epsilon=1e-3, parameters=p, grad_clip=nn.ClipGradByGlobalNorm(0.05)
    ),
}


@pytest.mark.parametrize("kinds", [4, HEIGHT], ids=["few", "many"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("zero", [True, False], ids=["zeroed", "cleared"])
def test_training(optimizer: str, kinds: int, zero: bool, rank: int, size: int) -> None:
    paddle.seed(rank)
    model = DataParallel(Words(), **dp.SMALL)
    alone = dp.twin(Words, model)
    rows = 3 if kinds == 4 else 12
    wholes = [words(step, size, kinds, rows) for step in range(4)]
    make = OPTIMIZERS[optimizer]
    mine = dp.train(
        model, make(model.parameters()), [dp.part(w, rank, size) for w in wholes], zero=zero
    )
    expected = dp.train(
        alone, make(alone.parameters()), [paddle.to_tensor(w) for w in wholes], zero=zero
    )
    dp.agree(mine, expected)
    dp.agree(dp.state(model), dp.state(alone))


@pytest.mark.parametrize("rows", [1, 30], ids=["few", "many"])
def test_the_gradient_is_rows(rows: int, rank: int, size: int) -> None:
    model = DataParallel(Words())
    whole = words(1, size, HEIGHT, rows)
    dp.square(model, dp.part(whole, rank, size)).backward()
    gradient = model._layers.table.weight.grad
    assert gradient.is_selected_rows()
    assert gradient.rows() == sorted(set(whole.flatten().tolist()))
    tables = model._reducer._tables
    assert bool(tables._whole) == (rows == 30)  # whether whole tables or rows are sent


def test_accumulation(rank: int, size: int) -> None:
    model = DataParallel(Words())
    alone = dp.twin(Words, model)
    wholes = [words(step, size, HEIGHT, 2) for step in range(4)]
    with model.no_sync():
        for whole in wholes[:2]:
            dp.square(model, dp.part(whole, rank, size)).backward()
    for whole in wholes[2:]:
        dp.square(model, dp.part(whole, rank, size)).backward()
    for whole in wholes:
        dp.square(alone, paddle.to_tensor(whole)).backward()
    dp.agree(dp.gradients(model), dp.gradients(alone))


def test_a_table_that_is_a_weight_too(rank: int, size: int) -> None:
    model = DataParallel(Words(tied=True))
    alone = dp.twin(lambda: Words(tied=True), model)
    wholes = [words(step, size, HEIGHT) for step in range(3)]
    for zero in (True, False):
        mine = dp.train(
            model,
            paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=model.parameters()),
            [dp.part(w, rank, size) for w in wholes],
            zero=zero,
        )
        expected = dp.train(
            alone,
            paddle.optimizer.Adam(0.01, epsilon=1e-3, parameters=alone.parameters()),
            [paddle.to_tensor(w) for w in wholes],
            zero=zero,
        )
        dp.agree(mine, expected)
    assert not any(b.dtype != paddle.float32 for b in model._reducer._buckets)


def test_dense_on_one_rank_only(rank: int, size: int) -> None:
    model = DataParallel(Words())
    alone = dp.twin(Words, model)
    whole = words(0, size, HEIGHT)
    for step in range(2):
        model._layers.tied = rank == step
        dp.square(model, dp.part(whole, rank, size)).backward()
        for other in range(size):
            alone.tied = other == step
            (dp.square(alone, dp.part(whole, other, size)) / size).backward()
        dp.agree(dp.gradients(model), dp.gradients(alone))


def test_rows_for_a_parameter_that_was_not_declared(rank: int, size: int) -> None:
    model = DataParallel(Words(declared=False), **dp.SMALL)
    alone = dp.twin(lambda: Words(declared=False), model)
    for step in range(3):
        whole = words(step, size, HEIGHT)
        dp.square(model, dp.part(whole, rank, size)).backward()
        dp.square(alone, paddle.to_tensor(whole)).backward()
        assert not model._layers.table.weight.grad.is_selected_rows()
        dp.agree(dp.gradients(model), dp.gradients(alone))
        model.clear_gradients()
        alone.clear_gradients()


class Two(nn.Layer):
    """Two tables; the argument `ways` of forward says which of them it uses."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Embedding(HEIGHT, WIDTH, sparse=True)
        self.right = nn.Embedding(HEIGHT, WIDTH, sparse=True)

    def forward(self, words: Any, ways: str) -> Any:
        return sum((getattr(self, way)(words) ** 2).mean() for way in ways.split("+"))


def test_unused_tables(rank: int, size: int) -> None:
    model = DataParallel(Two(), find_unused_parameters=True)  # the model has no dense parameter
    alone = dp.twin(Two, model)
    for step, taken in enumerate((["left", "right"] * 2, ["left"] * 4, ["left+right"] * 4)):
        whole = words(step, size, HEIGHT)
        model(dp.part(whole, rank, size), taken[rank]).backward()
        for other in range(size):
            (alone(dp.part(whole, other, size), taken[other]) / size).backward()
        dp.agree(dp.gradients(model), dp.gradients(alone))
        model.clear_gradients()
        alone.clear_gradients()


def test_unused_tables_are_named(rank: int, size: int) -> None:
    model = DataParallel(Two())
    x = dp.part(words(0, size, HEIGHT), rank, size)
    with pytest.raises(MismatchError, match=r"'right\.weight' .* \[1\]"):
        model(x, "left" if rank == 1 else "left+right").backward()
    expected = r"no rank's backward reached parameter 'left\.weight': this step does not train it"
    with pytest.warns(UserWarning, match=expected) if rank == 0 else contextlib.nullcontext():
        model(x, "right").backward()
    model(x, "left+right").backward()
    with pytest.raises(MismatchError, match=r"'left\.weight' .* \[0\]"):
        model(x, "right" if rank == 0 else "left+right").backward()


def test_a_spoilt_row_is_noticed(rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = DataParallel(Words())
    alone = dp.twin(Words, model)
    read = selected_rows.read

    def wrong(gradient: Any) -> Any:
        rows, values = read(gradient)
        if rank == 0:
            values[0, 0] += 1
        return rows, values

    monkeypatch.setattr(selected_rows, "read", wrong)
    whole = words(0, size, HEIGHT)
    dp.square(model, dp.part(whole, rank, size)).backward()
    dp.square(alone, paddle.to_tensor(whole)).backward()
    assert dp.noticed(lambda: dp.agree(dp.gradients(model), dp.gradients(alone)))
