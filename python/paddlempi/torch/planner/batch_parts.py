"""Batches of tensors of torch: ``paddlempi.planner.batches``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...planner import batches

__all__ = ["Loss", "cut", "loss_of", "pair", "rows", "scalar", "shapes"]

Loss = Callable[..., torch.Tensor]

pair = batches.pair


def shapes(batch: Any) -> tuple[Any, ...]:
    """Return what a batch looks like: equal for batches of equal tensors but for the values."""
    return batches.shapes(batch, torch.Tensor)


def rows(batch: Any, function: str) -> int:
    """Return how long the first dimension of a batch is, for ``function``, which errors name."""
    return batches.rows(batch, torch.Tensor, function)


def cut(batch: Any, index: int, count: int, why: str) -> Any:
    """Return part ``index`` of ``count`` equal parts of a batch, which ``why`` cuts."""
    return batches.cut(batch, torch.Tensor, index, count, why)


def loss_of(model: nn.Module, batch: Any, loss: Loss | None) -> torch.Tensor:
    """Run the model's forward on a batch and return its loss, a scalar."""
    return batches.loss_of(model, batch, torch.Tensor, loss)


def scalar(value: Any) -> torch.Tensor:
    """Return the value, which is a loss: one number."""
    return batches.scalar(value, torch.Tensor)
