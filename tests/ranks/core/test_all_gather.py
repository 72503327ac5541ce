"""all_gather, even and uneven, and all_gather_into_tensor."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tensors import FLAT, LAYOUTS, Kind, Layout, every, noise


def test_all_gather(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    for dtype, layout in every(kind):
        sent = [noise(dtype, layout.size, "all_gather", r) for r in range(size)]
        tensor = kind.make(dtype, layout).fill(sent[rank])
        outs = [kind.make(dtype, layout).fill(noise(dtype, layout.size, 0)) for _ in range(size)]
        run(dist.all_gather, [out.given for out in outs], tensor.given)
        assert [out.bits() for out in outs] == [part.tobytes() for part in sent]
        assert tensor.bits() == sent[rank].tobytes()


def test_into_tensor(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    for dtype, layout in every(kind):
        sent = [noise(dtype, layout.size, "into", r) for r in range(size)]
        tensor = kind.make(dtype, layout).fill(sent[rank])
        room = layout.size * size
        wholes = [
            Layout("concatenated", (room,), (1,), 0, room),
            Layout("strided", (size, layout.size), (layout.size + 2, 1), 0, room + 2 * size),
        ]
        for whole in wholes[: 2 if layout.size > 1 else 1]:
            out = kind.make(dtype, whole).fill(noise(dtype, room, 0))
            run(dist.all_gather_into_tensor, out.given, tensor.given)
            assert out.bits() == b"".join(part.tobytes() for part in sent)


def test_uneven(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    for dtype in kind.dtypes(["float32", "uint8", "bfloat16", "complex128"]):
        for counts in ([3 * r for r in range(size)], [size - r for r in range(size)]):
            sent = [noise(dtype, count, "uneven") for count in counts]
            outs = [
                kind.make(dtype, Layout("", (count,), (1,), 0, count)).fill(noise(dtype, count, 0))
                for count in counts
            ]
            tensor = kind.make(dtype, Layout("", (counts[rank],), (1,), 0, counts[rank]))
            tensor.fill(sent[rank])
            run(dist.all_gather, [out.given for out in outs], tensor.given)
            assert [out.bits() for out in outs] == [part.tobytes() for part in sent]


@pytest.mark.mpi(min=2)
def test_uneven_that_does_not_fit(dist: ModuleType, rank: int, size: int) -> None:
    outs = [np.zeros(5 if rank else 4) for _ in range(size)]
    with pytest.raises(dist.Error):
        dist.all_gather(outs, np.zeros(4))
    dist.barrier()


def test_order_in_a_group(dist: ModuleType, rank: int, size: int, reversed_group: Any) -> None:
    out = np.zeros(size, np.int32)
    dist.all_gather_into_tensor(out, np.array([rank], np.int32), reversed_group)
    assert out.tolist() == list(range(size - 1, -1, -1))


def test_one_layout_into_another(dist: ModuleType, rank: int, size: int, kind: Kind) -> None:
    for layout in LAYOUTS:
        if layout.size != 6:
            continue
        sent = noise("float32", 6, "other")
        tensor = kind.make("float32", LAYOUTS[2]).fill(sent)
        outs = [kind.make("float32", layout).fill(noise("float32", 6)) for _ in range(size)]
        dist.all_gather([out.given for out in outs], tensor.given)
        assert all(out.bits() == sent.tobytes() for out in outs)
    assert FLAT.size == 7
