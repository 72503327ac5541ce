"""Tensors with more elements than a 32-bit count can hold."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

ELEMENTS = 2**31 + 3

pytestmark = pytest.mark.mpi(ranks=2, timeout=300)


@pytest.fixture(scope="module")
def memory() -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    """2 GiB, allocated once."""
    return np.zeros(ELEMENTS, np.int8)


def mark(memory: np.ndarray[tuple[int], np.dtype[np.int8]], value: int) -> None:
    memory[:] = 1
    memory[[0, 2**31 - 1, 2**31, -1]] = value


def marks(memory: np.ndarray[tuple[int], np.dtype[np.int8]], around: int) -> list[int]:
    """Return the values at the ends and at the 32-bit border. All others must be ``around``."""
    found = memory[[0, 2**31 - 1, 2**31, -1]].tolist()
    # In pieces, because the comparison allocates one byte for every element.
    for first in range(0, ELEMENTS, 1 << 28):
        piece = memory[first : first + (1 << 28)]
        assert np.count_nonzero(piece != around) <= 4
    return [int(value) for value in found]


def test_all_reduce(
    dist: ModuleType, rank: int, memory: np.ndarray[tuple[int], np.dtype[np.int8]]
) -> None:
    mark(memory, 5 + rank)
    dist.all_reduce(memory)
    assert marks(memory, 2) == [11] * 4


def test_broadcast(
    dist: ModuleType, rank: int, memory: np.ndarray[tuple[int], np.dtype[np.int8]]
) -> None:
    mark(memory, 9 - rank)
    dist.broadcast(memory, 0)
    assert marks(memory, 1) == [9] * 4


def test_message(
    dist: ModuleType, rank: int, memory: np.ndarray[tuple[int], np.dtype[np.int8]]
) -> None:
    mark(memory, 7 * (1 - rank))
    if rank == 0:
        dist.send(memory, 1)
    else:
        found = dist.probe(0)
        assert found.nbytes == ELEMENTS
        assert dist.recv(memory, 0) == 0
    assert marks(memory, 1) == [7] * 4


def test_all_gather(
    dist: ModuleType, rank: int, memory: np.ndarray[tuple[int], np.dtype[np.int8]]
) -> None:
    """Uneven: the second part begins below the 32-bit border and ends above it."""
    memory[:] = 0
    cut = 2**31 - 5
    parts = [memory[:cut], memory[cut:]]
    parts[rank][:] = 3 + rank
    dist.all_gather(parts, parts[rank].copy() if rank else parts[0])
    assert memory[[0, cut - 1, cut, -1]].tolist() == [3, 3, 4, 4]
