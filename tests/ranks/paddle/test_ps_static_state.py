"""What the optimizers of a static program have goes to one process, and comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import paddle
import pytest
from paddlempi import errors, ps
from paddlempi.testing import World
from ps_roles import BOTH

pytestmark = pytest.mark.mpi(ranks=[2])

ROWS, DIM, HALF = 8, 3, 4


@pytest.fixture(autouse=True)
def legacy(mpi_world: World) -> Iterator[None]:
    with paddle.pir_utils.OldIrGuard():
        yield
    ps.shutdown()


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Names and a scope that other programs do not see."""
    scope = paddle.static.scope_guard(paddle.static.Scope())
    with paddle.base.unique_name.guard(), scope:
        yield


class Built:
    """A program with a table and a dense layer. Its loss is the sum of those of some batches."""

    def __init__(self, kind: str, count: int) -> None:
        self.main, self.startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(self.main, self.startup):
            self.loss = paddle.add_n([self.loss_of(number) for number in range(count)])
            pairs = paddle.static.append_backward(self.loss)
            rows = [pair for pair in pairs if pair[0].name == "words"]
            dense = [pair for pair in pairs if pair[0].name != "words"]
            if kind == "adam":
                paddle.optimizer.Adam(0.01, lazy_mode=True).apply_gradients(rows)
                paddle.optimizer.Adam(0.01, epsilon=1e-3).apply_gradients(dense)
            else:
                paddle.optimizer.Adagrad(0.05, initial_accumulator_value=0.1).apply_gradients(rows)
                paddle.optimizer.Momentum(0.01).apply_gradients(dense)
        self.executor = paddle.static.Executor()

    @staticmethod
    def loss_of(number: int) -> Any:
        ids = paddle.static.data(f"ids{number}", [None, 2], "int64")
        rows = paddle.static.nn.embedding(
            ids, (ROWS, DIM), is_sparse=True, param_attr=paddle.ParamAttr(name="words")
        )
        weight, bias = paddle.ParamAttr(name="up"), paddle.ParamAttr(name="shift")
        out = paddle.static.nn.fc(paddle.mean(rows, 1), 2, weight_attr=weight, bias_attr=bias)
        return paddle.mean(paddle.square(out - 1))

    def train(self, begin: int, end: int, ranks: list[int]) -> None:
        for step in range(begin, end):
            ids = [np.array([[rank, step % ROWS], [2, rank]]) for rank in ranks]
            feed = {f"ids{number}": one for number, one in enumerate(ids)}
            self.executor.run(self.main, feed=feed, fetch_list=[self.loss.name])


def arrays(names: Any) -> dict[str, Any]:
    scope = paddle.static.global_scope()
    return {name: np.array(scope.find_var(name).get_tensor()) for name in names}


def close(found: Any, wanted: Any, by: float) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, by, by / 10, err_msg=name)


@pytest.mark.parametrize("kind", ["adagrad", "adam"])
def test_to_one_process_and_back(rank: int, size: int, kind: str) -> None:
    with apart():
        built = Built(kind, 1)
        plan = ps.transpile(built.main, built.startup, BOTH, average=False)
        built.executor.run(built.startup)
        start = plan.state_dict(optimizer=True)
        built.train(0, HALF, [rank])
        ps.barrier()
        there = plan.state_dict(optimizer=True)
        assert set(plan.state_dict()) == {"words", "up", "shift"} < set(there) == set(start)
        ps.barrier()
        built.train(HALF, 2 * HALF, [rank])
        ps.barrier()
        stayed = plan.state_dict(optimizer=True)
        ps.barrier()
        plan.set_state_dict(there if rank == 0 else start, optimizer=True)
        close(plan.state_dict(optimizer=True), there, 0)
        built.train(HALF, 2 * HALF, [rank])
        ps.barrier()
        close(plan.state_dict(optimizer=True), stayed, 0)
        lacking = {name: value for name, value in there.items() if "words_moment" not in name}
        with pytest.raises(errors.ArgumentError, match=r"no 'words_moment\w*', of parameter"):
            plan.set_state_dict(lacking, optimizer=True)
        with pytest.raises(errors.ArgumentError, match=r"moment.* is none of the program"):
            plan.set_state_dict(there)
        short = {name: value[:1] for name, value in there.items()}
        with pytest.raises(errors.UnsupportedError, match="is of another shape"):
            plan.set_state_dict(short, optimizer=True)
    ps.barrier()
    if kind == "adam":
        return  # of sparse gradients Paddle's takes the powers of the next step
    with apart():
        single = Built(kind, size)
        single.executor.run(single.startup)
        single.main.set_state_dict(start)
        single.train(0, HALF, list(range(size)))
        close(arrays(there), there, 1e-4)
    with apart():
        single = Built(kind, size)
        single.executor.run(single.startup)
        single.main.set_state_dict(there)
        single.train(HALF, 2 * HALF, list(range(size)))
        close(arrays(stayed), stayed, 1e-4)
