"""Collectives of ordinary tensors on one node, which go through blocks that all ranks map.

Lengths are around whole windows, so that the last one is short, and some ranks or shares have no
more when others have.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp
from ranks_tools import over_nodes
from tensors import assert_reduced, noise, numbers
from ways import took

WINDOW = 64 << 10  # bytes


def check_way(dist: ModuleType) -> None:
    """Check that the last collective went through the blocks, or was copied at once."""
    if dist.get_world_size() > 1 and not over_nodes():
        assert took(dist) in ("bounce", "cma")


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Any:
    """Call a function of a collective, and wait for its end in one of the two ways."""

    def call(function: Any, *arguments: Any, **named: Any) -> None:
        if request.param:
            function(*arguments, async_op=True, **named).wait()
        else:
            function(*arguments, **named)

    return call


@pytest.mark.parametrize("each", [WINDOW // 4 - 1, WINDOW // 4 + 1, 5 * WINDOW // 4 + 33, 700_001])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX, ReduceOp.PREMUL_SUM(0.5)])
def test_reductions(dist: ModuleType, run: Any, each: int, op: Any) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [numbers("float32", each, "bounce", r) for r in range(size)]
    tensor = parts[rank].copy()
    run(dist.all_reduce, tensor, op)
    check_way(dist)
    assert_reduced(tensor, op, parts)
    root = size - 1
    tensor = parts[rank].copy()
    run(dist.reduce, tensor, root, op)
    check_way(dist)
    if rank == root:
        assert_reduced(tensor, op, parts)
    else:
        np.testing.assert_array_equal(tensor, parts[rank])


@pytest.mark.parametrize("each", [WINDOW - 1, WINDOW + 1, 3 * WINDOW + 5, 2_000_003])
def test_moves(dist: ModuleType, run: Any, each: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [noise("uint8", each, "moves", r) for r in range(size)]
    for root in range(size):
        tensor = parts[rank].copy()
        run(dist.broadcast, tensor, root)
        check_way(dist)
        np.testing.assert_array_equal(tensor, parts[root])
    results = [np.zeros(each, np.uint8) for _ in range(size)]
    run(dist.all_gather, results, parts[rank])
    check_way(dist)
    np.testing.assert_array_equal(results, parts)
    result = np.zeros(each, np.uint8)
    run(dist.scatter, result, parts if rank == size - 1 else None, size - 1)
    check_way(dist)
    np.testing.assert_array_equal(result, parts[rank])


@pytest.mark.parametrize("longest", [WINDOW // 4, 400_000])
def test_shares_of_different_lengths(dist: ModuleType, run: Any, longest: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [[(7 * a + 3 * b) % 5 * longest // 4 for b in range(size)] for a in range(size)]
    sent = [noise("float32", n, "uneven", rank, to) for to, n in enumerate(lengths[rank])]
    expected = [noise("float32", lengths[r][rank], "uneven", r, rank) for r in range(size)]
    results = [np.zeros_like(x) for x in expected]
    run(dist.all_to_all, results, sent)
    check_way(dist)
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def test_a_broadcast_returns_before_the_others_have_it(dist: ModuleType) -> None:
    """Many short broadcasts in a row, from ranks in turn: the giver is ahead by its slots."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = np.empty(5000, np.int32)
    for turn in range(200):
        root = turn // 50 % size
        tensor[:] = turn if rank == root else -1
        dist.broadcast(tensor, root)
        assert (tensor == turn).all()
