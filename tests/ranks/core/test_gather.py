"""gather and scatter."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from tensors import Kind, every, noise


def test_gather(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    root = size - 1
    for dtype, layout in every(kind):
        sent = [noise(dtype, layout.size, "gather", r) for r in range(size)]
        tensor = kind.make(dtype, layout).fill(sent[rank])
        outs = []
        if rank == root:
            outs = [
                kind.make(dtype, layout).fill(noise(dtype, layout.size, 0)) for _ in range(size)
            ]
        run(dist.gather, tensor.given, [out.given for out in outs] or None, root)
        if rank == root:
            assert [out.bits() for out in outs] == [part.tobytes() for part in sent]
        assert tensor.bits() == sent[rank].tobytes()


def test_scatter(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    root = size - 1
    for dtype, layout in every(kind):
        sent = [noise(dtype, layout.size, "scatter", r) for r in range(size)]
        out = kind.make(dtype, layout).fill(noise(dtype, layout.size, 0))
        given = [kind.make(dtype, layout).fill(part) for part in sent] if rank == root else []
        run(dist.scatter, out.given, [tensor.given for tensor in given] or None, root)
        assert out.bits() == sent[rank].tobytes()


def test_default_root(dist: ModuleType, rank: int, size: int, reversed_group: Any) -> None:
    # The default root is global rank 0, the last rank of this group.
    tensor = np.array([rank])
    outs = [np.zeros(1, int) for _ in range(size)] if rank == 0 else None
    dist.gather(tensor, outs, group=reversed_group)
    if outs is not None:
        assert [int(out[0]) for out in outs] == list(range(size - 1, -1, -1))
    dist.scatter(tensor, outs, group=reversed_group)
    assert tensor[0] == rank


def test_roots_of_a_group(dist: ModuleType, rank: int, size: int, reversed_group: Any) -> None:
    for root in range(size):
        mine = size - 1 - rank == root
        outs = [np.zeros(1, int) for _ in range(size)] if mine else None
        dist.gather(np.array([rank]), outs, group=reversed_group, group_dst=root)
        if outs is not None:
            assert [int(out[0]) for out in outs] == list(range(size - 1, -1, -1))
        taken = np.zeros(1, int)
        dist.scatter(taken, outs, group=reversed_group, group_src=root)
        assert taken[0] == rank
