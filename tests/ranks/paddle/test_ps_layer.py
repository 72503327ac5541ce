"""Paddle's layer with rows on servers, against Paddle's own, over a fake of one process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from paddlempi import errors, ps
from ps_fake import PsCore, ps_core

__all__ = ["ps_core"]

pytestmark = pytest.mark.mpi(ranks=2)

ROWS, DIM, STEPS = 11, 5, 6


@pytest.fixture(autouse=True)
def session(ps_core: PsCore) -> None:
    paddle.seed(3)
    ps.init()


def rows_of(layer: Any) -> np.ndarray:
    rows: np.ndarray = layer.table.pull(np.arange(ROWS))
    return rows


@pytest.mark.parametrize("padding", [None, 2, -1])
@pytest.mark.parametrize(
    ("optimizer", "make"),
    [
        (ps.SGD(0.2), lambda p: paddle.optimizer.SGD(0.2, p)),
        (ps.Adagrad(0.2, epsilon=1e-6), lambda p: paddle.optimizer.Adagrad(0.2, parameters=p)),
    ],
    ids=["sgd", "adagrad"],
)
def test_against_paddle_s(optimizer: Any, make: Any, padding: int | None) -> None:
    layer = ps.SparseEmbedding(
        ROWS, DIM, padding, name="e", optimizer=optimizer, initializer=ps.Normal(), seed=1
    )
    reference = paddle.nn.Embedding(ROWS, DIM, padding)
    start = rows_of(layer).copy()
    if padding is not None:
        start[padding] = 0
    reference.weight.set_value(start)
    dense, same = paddle.nn.Linear(DIM, 3), paddle.nn.Linear(DIM, 3)
    same.set_state_dict(dense.state_dict())
    wrapped = ps.DistributedOptimizer(paddle.optimizer.SGD(0.1, dense.parameters()))
    of_dense, of_rows = paddle.optimizer.SGD(0.1, same.parameters()), make(reference.parameters())
    used = set()
    for step in range(STEPS):
        ids = np.random.default_rng(step).integers(0, ROWS, (4, 3))
        used |= set(ids.flat)
        out, expected = layer(paddle.to_tensor(ids)), reference(paddle.to_tensor(ids))
        assert out.shape == expected.shape and out.dtype == expected.dtype
        np.testing.assert_allclose(out.numpy(), expected.numpy(), 1e-5, 1e-5)
        dense(out).square().mean().backward()
        wrapped.step()
        wrapped.clear_grad()
        same(expected).square().mean().backward()
        for optimizer_ in (of_dense, of_rows):
            optimizer_.step()
            optimizer_.clear_grad()
        np.testing.assert_allclose(dense.weight.numpy(), same.weight.numpy(), 1e-5, 1e-5)
    if padding is not None:
        used -= {padding % ROWS}
    seen = sorted(used)
    np.testing.assert_allclose(rows_of(layer)[seen], reference.weight.numpy()[seen], 1e-5, 1e-5)
    assert np.abs(rows_of(layer)[seen] - start[seen]).max() > 1e-3


def test_layers_of_one_step_share_a_request(ps_core: PsCore) -> None:
    one = ps.SparseEmbedding(None, DIM, name="b", optimizer=ps.SGD(1.0))
    two = ps.SparseEmbedding(None, 2, name="a", optimizer=ps.SGD(1.0))
    ids = paddle.to_tensor([[-5, 2], [-5, 3]])
    before = one(ids).numpy()
    for _ in range(2):  # one table twice, and accumulated over two backwards
        (one(ids[0]).sum() + one(ids[1]).sum() + two(ids).sum()).backward()
    ps.step()
    assert ps_core.requests == [(2, ["a", "b"])]
    expected = before - np.array([[4, 2], [4, 2]], np.float32)[:, :, None]
    np.testing.assert_allclose(one(ids).numpy(), expected, 1e-5, 1e-5)


def test_nothing_is_noted_without_gradients(ps_core: PsCore) -> None:
    layer = ps.SparseEmbedding(ROWS, DIM, name="a")
    with paddle.no_grad():
        assert layer(paddle.to_tensor([1])).stop_gradient
    ps.step()
    layer(paddle.to_tensor([1])).sum().backward()
    dense = paddle.nn.Linear(DIM, 1)
    optimizer = ps.DistributedOptimizer(paddle.optimizer.SGD(0.1, dense.parameters()))
    optimizer.clear_grad()
    optimizer.step()
    assert ps_core.requests == [(2, []), (2, [])]


def test_backward_twice_and_views() -> None:
    layer = ps.SparseEmbedding(None, DIM, name="a", optimizer=ps.SGD(1.0))
    ids = paddle.to_tensor([[1, 9], [2, 9]])[:, 0]  # as Paddle's layer: a view may be ids
    before = layer(ids).numpy()
    out = layer(ids)
    loss = out.transpose([1, 0]).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    changed = layer(ids)
    changed.add_(paddle.ones([1]))
    changed.sum().backward()
    ps.step()
    np.testing.assert_allclose(layer(ids).numpy(), before - 3, 1e-5, 1e-5)


def test_static_programs_have_no_servers(tmp_path: Path) -> None:
    layer = ps.SparseEmbedding(None, DIM, name="users")
    of_ids = [paddle.static.InputSpec([None], "int64")]
    with pytest.raises(errors.UnsupportedError, match="'users' are on servers, which a static"):
        paddle.jit.save(layer, str(tmp_path / "layer"), input_spec=of_ids)
    assert layer(paddle.to_tensor([1])).shape == [1, DIM]


def test_prefetched_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = ps.SparseEmbedding(ROWS, DIM, 3, name="a")
    ids = paddle.to_tensor([[1, 3], [3, 2]])
    expected = layer(ids).numpy()
    layer.prefetch(ids).wait()
    with monkeypatch.context() as patch:
        patch.setattr(layer.table, "pull", None)
        out = layer(ids)  # does not pull
        with pytest.raises(TypeError):
            layer(ids)  # the rows are for one forward
    assert (out.numpy() == expected).all() and (expected[0, 1] == 0).all()
    layer.prefetch(ids)
    ids[1, 1] = 1  # forward has the rows of the ids that are there now
    assert (layer(ids).numpy()[1, 1] == expected[0, 0]).all()


def test_the_wrapped_optimizer() -> None:
    dense = paddle.nn.Linear(DIM, 1)
    optimizer = ps.DistributedOptimizer(
        paddle.optimizer.Momentum(0.5, parameters=dense.parameters())
    )
    loss = dense(paddle.ones([DIM])).sum()
    loss.backward()
    before = dense.bias.numpy().copy()
    _, pairs = optimizer.minimize(loss)
    assert len(pairs) == 2 and np.allclose(dense.bias.numpy(), before - 0.5)
    optimizer.clear_gradients()
    optimizer.set_lr(0.25)
    assert optimizer.get_lr() == 0.25 and "Momentum" in repr(optimizer)
    state = optimizer.state_dict()
    optimizer.set_state_dict(state)
    assert not ps.SparseEmbedding(ROWS, DIM, name="a").parameters()


def test_a_grad_scaler_is_refused(ps_core: PsCore) -> None:
    layer, dense = ps.SparseEmbedding(ROWS, DIM, name="a"), paddle.nn.Linear(DIM, 1)
    optimizer = ps.DistributedOptimizer(paddle.optimizer.SGD(0.1, parameters=dense.parameters()))
    scaler = paddle.amp.GradScaler(enable=False)  # as on a CPU
    scaler.scale(dense(layer(paddle.to_tensor([1]))).sum()).backward()
    scaler.step(optimizer)
    before = layer.table.pull(np.array([1]))
    dense(layer(paddle.to_tensor([1]))).sum().backward()
    with pytest.raises(errors.UnsupportedError, match="bfloat16"):
        optimizer._set_auxiliary_var("found_inf", paddle.to_tensor([False]))  # one that is enabled
    assert (layer.table.pull(np.array([1])) == before).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: paddle.optimizer.SGD(0.1, p),
        lambda p: paddle.optimizer.Momentum(0.1, 0.8, p, use_nesterov=True),
        lambda p: paddle.optimizer.Adagrad(0.1, parameters=p, initial_accumulator_value=0.1),
        lambda p: paddle.optimizer.Adam(0.01, parameters=p),
        lambda p: paddle.optimizer.AdamW(0.01, parameters=p, weight_decay=0.1),
    ],
    ids=["sgd", "momentum", "adagrad", "adam", "adamw"],
)
def test_dense_parameters_on_servers(ps_core: PsCore, make: Any) -> None:
    dense = paddle.nn.Sequential(paddle.nn.Linear(DIM, 300), paddle.nn.Linear(300, 300))
    same = paddle.nn.Sequential(paddle.nn.Linear(DIM, 300), paddle.nn.Linear(300, 300))
    same.set_state_dict(dense.state_dict())
    of_servers = ps.DistributedOptimizer(
        make(dense.parameters()), dense="server", placement="hash_name"
    )
    other = make(same.parameters())
    for step in range(STEPS):
        x = paddle.to_tensor(np.random.default_rng(step).normal(size=(4, DIM)).astype("float32"))
        for model, optimizer in ((dense, of_servers), (same, other)):
            model(x).square().mean().backward()
            optimizer.set_lr(0.02 / (step + 1))
            optimizer.step()
            optimizer.clear_grad()
        for mine, theirs in zip(dense.parameters(), same.parameters(), strict=True):
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), 1e-4, 1e-4)
    assert ps_core.ways == {"dense": "hash"} and ps_core.steps == STEPS


def test_dense_parameters_of_16_bits() -> None:
    parameter = paddle.create_parameter(
        [3], paddle.bfloat16, default_initializer=paddle.nn.initializer.Constant(0.0)
    )
    parameter.set_value(paddle.to_tensor([1.0, 2.0, -4.0]).astype("bfloat16"))
    optimizer = ps.DistributedOptimizer(paddle.optimizer.SGD(0.5, [parameter]), dense="server")
    (parameter.astype("float32") * 2).sum().backward()
    optimizer.step()
    assert parameter.dtype == paddle.bfloat16
    assert parameter.astype("float32").tolist() == [0.0, 1.0, -5.0]


def test_rows_of_another_model() -> None:
    weight = paddle.arange(ROWS * DIM, dtype="float32").reshape([ROWS, DIM])
    ids = paddle.arange(ROWS)
    frozen = ps.SparseEmbedding.from_pretrained(weight, name="a")
    assert (frozen(ids) == weight).all() and frozen(ids).stop_gradient
    layer = ps.SparseEmbedding.from_pretrained(weight, False, name="b", optimizer=ps.SGD(1.0))
    layer(ids).sum().backward()
    ps.step()
    assert (layer(ids) == weight - 1).all()
    with pytest.raises(errors.ArgumentError, match="must have two"):
        ps.SparseEmbedding.from_pretrained(weight[0], name="c")
    with pytest.raises(errors.DtypeError, match="not of float32"):
        ps.SparseEmbedding.from_pretrained(weight.astype("float64"), name="c")


def test_layers_can_be_copied() -> None:
    layer = ps.SparseEmbedding(ROWS, DIM, name="a")
    layer.prefetch(paddle.to_tensor([3]))
    again = copy.deepcopy(layer)
    ids = paddle.to_tensor([1, 2])
    assert again.table is layer.table and (again(ids) == layer(ids)).all()
    assert "11, 5, name='a'" in repr(layer)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: paddle.optimizer.Lamb(0.1, parameters=p), "servers have no Lamb"),
        (
            lambda p: paddle.optimizer.SGD(0.1, p, weight_decay=paddle.regularizer.L1Decay(0.1)),
            "SGD with weight_decay=L1Decay",
        ),
        (
            lambda p: paddle.optimizer.SGD(0.1, p, grad_clip=paddle.nn.ClipGradByNorm(1.0)),
            "SGD with grad_clip=",
        ),
        (
            lambda p: paddle.optimizer.SGD(0.1, p, grad_clip=paddle.nn.ClipGradByValue(1.0, 0.0)),
            "SGD with grad_clip=",
        ),
        (lambda p: paddle.optimizer.SGD(0.1, [{"params": p}]), "groups of parameters"),
    ],
)
def test_optimizers_that_servers_do_not_have(make: Any, text: str) -> None:
    dense = paddle.nn.Linear(2, 2)
    with pytest.raises(errors.UnsupportedError, match=text):
        ps.DistributedOptimizer(make(dense.parameters()), dense="server")


@pytest.mark.parametrize(
    ("attribute", "text"),
    [
        (paddle.ParamAttr(learning_rate=0.5), "SGD with learning rates of parameters"),
        (paddle.ParamAttr(regularizer=paddle.regularizer.L2Decay(0.5)), "SGD with regularizers"),
    ],
)
def test_parameters_that_servers_would_treat_alike(attribute: Any, text: str) -> None:
    dense = paddle.nn.Linear(2, 2, weight_attr=attribute)
    with pytest.raises(errors.UnsupportedError, match=text):
        ps.DistributedOptimizer(paddle.optimizer.SGD(0.1, dense.parameters()), dense="server")


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (
            lambda: ps.SparseEmbedding(ROWS, DIM, 11, name="a"),
            errors.ArgumentError,
            "padding_idx=11",
        ),
        (
            lambda: ps.SparseEmbedding(ROWS, DIM, name="a")(paddle.to_tensor([1.0])),
            errors.DtypeError,
            "ids are of paddle.float32",
        ),
        (
            lambda: ps.DistributedOptimizer(paddle.nn.Linear(1, 1)),
            errors.DtypeError,
            "a Linear is no optimizer of Paddle",
        ),
        (
            lambda: ps.DistributedOptimizer(
                ps.DistributedOptimizer(paddle.optimizer.SGD(0.1, [])),
            ),
            errors.ArgumentError,
            "it is one already",
        ),
        (
            lambda: ps.DistributedOptimizer(paddle.optimizer.SGD(0.1, []), dense="x"),
            errors.ArgumentError,
            "dense='x'",
        ),
    ],
)
def test_wrong_arguments(make: Any, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        make()


def test_ids_that_come_and_go() -> None:
    """Rows are made by the second step that has their ids, and make place for later ones."""
    layer = ps.SparseEmbedding(
        None, DIM, 0, name="e", initializer="zeros", admit_after=2, expire_after=50, max_rows=4
    )
    for first in (1, 4):
        ids = paddle.to_tensor([0, first, first + 1, first + 2, first])
        for seen in range(3):
            out = layer(ids)
            assert bool((out == 0).all()) == (seen < 2)
            out.sum().backward()
            ps.step()
        assert len(rows_of(layer).any(1).nonzero()[0]) == (3 if first == 1 else 4)
        assert rows_of(layer)[first : first + 3].all()
    rows = paddle.ones([6, DIM])
    with pytest.raises(errors.ArgumentError, match="embeddings have 6 rows, and max_rows=5"):
        ps.SparseEmbedding.from_pretrained(rows, name="f", max_rows=5)
