"""Exchanges of tensors in device memory with neighbours: halos and graphs."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import test_graph
import test_halo
from tensors import Kind

test_kinds_dtypes_and_strides = test_halo.test_kinds_dtypes_and_strides
test_all_gather_on_a_ring = test_graph.test_all_gather_on_a_ring


@pytest.mark.parametrize("length", [4, 300])
def test_short_and_long_blocks(
    dist: ModuleType, size: int, kind: Kind, length: int, run: Any
) -> None:
    """On every grid, also with this rank as its own neighbour, several times in a row."""
    for dims in test_halo.grids(size, 2):
        cart = dist.Cartesian(dims, periodic=[True, False])
        widths = [(3, 2), (1, 2)]
        start, wanted = test_halo.parts(cart, (length * size, length * size + 1), widths)
        tensor = kind.make("int64", test_halo.packed(start.shape))
        for _ in range(3):
            tensor.fill(start)
            run(cart.halo_exchange, tensor.given, widths)
            np.testing.assert_array_equal(tensor.values(), wanted)


def test_some_ranks_lend_tensors_on_the_host(
    dist: ModuleType, rank: int, size: int, kind: Kind, run: Any
) -> None:
    """Rank 0 has its tensor in the heap, which is lent; the others' are in device memory."""
    for periodic in ([True, False], [True, True]):
        cart = dist.Cartesian([size, 1], periodic=periodic)
        widths = [(3, 2), (1, 2)]
        start, wanted = test_halo.parts(cart, (6 * size, 5001), widths)
        for _ in range(3):
            if rank == 0:
                heap = dist.empty(start.shape, "int64")
                heap[...] = start
                run(cart.halo_exchange, heap, widths)
                np.testing.assert_array_equal(heap, wanted)
                continue
            tensor = kind.make("int64", test_halo.packed(start.shape)).fill(start)
            run(cart.halo_exchange, tensor.given, widths)
            np.testing.assert_array_equal(tensor.values(), wanted)


def test_one_rank_is_wrong(dist: ModuleType, rank: int, size: int, kind: Kind) -> None:
    """The others raise, nothing is written, and the next exchange is right."""
    cart = dist.Cartesian([size], periodic=True)
    start, wanted = test_halo.parts(cart, (4 * size,), [(1, 1)])
    tensor = kind.make("float32", test_halo.packed(start.shape)).fill(start)
    short = kind.make("float32", test_halo.packed((2,))).fill(np.ones(2))
    error = dist.errors.ArgumentError if rank == 0 else dist.errors.RefusedError
    with pytest.raises(error):
        cart.halo_exchange((short if rank == 0 else tensor).given, 1)
    np.testing.assert_array_equal(tensor.values(), start)
    cart.halo_exchange(tensor.given, 1)
    np.testing.assert_array_equal(tensor.values(), wanted)
