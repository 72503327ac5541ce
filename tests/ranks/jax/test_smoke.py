"""The smallest test of all layers together. If it fails, look at it first."""

from __future__ import annotations

from types import ModuleType

import jax.numpy as jnp
import numpy as np


def test_an_array_is_sent(dist: ModuleType, rank: int, size: int) -> None:
    import paddlempi.jax  # noqa: F401

    got = np.empty((size, 5), np.float32)
    dist.all_gather_into_tensor(got, jnp.full((5,), rank + 1.0))
    assert got.tolist() == [[i + 1.0] * 5 for i in range(size)]
