"""The part of an elastic job whose states are divided, without a death: it builds itself again."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import paddlempi
import pytest
from paddlempi import errors
from paddlempi.elasticity.lost import StateLost
from paddlempi.paddle import Sharded
from paddlempi.paddle.parts import shards
from paddlempi.paddle.parts.optimizers import Optimizer


@pytest.fixture(params=[0, 1, 2], ids=["whole", "zero 1", "zero 2"])
def level(request: pytest.FixtureRequest, dist: ModuleType) -> Iterator[int]:
    context = paddlempi.get_context()
    context.enable_data_parallel, context.zero_opt_level = True, request.param
    yield request.param
    context.enable_data_parallel, context.zero_opt_level = False, 0


class Job:
    """What the part asks of a job."""

    parts: tuple[Any, ...] = ()
    done = generation = 0


def build() -> tuple[Any, ...]:
    layers = [paddle.nn.Linear(6, 8), paddle.nn.BatchNorm1D(8), paddle.nn.Linear(8, 3)]
    model = paddle.nn.Sequential(*layers)
    rate = paddle.optimizer.lr.StepDecay(0.1, 2, gamma=0.5)
    return model, paddle.optimizer.AdamW(rate, parameters=model.parameters()), rate


def step(part: Sharded, job: Job) -> None:
    part.before()
    x = paddle.to_tensor(np.random.default_rng(job.done).random((4, 6), "float32"))
    part.model(x).square().mean().backward()
    part.optimizer.step()
    part.optimizer.clear_grad()
    part.scheduler.step()
    job.done += 1


def made(job: Job, every: int) -> Sharded:
    part = Sharded(build, every=every)
    joins(part, job)
    return part


def joins(part: Sharded, job: Job) -> int | None:
    part.reformed(job)
    part.share(0)
    return part.settled()


def values(part: Sharded) -> list[Any]:
    """Return parameters, buffers and all states, in the order of the model."""
    states = [x for x in part.optimizer.state_dict().values() if paddle.is_tensor(x)]
    return [tensor.numpy() for tensor in (*part.model.state_dict().values(), *states)]


def test_as_before(dist: ModuleType, level: int, rank: int, size: int) -> None:
    """The last rank is a replacement: it has nothing, and its layers have other names."""
    job = Job()
    part = made(job, every=2)
    wanted = {}
    for _ in range(5):
        step(part, job)
        wanted[job.done] = values(part)
    job.generation += 1
    if rank == size - 1 > 0:
        part = Sharded(build, every=2)
        paddle.nn.Linear(1, 1)
    last = 4 if level and size > 1 else 5  # a copy was taken before the step that is lost
    assert joins(part, job) == last
    found = values(part)
    assert len(found) == len(wanted[last]) == 6 + 2 + 6 * 4
    assert all((a == b).all() for a, b in zip(found, wanted[last], strict=True))
    assert part.optimizer.get_lr() == 0.025
    job.done = last
    for _ in range(6 - last):
        step(part, job)
    assert part.optimizer.get_lr() == 0.0125


def test_without_copies(dist: ModuleType, level: int, rank: int, size: int) -> None:
    """States are lost with their owner; what every rank has is not."""
    job = Job()
    part = made(job, every=0)
    for _ in range(2):
        step(part, job)
    job.generation += 1
    if size > 1 and rank == 0:
        part = Sharded(build, every=0)
    if size > 1 and level:
        with pytest.raises(StateLost, match=rf"the {size} ranks of this world have no step whole"):
            joins(part, job)
    else:
        assert joins(part, job) == 2


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "bool"])
def test_pieces_are_the_memory_of_tensors(dtype: str) -> None:
    for shape in ([2, 3], [], [0, 3]):
        tensor = paddle.ones(shape).astype(dtype)
        box, array = shards._piece(tensor)
        assert box.dtype == dtype and box.shape == box.size == array.shape == tuple(shape)
        array[...] = 0
        assert not tensor.astype("float32").numpy().any()
    with pytest.raises(errors.UnsupportedError, match="it must be contiguous"):
        shards._piece(paddle.ones([2, 3]).astype(dtype).t())


def test_what_it_does_not_take(dist: ModuleType) -> None:
    model = paddle.nn.Linear(2, 2)
    other = paddle.nn.Linear(2, 2)
    for optimizer, text in (
        (paddle.optimizer.LBFGS(parameters=model.parameters()), "LBFGS has a state"),
        (object(), "the optimizer is a object"),
        (paddle.optimizer.SGD(parameters=other.parameters()), "parameter 0 of the optimizer"),
    ):
        with pytest.raises(errors.UnsupportedError, match=text):
            Sharded(lambda of=optimizer: (model, of)).reformed(Job())  # type: ignore[misc]
    with pytest.raises(errors.DtypeError, match="build returned 1 objects"):
        Sharded(lambda: (model,)).reformed(Job())
    with pytest.raises(errors.ArgumentError, match="every=-1"):
        Sharded(build, every=-1)


def test_a_divided_optimizer_alone_is_refused(dist: ModuleType, level: int) -> None:
    _, optimizer, _ = build()
    if level:
        with pytest.raises(errors.UnsupportedError, match=r"attach paddlempi\.paddle\.Sharded"):
            Optimizer(optimizer)
    else:
        assert Optimizer(optimizer).whole()
