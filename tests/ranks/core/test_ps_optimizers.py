"""The optimizers of ``ps.Table``: rows after 100 steps, by torch, Paddle or a formula."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from paddlempi import ps

pytestmark = pytest.mark.mpi(ranks=1)

STEPS, IDS, DIM = 100, 17, 21  # 21: a vector of 16 and a rest
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


@pytest.fixture
def torch() -> Any:
    return importlib.import_module("torch")


@pytest.fixture
def paddle() -> Any:
    return importlib.import_module("paddle")


def gradients(step: int) -> np.ndarray:
    return np.random.default_rng(step).normal(size=(IDS, DIM)).astype(np.float32)


def rate_of(step: int) -> float:
    """A schedule."""
    return 0.05 / (1 + 0.02 * step)


def trained(optimizer: ps.Optimizer, rate: Callable[[int], float] = rate_of) -> tuple[Any, Any]:
    """Train a table by pushes in random order, in which every id appears twice.

    Returns:
        The rows of ids 0, 1, ... before and after.
    """
    table = ps.Table(DIM, optimizer, ps.Normal(std=0.5), seed=3)
    ids = np.arange(IDS)
    before = np.array(table.pull(ids))
    for step in range(STEPS):
        order = np.random.default_rng(-step % 1000).permutation(2 * IDS) % IDS
        table.push(order, gradients(step)[order] / np.float32(2), learning_rate=rate(step))
    return before, table.pull(ids)


def by_torch(torch: Any, make: Callable[[Any], Any], before: np.ndarray) -> Any:
    weight = torch.nn.Parameter(torch.tensor(before))
    optimizer = make([weight])
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate_of(step)
        weight.grad = torch.tensor(gradients(step))
        optimizer.step()
    return weight.detach().numpy()


TORCH: dict[str, tuple[ps.Optimizer, Callable[[Any, Any], Any]]] = {
    "sgd": (ps.SGD(), lambda t, w: t.SGD(w, 0.1)),
    "sgd, decay": (ps.SGD(weight_decay=0.1), lambda t, w: t.SGD(w, 0.1, weight_decay=0.1)),
    "momentum": (ps.Momentum(momentum=0.8), lambda t, w: t.SGD(w, 0.1, momentum=0.8)),
    "nesterov": (
        ps.Momentum(nesterov=True, weight_decay=0.02),
        lambda t, w: t.SGD(w, 0.1, momentum=0.9, nesterov=True, weight_decay=0.02),
    ),
    "adagrad": (ps.Adagrad(), lambda t, w: t.Adagrad(w, 0.1)),
    "adagrad, accumulator": (
        ps.Adagrad(initial_accumulator=0.5, epsilon=1e-3, weight_decay=0.1),
        lambda t, w: t.Adagrad(w, 0.1, initial_accumulator_value=0.5, eps=1e-3, weight_decay=0.1),
    ),
    "adam": (ps.Adam(), lambda t, w: t.Adam(w)),
    "adam, decay": (
        ps.Adam(beta1=0.8, beta2=0.95, epsilon=1e-4, weight_decay=0.1),
        lambda t, w: t.Adam(w, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1),
    ),
    "adamw": (ps.AdamW(weight_decay=0.2), lambda t, w: t.AdamW(w, weight_decay=0.2)),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_s(torch: Any, name: str) -> None:
    optimizer, make = TORCH[name]
    before, after = trained(optimizer)
    np.testing.assert_allclose(
        after, by_torch(torch, lambda w: make(torch.optim, w), before), **CLOSE
    )
    assert np.abs(after - before).max() > 0.05


PADDLE: dict[str, tuple[ps.Optimizer, Callable[[Any, Any], Any]]] = {
    "sgd": (
        ps.SGD(weight_decay=0.1),
        lambda p, w: p.optimizer.SGD(0.05, w, weight_decay=0.1),
    ),
    "momentum": (ps.Momentum(), lambda p, w: p.optimizer.Momentum(0.05, 0.9, w)),
    "nesterov": (
        ps.Momentum(momentum=0.7, nesterov=True),
        lambda p, w: p.optimizer.Momentum(0.05, 0.7, w, use_nesterov=True),
    ),
    "adagrad": (
        ps.Adagrad(epsilon=1e-6, initial_accumulator=0.1),
        lambda p, w: p.optimizer.Adagrad(0.05, 1e-6, w, initial_accumulator_value=0.1),
    ),
    "adam": (ps.Adam(), lambda p, w: p.optimizer.Adam(0.02, parameters=w)),
    "clip by value": (
        ps.SGD(clip_value=0.9),
        lambda p, w: p.optimizer.SGD(0.05, w, grad_clip=p.nn.ClipGradByValue(0.9)),
    ),
}


@pytest.mark.parametrize("name", PADDLE)
def test_paddle_s(paddle: Any, name: str) -> None:
    ours, make = PADDLE[name]
    # Paddle keeps the powers of Adam's betas in float32, with an error of 3e-5 in the first steps.
    before, after = trained(ours, lambda step: 0.02 if name == "adam" else 0.05)
    weight = paddle.create_parameter(
        before.shape, "float32", default_initializer=paddle.nn.initializer.Assign(before)
    )
    optimizer = make(paddle, [weight])
    for step in range(STEPS):
        (weight * paddle.to_tensor(gradients(step))).sum().backward()
        optimizer.step()
        optimizer.clear_grad()
    np.testing.assert_allclose(after, weight.numpy(), **CLOSE)


def some(step: int) -> np.ndarray:
    """The ids of a step, some of them several times."""
    return np.random.default_rng(step).integers(0, IDS, 9)


def test_rows_without_a_gradient_stay_as_torch_s_sparse_adam_has_it(torch: Any) -> None:
    # SparseAdam adds epsilon to the root before the bias correction: it is made small here.
    table = ps.Table(DIM, ps.Adam(0.01, epsilon=1e-13), ps.Normal(std=0.5), seed=3)
    embedding = torch.nn.Embedding(IDS, DIM, sparse=True)
    embedding.weight.data = torch.tensor(table.pull(np.arange(IDS)))
    optimizer = torch.optim.SparseAdam(embedding.parameters(), 0.01, eps=1e-13)
    for step in range(STEPS):
        optimizer.zero_grad()
        found = embedding(torch.tensor(some(step)))
        (found * torch.tensor(gradients(step)[:9])).sum().backward()
        table.push(embedding.weight.grad)  # not coalesced
        optimizer.step()
    after = table.pull(np.arange(IDS))
    np.testing.assert_allclose(after, embedding.weight.detach().numpy(), **CLOSE)


def test_rows_without_a_gradient_stay_as_paddle_s_lazy_adam_has_it(paddle: Any) -> None:
    table = ps.Table(DIM, ps.Adam(0.01), ps.Normal(std=0.5), seed=3)
    before = np.array(table.pull(np.arange(IDS)))
    embedding = paddle.nn.Embedding(IDS, DIM, sparse=True)
    embedding.weight.set_value(before)
    optimizer = paddle.optimizer.Adam(0.01, parameters=embedding.parameters(), lazy_mode=True)
    for step in range(STEPS):
        found = embedding(paddle.to_tensor(some(step)))
        (found * paddle.to_tensor(gradients(step)[:9])).sum().backward()
        # SelectedRows, for which Paddle's kernel takes the betas' powers of the next step.
        table.push(embedding.weight.grad, step=step + 2)
        optimizer.step()
        optimizer.clear_grad()
    after = table.pull(np.arange(IDS))
    np.testing.assert_allclose(after, embedding.weight.numpy(), **CLOSE)
    assert np.abs(after - before).max() > 0.05


@pytest.mark.parametrize("decoupled", [False, True])
def test_bias_correction_by_row_is_torch_s_adam_of_each_row(torch: Any, decoupled: bool) -> None:
    """Each row has an Adam of its own, which steps when the row is in a push."""
    ours, theirs = (ps.AdamW, "AdamW") if decoupled else (ps.Adam, "Adam")
    table = ps.Table(DIM, ours(0.01, weight_decay=0.1, bias_correction="row"), ps.Normal(), seed=3)
    rows = [torch.nn.Parameter(torch.tensor(row)) for row in table.pull(np.arange(IDS))]
    make = getattr(torch.optim, theirs)
    each = [make([row], 0.01, weight_decay=0.1) for row in rows]
    for step in range(STEPS):
        ids = np.unique(some(step) // (1 + step % 3))  # some are rare
        table.push(ids, gradients(step)[ids])
        for row in ids:
            rows[row].grad = torch.tensor(gradients(step)[row])
            each[row].step()
    after = np.stack([row.detach().numpy() for row in rows])
    np.testing.assert_allclose(table.pull(np.arange(IDS)), after, **CLOSE)
    state = table.state_dict()
    counts = [int(each[row].state[rows[row]]["step"]) for row in state["ids"]]
    assert len(set(counts)) > 2  # so that a count of all would be seen
    assert state["states"].shape == (IDS, 2 * DIM + 1)
    assert state["states"][:, -1].tolist() == counts


def test_row_wise_adagrad() -> None:
    optimizer = ps.RowWiseAdagrad(epsilon=1e-4, initial_accumulator=0.25, weight_decay=0.01)
    before, after = trained(optimizer)
    rows, total = before.astype(np.float64), np.full((IDS, 1), 0.25)
    for step in range(STEPS):
        gradient = gradients(step) + 0.01 * rows
        total += (gradient**2).mean(axis=1, keepdims=True)
        rows -= rate_of(step) * gradient / (np.sqrt(total) + 1e-4)
    np.testing.assert_allclose(after, rows, **CLOSE)


@pytest.mark.parametrize("norm", [3.0, 5.0, 100.0])
def test_clipping_by_the_norm_of_a_row(norm: float) -> None:
    before, after = trained(ps.SGD(clip_norm=norm, weight_decay=0.1))
    rows = before.astype(np.float64)
    for step in range(STEPS):
        gradient = gradients(step).astype(np.float64)
        norms = np.linalg.norm(gradient, axis=1, keepdims=True)
        gradient *= np.minimum(1, norm / norms)
        rows -= rate_of(step) * (gradient + 0.1 * rows)
    np.testing.assert_allclose(after, rows, **CLOSE)


def test_the_step_of_a_push() -> None:
    """Two tables that share the steps between them give the same rows as one."""
    whole, parts = ([ps.Table(DIM, ps.Adam(0.01), seed=1) for _ in range(n)] for n in (1, 2))
    for step in range(1, 40):
        ids = some(step)
        values = gradients(step)[:9]
        whole[0].push(ids, values)
        for number, part in enumerate(parts):
            mine = ids % 2 == number
            if mine.any():
                part.push(ids[mine], values[mine], step=step)
    for number, part in enumerate(parts):
        ids = np.arange(number, IDS, 2)
        assert (part.pull(ids) == whole[0].pull(ids)).all()
        assert 30 < part.info()["steps"] <= 39


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_rows_are_rounded_once_for_each_update(torch: Any, dtype: str) -> None:
    table = ps.Table(DIM, ps.SGD(0.1), ps.Normal(std=0.5), seed=3, dtype=dtype)
    ids = np.arange(IDS)
    kind = getattr(torch, dtype)
    rows = torch.tensor(table.pull(ids))
    assert (rows == rows.to(kind).float()).all()
    for step in range(STEPS):
        table.push(ids, gradients(step))
        rows = (rows - 0.1 * torch.tensor(gradients(step))).to(kind).float()
    assert (torch.tensor(table.pull(ids)) == rows).all()
    out = torch.empty(IDS, DIM, dtype=kind)
    assert (table.pull(torch.tensor(ids), out).float() == rows).all()
    small = torch.tensor(gradients(0)).to(kind)
    table.push(torch.tensor(ids), small)
    assert (table.pull(torch.tensor(ids)) == (rows - 0.1 * small.float()).to(kind).float()).all()
