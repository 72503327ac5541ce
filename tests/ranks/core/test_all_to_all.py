"""all_to_all and all_to_all_single."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tensors import Kind, Layout, every, noise


def row(count: int, width: int = 1) -> Layout:
    """A contiguous matrix."""
    return Layout("", (count, width), (width, 1), 0, count * width)


def test_list(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    for dtype, layout in every(kind):
        given = [
            kind.make(dtype, layout).fill(noise(dtype, layout.size, rank, to)) for to in range(size)
        ]
        outs = [kind.make(dtype, layout).fill(noise(dtype, layout.size, 0)) for _ in range(size)]
        run(dist.all_to_all, [out.given for out in outs], [tensor.given for tensor in given])
        for source, out in enumerate(outs):
            assert out.bits() == noise(dtype, layout.size, source, rank).tobytes()
        for to, tensor in enumerate(given):
            assert tensor.bits() == noise(dtype, layout.size, rank, to).tobytes()


def test_uneven_list(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    given = [noise("int64", rank + 2 * to, rank, to) for to in range(size)]
    outs = [np.zeros(source + 2 * rank, np.int64) for source in range(size)]
    run(dist.all_to_all, outs, given)
    for source, out in enumerate(outs):
        assert out.tobytes() == noise("int64", source + 2 * rank, source, rank).tobytes()


def test_single(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    for dtype in kind.dtypes(["float32", "bool", "bfloat16", "complex128", "float8_e5m2"]):
        layout = row(2 * size, 3)
        sent = [noise(dtype, layout.size, "single", r).reshape(size, 6) for r in range(size)]
        tensor = kind.make(dtype, layout).fill(sent[rank])
        out = kind.make(dtype, layout).fill(noise(dtype, layout.size, 0))
        run(dist.all_to_all_single, out.given, tensor.given)
        assert out.bits() == b"".join(part[rank].tobytes() for part in sent)


def test_single_with_splits(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    def count(source: int, to: int) -> int:
        return (source + 2 * to) % 3

    for dtype in kind.dtypes(["float32", "int8", "bfloat16"]):
        for width in (1, 4):
            sends = [count(rank, to) for to in range(size)]
            receives = [count(source, rank) for source in range(size)]
            parts = [noise(dtype, n * width, rank, to) for to, n in enumerate(sends)]
            tensor = kind.make(dtype, row(sum(sends), width)).fill(np.concatenate(parts))
            rows = sum(receives)
            out = kind.make(dtype, row(rows, width)).fill(noise(dtype, rows * width, 0))
            run(dist.all_to_all_single, out.given, tensor.given, receives, sends)
            assert out.bits() == b"".join(
                noise(dtype, n * width, source, rank).tobytes() for source, n in enumerate(receives)
            )


def test_single_strided_with_splits(dist: ModuleType, rank: int, size: int, kind: Kind) -> None:
    layout = Layout("", (size, 3), (5, 1), 1, 5 * size + 1)
    sent = [noise("float32", layout.size, "strided", r).reshape(size, 3) for r in range(size)]
    tensor = kind.make("float32", layout).fill(sent[rank])
    out = kind.make("float32", layout).fill(noise("float32", layout.size))
    dist.all_to_all_single(out.given, tensor.given, [1] * size, [1] * size)
    assert out.bits() == b"".join(part[rank].tobytes() for part in sent)


@pytest.mark.parametrize("side", ["input", "output"])
def test_splits_that_do_not_add_up(dist: ModuleType, size: int, side: str) -> None:
    bad, good = [2] * size, [1] * size
    tensor, out = np.zeros(size), np.zeros(size)
    with pytest.raises(dist.errors.ArgumentError):
        dist.all_to_all_single(
            out, tensor, bad if side == "output" else good, bad if side == "input" else good
        )
    dist.barrier()


def test_in_a_group(dist: ModuleType, rank: int, size: int, reversed_group: Any) -> None:
    out = np.zeros(size, int)
    dist.all_to_all_single(out, np.arange(size) + 10 * rank, group=reversed_group)
    assert out.tolist() == [10 * r + (size - 1 - rank) for r in range(size - 1, -1, -1)]
