"""reduce_scatter and reduce_scatter_tensor."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp
from tensors import Kind, Layout, assert_reduced, every, numbers, numpy_dtype, reduced, reducible

OPS = [ReduceOp.SUM, ReduceOp.MIN, ReduceOp.AVG, ReduceOp.BAND, ReduceOp.PREMUL_SUM(4)]


@pytest.mark.parametrize("op", OPS, ids=str)
def test_list(dist: ModuleType, rank: int, size: int, kind: Kind, op: ReduceOp, run: Any) -> None:
    for dtype, layout in every(kind, reducible(op)):
        # all_parts[r][i] is the part that rank r contributes to rank i's result.
        all_parts = [[numbers(dtype, layout.size, r, i) for i in range(size)] for r in range(size)]
        given = [kind.make(dtype, layout).fill(part) for part in all_parts[rank]]
        before = [tensor.bits() for tensor in given]
        out = kind.make(dtype, layout).fill(numbers(dtype, layout.size, 0))
        run(dist.reduce_scatter, out.given, [tensor.given for tensor in given], op)
        assert_reduced(out.values(), op, [parts[rank] for parts in all_parts])
        assert [tensor.bits() for tensor in given] == before, "the input was written to"


@pytest.mark.parametrize("op", OPS, ids=str)
def test_tensor(dist: ModuleType, rank: int, size: int, kind: Kind, op: ReduceOp, run: Any) -> None:
    for dtype, layout in every(kind, reducible(op)):
        each = layout.size
        room = each * size
        parts = [numbers(dtype, room, "tensor", r) for r in range(size)]
        given = kind.make(dtype, Layout("", (room,), (1,), 0, room)).fill(parts[rank])
        before = given.bits()
        out = kind.make(dtype, layout).fill(numbers(dtype, each, 0))
        run(dist.reduce_scatter_tensor, out.given, given.given, op)
        mine = slice(rank * each, (rank + 1) * each)
        assert_reduced(out.values(), op, [part[mine] for part in parts])
        assert given.bits() == before


def test_uneven(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    for dtype in ("float64", "int8", "bfloat16"):
        all_parts = [[numbers(dtype, 2 * i, r, i) for i in range(size)] for r in range(size)]
        out = np.zeros(2 * rank, numpy_dtype(dtype))
        run(dist.reduce_scatter, out, all_parts[rank])
        assert_reduced(out, ReduceOp.SUM, [parts[rank] for parts in all_parts])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("each", [3, 20_000])
def test_16_bits(dist: ModuleType, rank: int, size: int, dtype: str, each: int) -> None:
    random = np.random.default_rng(each)
    parts = list(random.normal(0, 100, (size, each * size)).astype(numpy_dtype(dtype)))
    out = np.zeros(each, numpy_dtype(dtype))
    dist.reduce_scatter_tensor(out, parts[rank])
    mine = [part[rank * each : (rank + 1) * each] for part in parts]
    np.testing.assert_array_equal(out, reduced(ReduceOp.SUM, mine))


def test_in_a_group(dist: ModuleType, rank: int, size: int, reversed_group: Any) -> None:
    out = np.zeros(1)
    dist.reduce_scatter_tensor(out, np.arange(size, dtype=float), group=reversed_group)
    assert out[0] == size * (size - 1 - rank)
