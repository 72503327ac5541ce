"""What a rank gives to a test: any rank can tell what any other gave, and so what must come out."""

from __future__ import annotations

from typing import Any

import torch


def whole(rank: int, *shape: int, dtype: Any = torch.float32, key: int = 0) -> Any:
    """A tensor of whole numbers from 1 to 4, other ones for another rank or key.

    Sums and products of a few are exact in every dtype, whatever their order.
    """
    made = torch.randint(1, 5, shape, generator=torch.Generator().manual_seed(100 * rank + key))
    return made.to(dtype)


def real(rank: int, *shape: int, key: int = 0) -> Any:
    """A float32 tensor of normal numbers, other ones for another rank or key."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(7919 * rank + key))


def same(got: Any, wanted: Any) -> None:
    """Assert that two tensors have one dtype, shape and value, to the last bit."""
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)
