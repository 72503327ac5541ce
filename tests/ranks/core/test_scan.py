"""scan and exscan: reductions over the ranks up to, or before, this one."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp
from tensors import Kind, assert_reduced, every, numbers, numpy_dtype, reduced, reducible

OPS = [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BOR]


@pytest.mark.parametrize("op", OPS, ids=str)
@pytest.mark.parametrize("exclusive", [False, True], ids=["scan", "exscan"])
def test_scan(
    dist: ModuleType, rank: int, size: int, kind: Kind, op: ReduceOp, exclusive: bool, run: Any
) -> None:
    function = dist.exscan if exclusive else dist.scan
    for dtype, layout in every(kind, reducible(op)):
        parts = [numbers(dtype, layout.size, "scan", r) for r in range(size)]
        tensor = kind.make(dtype, layout).fill(parts[rank])
        before = tensor.bits()
        run(function, tensor.given, op)
        taken = parts[:rank] if exclusive else parts[: rank + 1]
        if taken:
            assert_reduced(tensor.values(), op, taken)
        else:
            assert tensor.bits() == before, "exscan must not write on rank 0"


def test_premul_sum(dist: ModuleType, rank: int, size: int) -> None:
    op = ReduceOp.PREMUL_SUM(0.5)
    parts = [numbers("float32", 9, "premul", r) for r in range(size)]
    tensor = parts[rank].copy()
    dist.scan(tensor, op)
    assert_reduced(tensor, op, parts[: rank + 1])


def test_averages_are_refused(dist: ModuleType) -> None:
    for function in (dist.scan, dist.exscan):
        with pytest.raises(dist.errors.DtypeError, match="AVG"):
            function(np.zeros(3), ReduceOp.AVG)
    dist.barrier()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(dist: ModuleType, rank: int, size: int, dtype: str) -> None:
    parts = list(np.random.default_rng(5).normal(0, 100, (size, 999)).astype(numpy_dtype(dtype)))
    tensor = parts[rank].copy()
    dist.scan(tensor)
    np.testing.assert_array_equal(tensor, reduced(ReduceOp.SUM, parts[: rank + 1]))


def test_in_a_group(dist: ModuleType, rank: int, size: int, reversed_group: Any) -> None:
    tensor = np.array([1 << rank])
    dist.scan(tensor, group=reversed_group)
    assert tensor[0] == sum(1 << r for r in range(rank, size))
