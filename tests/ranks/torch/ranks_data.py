"""A rank's values: every rank can compute those of all ranks, and so the expected results."""

from __future__ import annotations

from typing import Any

import torch


def whole(rank: int, *shape: int, dtype: Any = torch.float32, key: int = 0) -> Any:
    """Return whole numbers from 1 to 4, different for each rank and key.

    Sums and products of a few of them are exact in every dtype and order.
    """
    made = torch.randint(1, 5, shape, generator=torch.Generator().manual_seed(100 * rank + key))
    return made.to(dtype)


def real(rank: int, *shape: int, key: int = 0) -> Any:
    """Return a float32 tensor of normal numbers, different for each rank and key."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(7919 * rank + key))


def same(got: Any, wanted: Any) -> None:
    """Assert that two tensors have the same dtype, shape and values, to the last bit."""
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)
