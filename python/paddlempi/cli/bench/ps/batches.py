"""Batches of Zipf ids, their gradients, and what an update should do to rows."""

from __future__ import annotations

from typing import Any

__all__ = ["RATE", "Batches", "moved_right"]

RATE = 0.01
"""The learning rate of all updates."""

BATCHES = 4  # in turn


class Batches:
    """The ids and gradients of the present size of a batch.

    The ids are of a Zipf distribution (exponent 1.05), whose ranks are spread over the ids at
    random.

    Args:
        np: the module numpy, which only a benchmark that runs imports.
        seed: of the ids and gradients.
        rows: ids are below it.
        dim: of the gradients.
        most: ids of a batch.
    """

    def __init__(self, np: Any, seed: int, rows: int, dim: int, most: int) -> None:
        self.np, self.rows, self.dim = np, rows, dim
        self._generator = generator = np.random.default_rng(seed)
        weights = 1 / np.arange(1, rows + 1) ** 1.05
        self._sums = np.cumsum(weights / weights.sum())
        self._of_rank = generator.permutation(rows)
        self.gradients = generator.normal(size=(most, dim)).astype(np.float32)
        self.ids: list[Any] = []
        self.batch = 0

    def draw(self, batch: int) -> None:
        """Draw the batches of ids."""
        self.batch = batch
        self.ids = [self._drawn(batch) for _ in range(BATCHES)]

    def every(self, batch: int) -> None:
        """Have one batch, of all ids below ``batch``."""
        self.batch, self.ids = batch, [self.np.arange(batch)]

    def _drawn(self, batch: int) -> Any:
        rank = self.np.searchsorted(self._sums, self._generator.random(batch))
        return self._of_rank[self.np.minimum(rank, self.rows - 1)].astype(self.np.int64)

    def ids_of(self, round_: int) -> Any:
        return self.ids[round_ % len(self.ids)]

    def gradient(self) -> Any:
        return self.gradients[: self.batch]

    def case(self) -> dict[str, int]:
        """Return what tells this batch from others."""
        unique = len(self.np.unique(self.ids[0]))
        return {"dim": self.dim, "ids": self.batch, "unique": unique}


def moved_right(batches: Batches, moved: Any, adagrad: bool = False) -> bool:
    """Whether an update with the first batch has moved the rows of its ids as it should."""
    np = batches.np
    unique, place = np.unique(batches.ids[0], return_inverse=True)
    sums = np.zeros((len(unique), batches.dim))
    np.add.at(sums, place, batches.gradient())
    step = -RATE * sums[place]
    if not adagrad:
        return bool(np.allclose(moved, step, rtol=1e-3, atol=1e-4))
    length = np.linalg.norm(moved, axis=1)  # at most the learning rate's; the direction is known
    most = RATE * batches.dim**0.5 * (1 + 1e-3) + 1e-6
    right = (length <= most).all() and (length > 0).all()
    cosine = (moved * step).sum(1) / length / np.linalg.norm(step, axis=1)
    return bool(right and cosine.min() > 0.99)
