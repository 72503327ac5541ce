"""Tiny models, their data, and the training of the same model in one process.

The tests train on several ranks, each rank on its part of a batch. They compare the parameters
with those of one process that trains on the whole batch. Both agree to float rounding. The models
are in float64 by default, so that rounding is far smaller than any error.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

__all__ = [
    "FEATURES",
    "ROWS",
    "STEPS",
    "BatchNormed",
    "Branches",
    "Net",
    "Words",
    "agree",
    "alone",
    "batches",
    "close",
    "loss_of",
    "part",
    "seeded",
    "spoilt",
    "train",
]

FEATURES = 6
CLASSES = 3
ROWS = 24
"""Rows of a batch: parts of 2, 3 and 4 ranks are equal."""

STEPS = 3

Loss = Callable[[nn.Module, int, int], torch.Tensor]
"""The loss of a model in a step on a rank's part of the batch."""


def seeded(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float64) -> nn.Module:
    """Return a model with the same parameters on every rank and in every call."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return make().to(dtype)


class Net(nn.Module):
    """Three layers, the middle layer twice as wide. It has several buckets if they are small."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.middle = nn.Linear(width, 2 * width)
        self.last = nn.Linear(2 * width, CLASSES, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


class Branches(nn.Module):
    """Two branches, of which a forward uses one, and a parameter that no forward uses."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(FEATURES, 8)
        self.branches = nn.ModuleList([nn.Linear(8, CLASSES), nn.Linear(8, CLASSES)])
        self.unused = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor, branch: int) -> torch.Tensor:
        return self.branches[branch](torch.tanh(self.stem(x)))


class BatchNormed(nn.Module):
    """A model with float buffers and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


class Words(nn.Module):
    """An embedding whose gradient may be sparse, and a dense layer."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 4, sparse=sparse)
        self.last = nn.Linear(4, CLASSES)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last(self.embedding(words))


def batches(
    step: int, rows: int = ROWS, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the whole batch of a step, ``[rows, FEATURES]``, and targets ``[rows, CLASSES]``."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(rows, FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randn(rows, CLASSES, generator=generator, dtype=torch.float64)
    return x.to(dtype), y.to(dtype)


def part(tensor: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """Return a rank's part of the rows. All parts are equal."""
    return tensor.chunk(size)[rank]


def loss_of(size: int, dtype: torch.dtype = torch.float64) -> Loss:
    """Return the mean square error of a rank's part. Its mean over the ranks is the batch's."""

    def loss(model: nn.Module, step: int, rank: int) -> torch.Tensor:
        x, y = (part(t, rank, size) for t in batches(step, dtype=dtype))
        return nn.functional.mse_loss(model(x), y)

    return loss


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with momentum, so that a wrong gradient of any step shows at the end."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(
    model: nn.Module,
    loss: Loss,
    rank: int,
    optimizer: torch.optim.Optimizer | None = None,
    steps: Iterable[int] = range(STEPS),
) -> nn.Module:
    """Train for some steps on this rank's part of the data."""
    optimizer = sgd(model) if optimizer is None else optimizer
    for step in steps:
        optimizer.zero_grad()
        loss(model, step, rank).backward()
        optimizer.step()
    return model


def alone(
    model: nn.Module,
    loss: Loss,
    size: int,
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    steps: Iterable[int] = range(STEPS),
) -> nn.Module:
    """Return the model after the same steps in one process, on the mean of all parts' losses."""
    model = copy.deepcopy(model)
    optimizer = make_optimizer(model)
    for step in steps:
        optimizer.zero_grad()
        for rank in range(size):
            loss(model, step, rank).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= size  # not in the loss, because that would round differently
        optimizer.step()
    return model


def close(
    got: nn.Module | Iterable[Any], expected: nn.Module | Iterable[Any], **tolerance: float
) -> None:
    """Assert that parameters or tensors are equal to rounding."""
    mine, theirs = (
        list(x.parameters()) if isinstance(x, nn.Module) else list(x) for x in (got, expected)
    )
    assert len(mine) == len(theirs) > 0
    if not tolerance:
        tolerance = {"rtol": 1e-10, "atol": 1e-12}
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), **tolerance)


def agree(dist: ModuleType, tensors: nn.Module | Iterable[Any], group: Any = None) -> None:
    """Assert that the tensors of all ranks are equal to the bit."""
    own = list(tensors.parameters()) if isinstance(tensors, nn.Module) else list(tensors)
    bits = [t.detach().flatten().view(torch.uint8).tolist() for t in own]
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, bits, group=group)
    for rank, theirs in enumerate(everyone):
        assert theirs == bits, f"other bits on rank {rank} of the group"


@contextmanager
def spoilt(monkeypatch: pytest.MonkeyPatch, method: str, on_rank: int) -> Iterator[None]:
    """Make the group's ``method`` spoil the last element of its output on one rank."""
    from paddlempi.torch import ProcessGroupMPI

    right = getattr(ProcessGroupMPI, method)

    def wrong(group: Any, *arguments: Any, **named: Any) -> Any:
        work = right(group, *arguments, **named)
        if group.rank() == on_rank:
            work.wait()
            output = arguments[0]
            while isinstance(output, list):
                output = output[-1]
            output.view(-1)[-1] += 0.25
        return work

    with monkeypatch.context() as patch:
        for name in dir(ProcessGroupMPI):  # an older torch calls it by another name
            if inspect.unwrap(getattr(ProcessGroupMPI, name)) is inspect.unwrap(right):
                patch.setattr(ProcessGroupMPI, name, wrong)
        yield
