"""reduce: the root gets the result; the tensors of the other ranks do not change."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp
from tensors import Kind, assert_reduced, every, numbers, numpy_dtype, reduced, reducible


@pytest.mark.parametrize(
    "op", [ReduceOp.SUM, ReduceOp.MAX, ReduceOp.AVG, ReduceOp.BXOR, ReduceOp.PREMUL_SUM(2)], ids=str
)
def test_reduce(dist: ModuleType, rank: int, size: int, kind: Kind, op: ReduceOp, run: Any) -> None:
    root = size - 1
    for dtype, layout in every(kind, reducible(op)):
        parts = [numbers(dtype, layout.size, "reduce", r) for r in range(size)]
        tensor = kind.make(dtype, layout).fill(parts[rank])
        before = tensor.bits()
        run(dist.reduce, tensor.given, root, op)
        if rank == root:
            assert_reduced(tensor.values(), op, parts)
        else:
            assert tensor.bits() == before


def test_roots_of_a_group(
    dist: ModuleType, rank: int, size: int, reversed_group: Any, run: Any
) -> None:
    for root in range(size):
        tensor = np.full(4, rank + 1)
        run(dist.reduce, tensor, root, group=reversed_group)
        assert (tensor == (size * (size + 1) // 2 if rank == root else rank + 1)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("elements", [3, 50_000])
def test_16_bits(dist: ModuleType, rank: int, size: int, dtype: str, elements: int) -> None:
    random = np.random.default_rng(elements)
    parts = list(random.normal(0, 100, (size, elements)).astype(numpy_dtype(dtype)))
    tensor = parts[rank].copy()
    dist.reduce(tensor, 0)
    np.testing.assert_array_equal(tensor, parts[rank] if rank else reduced(ReduceOp.SUM, parts))
