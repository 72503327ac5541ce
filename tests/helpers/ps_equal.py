"""What trainers and servers of a synchronous job do together, computed in one process."""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS, DIM, EACH, STEPS, ROLES = 50, 8, 6, 100, "trainer:2,pserver:2"
WIDTH = 1100  # a weight of this width has two blocks, on both servers


def batch(step: int, trainer: int) -> tuple[Any, Any]:
    """Ids of a batch, some of them twice, and what is wanted: [EACH, 3] and [EACH, 1]."""
    random = np.random.default_rng(1000 * step + trainer)
    return random.integers(0, ROWS, (EACH, 3)), random.random((EACH, 1), np.float32)


def of_rows(ids: Any, gradients: Any) -> tuple[Any, Any]:
    """The rows of a push, each once, with their gradients added up in the order of the batch."""
    flat, rows = ids.reshape(-1), gradients.reshape(-1, DIM)
    total = np.zeros((ROWS, DIM), np.float32)
    for row, gradient in zip(flat, rows, strict=True):
        total[row] += gradient
    return np.unique(flat), total


def added(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The rows of a step: what all trainers push, added up in the order of their ranks."""
    total = np.zeros((ROWS, DIM), np.float32)
    for _, gradients in parts:
        total += gradients
    return np.unique(np.concatenate([rows for rows, _ in parts])), total


def sgd(weights: Any, gradients: Any, rate: float) -> Any:
    """``w - r g`` in float32: NumPy rounds the product, and then the difference."""
    product = np.float32(rate) * gradients.astype(np.float32)
    return (weights.astype(np.float32) - product).astype(np.float32)


class LazyAdam:
    """Adam of the rows of a push alone. The number of the step is that of the push."""

    def __init__(self, rate: float) -> None:
        self.rate, self.step = rate, 0
        self.first, self.second = np.zeros((2, ROWS, DIM))

    def update(self, weights: Any, rows: Any, gradients: Any) -> Any:
        """The weights after a push."""
        self.step += 1
        weights = weights.astype(np.float64)
        part = gradients[rows].astype(np.float64)
        self.first[rows] = 0.9 * self.first[rows] + 0.1 * part
        self.second[rows] = 0.999 * self.second[rows] + 0.001 * part**2
        mean = self.first[rows] / (1 - 0.9**self.step)
        square = self.second[rows] / (1 - 0.999**self.step)
        weights[rows] -= self.rate * mean / (np.sqrt(square) + 1e-8)
        return weights.astype(np.float32)


def compare(name: str, found: dict[str, Any], wanted: dict[str, Any], *, bits: bool) -> None:
    """Fail unless states are equal to the bit, or to 1e-6."""
    assert list(found) == list(wanted), (name, list(found), list(wanted))
    for key, value in wanted.items():
        one, other = np.asarray(found[key]), np.asarray(value)
        assert one.shape == other.shape and one.dtype == other.dtype, (name, key)
        if bits:
            wrong = (one.view(np.int32) != other.view(np.int32)).sum()
            assert not wrong, f"{name}: {key}: {wrong} of {one.size} elements have other bits"
        else:
            far = np.abs(one - other).max()
            assert far <= 1e-6, f"{name}: {key}: {far:.2e} away"
