"""Paddle's layer and static programs make rows where they train, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from paddlempi import _native, errors, ps
from paddlempi.paddle import mpi_recv, mpi_send
from paddlempi.testing import World
from ps_fake import PsCore, ps_core

__all__ = ["ps_core"]

pytestmark = pytest.mark.mpi(ranks=2)

DIM = 3


def rows_of(table: ps.RemoteTable) -> int:
    """How many rows a table of the fake has."""
    rows: int = _native.control("table_info", table=table._number)["rows"]
    return rows


def in_eval(layer: Any, ids: Any) -> Any:
    layer.eval()
    try:
        return layer(ids)
    finally:
        layer.train()


def without_gradients(layer: Any, ids: Any) -> Any:
    with paddle.no_grad():
        return layer(ids)


def frozen(layer: Any, ids: Any) -> Any:
    layer.frozen = True
    try:
        return layer(ids)
    finally:
        layer.frozen = False


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", [in_eval, without_gradients, frozen])
def test_evaluation_makes_no_rows(ps_core: PsCore, way: Callable[..., Any], dtype: str) -> None:
    ps.init()

    def make(**more: Any) -> Any:
        return ps.SparseEmbedding(None, DIM, name="e", optimizer=ps.SGD(1.0), dtype=dtype, **more)

    layer, ids = make(), paddle.to_tensor([[5, -2], [5, 2**61]])
    looked = way(layer, ids).numpy()
    assert rows_of(layer.table) == 0
    assert (layer(ids).numpy() == looked).all()  # the row is made as the lookup has said
    assert rows_of(layer.table) == 3
    zeros = make(missing="zeros")
    found = way(zeros, paddle.to_tensor([5, 77])).numpy()
    assert (found[0] == looked[0, 0]).all() and (found[1] == 0).all()
    assert rows_of(layer.table) == 3
    with pytest.raises(errors.ArgumentError, match="SparseEmbedding: missing='no' is none of"):
        make(missing="no")


def test_prefetches_and_steps(ps_core: PsCore) -> None:
    ps.init()
    layer = ps.SparseEmbedding(
        None, DIM, name="e", optimizer=ps.SGD(1.0), missing="zeros", initializer="uniform"
    )
    ids = paddle.to_tensor([4, 9])
    with paddle.no_grad():
        layer.prefetch(ids).wait()
    rows = layer(ids)  # it makes them: the prefetch has zeros
    assert (rows.numpy() != 0).all() and rows_of(layer.table) == 2
    layer.prefetch(ids).wait()
    assert (in_eval(layer, ids).numpy() == rows.numpy()).all()
    layer.eval()
    out = layer(paddle.to_tensor([30]))
    assert (out.numpy() == 0).all() and rows_of(layer.table) == 2
    out.sum().backward()  # Paddle's layer has a gradient in eval(); a push makes rows
    ps.step()
    fresh = ps.Table(DIM, initializer="uniform").pull(np.array([30]))
    assert (layer(paddle.to_tensor([30])).numpy() == fresh - 1).all()


@pytest.fixture
def legacy(mpi_world: World) -> Iterator[None]:
    scope = paddle.static.scope_guard(paddle.static.Scope())
    with paddle.pir_utils.OldIrGuard(), paddle.base.unique_name.guard(), scope:
        yield


@pytest.mark.parametrize("missing", [None, "zeros"])
def test_static_programs(legacy: None, missing: str | None) -> None:
    """A clone for tests makes no rows; ``missing`` says so of the program itself."""
    ps.init("trainer+pserver:*", timeout=30)
    try:
        users = ps.RemoteTable("users", DIM, ps.SGD(1.0), ps.Normal(), seed=3)
        wanted = ps.Table(DIM, ps.SGD(1.0), ps.Normal(), seed=3)
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            ids = paddle.static.data("ids", [None], "int64")
            (rows,) = mpi_recv([(users, ids)], missing=missing)
            loss = paddle.mean(rows)
            early = main.clone(for_test=True)
            gradient = paddle.static.gradients(loss, rows)[0]
            mpi_send([(users, ids, gradient)])
            with pytest.raises(errors.ArgumentError, match="missing='no'"):
                mpi_recv([(users, ids)], missing="no")
        executor = paddle.static.Executor()

        def run(program: Any, *ids: int) -> Any:
            feed = {"ids": np.array(ids)}
            return executor.run(program, feed=feed, fetch_list=[rows.name])[0]

        given = np.array([7, -3])
        before = np.zeros((2, DIM), np.float32) if missing else wanted.pull(given)
        for program in (early, main.clone(for_test=True), main.clone(for_test=True).clone()):
            assert (run(program, *given) == before).all()
        ps.barrier()
        assert len(users) == 0
        ps.barrier()
        assert (run(main, *given) == before).all()
        ps.barrier()
        assert len(users) == 2  # the step has made them
        after = run(early, 7, -3, 90)
        assert (after[:2] == users.pull(given)).all()
        assert (after[2] == (0 if missing else wanted.pull(np.array([90]))[0])).all()
        ps.barrier()
        assert len(users) == 2
        assert run(main.clone(), 91).shape == (1, DIM)
        ps.barrier()
        assert len(users) == 3
    finally:
        ps.shutdown()


def test_programs_that_a_plan_has_rewritten(legacy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """They look up in tests, also one that was cloned before; in training they pull."""
    from paddlempi.paddle import static_operators

    asked: list[Any] = []

    def pull(requests: Any, *, missing: Any) -> Any:
        asked.append(missing)
        return ps.pull(requests, missing=missing)

    monkeypatch.setattr(static_operators, "pull", pull)
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        ids = paddle.static.data("ids", [None], "int64")
        rows = paddle.static.nn.embedding(ids, (9, DIM), is_sparse=True)
        loss = paddle.mean(rows)
        early = main.clone(for_test=True)
        paddle.optimizer.SGD(0.1).minimize(loss)
    try:
        plan = ps.transpile(main, startup, "trainer+pserver:*")
        executor = paddle.static.Executor()
        executor.run(startup)
        for program in (main, main.clone(for_test=True), plan.adopt(early)):
            executor.run(program, feed={"ids": np.arange(4)}, fetch_list=[loss])
        assert asked == [None, "initial", "initial"]
    finally:
        ps.shutdown()
