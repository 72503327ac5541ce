"""broadcast."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from tensors import Kind, every, noise


def test_broadcast(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    for root in range(size):
        for dtype, layout in every(kind):
            tensor = kind.make(dtype, layout).fill(noise(dtype, layout.size, "from", rank))
            run(dist.broadcast, tensor.given, root)
            assert tensor.bits() == noise(dtype, layout.size, "from", root).tobytes()


def test_roots_of_a_group(
    dist: ModuleType, rank: int, size: int, reversed_group: Any, run: Any
) -> None:
    for root in range(size):
        tensor = np.full(4, rank)
        run(dist.broadcast, tensor, root, reversed_group)
        assert (tensor == root).all()
        tensor = np.full(4, rank)
        run(dist.broadcast, tensor, group=reversed_group, group_src=root)
        assert (tensor == size - 1 - root).all()


def test_shapes_may_differ(dist: ModuleType, rank: int) -> None:
    tensor = np.zeros((2, 3) if rank else (6,), np.int16)
    if rank == 0:
        tensor[:] = range(6)
    dist.broadcast(tensor, 0)
    assert tensor.ravel().tolist() == [0, 1, 2, 3, 4, 5]


def test_bigger(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    for elements in (100_000, (1 << 22) + 1):
        wanted = noise("float32", elements, "bigger")
        tensor = wanted.copy() if rank == size - 1 else np.zeros(elements, np.float32)
        run(dist.broadcast, tensor, size - 1)
        assert tensor.tobytes() == wanted.tobytes()
