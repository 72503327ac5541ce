"""Averages of models over all ranks and over nested groups, by ``torch.distributed``."""

from __future__ import annotations

from collections import OrderedDict
from types import ModuleType
from typing import Any

import pytest
import torch
from ranks_data import same, whole
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager,
)
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.distributed.optim import PostLocalSGDOptimizer


def values(rank: int, key: int = 0) -> tuple[Any, Any]:
    return whole(rank, 3, 4, key=key), whole(rank, 5, key=key + 50)


def model(rank: int) -> list[Any]:
    """Return parameters with gradients, because torch averages only those."""
    parameters = [torch.nn.Parameter(value) for value in values(rank)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    return parameters


def mean(every: list[tuple[Any, Any]]) -> list[Any]:
    # Scale first and then add, as torch does.
    return [sum(part / len(every) for part in parts) for parts in zip(*every, strict=True)]


close = torch.testing.assert_close


def test_averaged_once(dist: ModuleType, rank: int, size: int) -> None:
    parameters = model(rank)
    average_parameters(iter(parameters), dist.group.WORLD)
    for got, wanted in zip(parameters, mean([values(r) for r in range(size)]), strict=True):
        close(got.detach(), wanted)


def test_periodic(dist: ModuleType, rank: int, size: int) -> None:
    """Two steps of warm-up, then an average in every third step."""
    averager = PeriodicModelAverager(period=3, warmup_steps=2)
    every = [list(values(r)) for r in range(size)]
    parameters = model(rank)
    for step in range(9):
        for r in range(size):
            every[r] = [value + r + step for value in every[r]]
        with torch.no_grad():
            for parameter in parameters:
                parameter += rank + step
        averager.average_parameters(parameters)
        if step >= 2 and (step - 2) % 3 == 0:
            every = [mean([(a, b) for a, b in every])] * size
        for got, wanted in zip(parameters, every[rank], strict=True):
            close(got.detach(), wanted)


@pytest.mark.mpi([2, 4])
def test_hierarchical(dist: ModuleType, rank: int, size: int) -> None:
    """An average over two neighbours in every second step, over all ranks in every fourth."""
    periods = OrderedDict([(2, 2), (4, size)])
    averager = HierarchicalModelAverager(period_group_size_dict=periods)
    every = [list(values(r)) for r in range(size)]
    parameters = model(rank)
    for step in range(8):
        for r in range(size):
            every[r] = [value + r + step for value in every[r]]
        with torch.no_grad():
            for parameter in parameters:
                parameter += rank + step
        averager.average_parameters(parameters)
        width = size if step % 4 == 0 else 2 if step % 2 == 0 else 1
        for first in range(0, size, width):
            average = mean([(a, b) for a, b in every[first : first + width]])
            every[first : first + width] = [average] * width
        for got, wanted in zip(parameters, every[rank], strict=True):
            close(got.detach(), wanted)


def test_local_sgd(dist: ModuleType, rank: int, size: int) -> None:
    """An optimizer that averages the model after some of its steps. Its state can be saved."""

    def optimizer(parameters: list[Any]) -> Any:
        sgd = torch.optim.SGD(parameters, lr=0.5, momentum=0.5)
        return PostLocalSGDOptimizer(sgd, PeriodicModelAverager(period=2, warmup_steps=1))

    whole_models = [model(r) for r in range(size)]
    sgds = [torch.optim.SGD(parameters, lr=0.5, momentum=0.5) for parameters in whole_models]
    mine = model(rank)
    run = optimizer(mine)
    for step in range(5):
        for r, parameters in enumerate([*whole_models, mine]):
            for key, parameter in enumerate(parameters):
                owner = rank if r == size else r
                parameter.grad = whole(owner, *parameter.shape, key=10 * step + key)
        for sgd in sgds:
            sgd.step()
        run.step()
        if step >= 1 and (step - 1) % 2 == 0:
            with torch.no_grad():
                for parameters in zip(*whole_models, strict=True):
                    average = sum(p / size for p in parameters)
                    for parameter in parameters:
                        parameter.copy_(average)
        for got, wanted in zip(mine, whole_models[rank], strict=True):
            close(got.detach(), wanted.detach())
        if step == 2:  # a new optimizer goes on from the saved state
            kept = run.state_dict()
            run = optimizer(mine)
            run.load_state_dict(kept)
    assert run.averager.step == 5


def test_same_on_all_ranks(dist: ModuleType, rank: int, size: int) -> None:
    parameters = model(rank)
    average_parameters(iter(parameters), dist.group.WORLD)
    every: list[Any] = [None] * size
    dist.all_gather_object(every, [parameter.detach() for parameter in parameters])
    for other in every:
        for got, wanted in zip(other, parameters, strict=True):
            same(got, wanted.detach())
