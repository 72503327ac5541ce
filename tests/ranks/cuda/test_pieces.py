"""Tensors of several pieces. A piece is 4 KiB here: 1024 elements of float32."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import device
import numpy as np
import pytest
from kinds import DeviceCase, side_stream
from paddlempi import ReduceOp
from tensors import FLAT, Layout, assert_reduced, noise, numbers, numpy_dtype, reduced

COUNTS = [1, 1023, 1024, 1025, 3 * 1024 + 7, 7 * 1024]


def flat(n: int) -> Layout:
    return Layout("flat", (n,), (1,), 0, n)


def backwards(n: int) -> Layout:
    """Every third element, in reverse order."""
    return Layout("backwards", (n,), (-3,), 3 * n - 1, 3 * n)


def rows(n: int) -> Layout:
    """One or two rows with a gap after each, and the axes swapped."""
    height = 2 if n % 2 == 0 else 1
    width = n // height
    return Layout("rows", (width, height), (1, width + 5), 2, height * (width + 5) + 2)


def put(values: np.ndarray[Any, Any], layout: Layout) -> DeviceCase:
    case = DeviceCase(values.dtype.name, layout, device.DeviceTensor, stream=side_stream())
    return case.fill(values)


def room(dtype: str, layout: Layout) -> DeviceCase:
    return put(noise(dtype, layout.size, "room"), layout)


@pytest.mark.parametrize("layout", [flat, backwards, rows], ids=lambda f: f.__name__)
@pytest.mark.parametrize("count", COUNTS)
def test_every_operation(
    dist: ModuleType, rank: int, size: int, count: int, layout: Any, run: Any
) -> None:
    parts = [numbers("float32", count, "pieces", r) for r in range(size)]
    whole = [numbers("float32", size * count, "whole", r).reshape(size, count) for r in range(size)]
    mine, other = layout(count), flat(count)

    tensor = put(parts[rank], mine)
    run(dist.all_reduce, tensor.given)
    assert_reduced(tensor.values(), ReduceOp.SUM, parts)

    tensor = put(parts[rank], mine)
    run(dist.broadcast, tensor.given, size - 1)
    assert tensor.bits() == parts[-1].tobytes()

    tensor = put(parts[rank], mine)
    run(dist.reduce, tensor.given, 0, ReduceOp.MAX)
    kept = parts[rank] if rank else reduced(ReduceOp.MAX, parts)
    assert tensor.bits() == kept.tobytes()

    tensor = put(parts[rank], mine)
    run(dist.exscan, tensor.given)
    assert tensor.bits() == (reduced(ReduceOp.SUM, parts[:rank]) if rank else parts[0]).tobytes()

    taken = [room("float32", other if r % 2 else mine) for r in range(size)]
    run(dist.all_gather, [t.given for t in taken], put(parts[rank], mine).given)
    assert [t.bits() for t in taken] == [part.tobytes() for part in parts]

    taken = [room("float32", mine) for _ in range(size)] if rank == 0 else []
    run(dist.gather, put(parts[rank], other).given, [t.given for t in taken] or None, 0)
    assert [t.bits() for t in taken] == ([p.tobytes() for p in parts] if rank == 0 else [])

    given = [put(part, mine).given for part in whole[0]] if rank == 0 else None
    out = room("float32", other)
    run(dist.scatter, out.given, given, 0)
    assert out.bits() == whole[0][rank].tobytes()

    out = room("float32", mine)
    run(dist.reduce_scatter, out.given, [put(part, other).given for part in whole[rank]])
    assert_reduced(out.values(), ReduceOp.SUM, [w[rank] for w in whole])

    outs = [room("float32", mine) for _ in range(size)]
    run(dist.all_to_all, [t.given for t in outs], [put(p, other).given for p in whole[rank]])
    assert [t.bits() for t in outs] == [w[rank].tobytes() for w in whole]

    gathered = room("float32", flat(size * count))
    run(dist.all_gather_into_tensor, gathered.given, put(parts[rank], mine).given)
    assert gathered.bits() == b"".join(part.tobytes() for part in parts)
    run(dist.all_to_all_single, gathered.given, put(whole[rank].ravel(), flat(size * count)).given)
    assert gathered.bits() == b"".join(w[rank].tobytes() for w in whole)


def test_what_is_sent_lies_where_others_results_come(
    dist: ModuleType, rank: int, size: int, run: Any
) -> None:
    """The input lies inside the output: early pieces of the result overwrite unsent input."""
    count = 5 * 1024
    parts = [numbers("float32", count, "inside", r) for r in range(size)]
    first = (rank + 1) % size * count
    before = noise("float32", size * count, "around", rank).copy()
    before[first : first + count] = parts[rank]
    gathered = put(before, flat(size * count))
    run(dist.all_gather_into_tensor, gathered.given, gathered.given[first : first + count])
    assert gathered.bits() == b"".join(part.tobytes() for part in parts)


def test_uneven(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """Shares of several pieces, of one piece, and of none in one call."""
    table = [[1500 * ((source + 2 * to) % 3) for to in range(size)] for source in range(size)]
    sent = [noise("int32", n, rank, to) for to, n in enumerate(table[rank])]
    outs = [room("int32", backwards(table[source][rank])) for source in range(size)]
    run(dist.all_to_all, [t.given for t in outs], [put(s, flat(len(s))).given for s in sent])
    for source, out in enumerate(outs):
        assert out.bits() == noise("int32", table[source][rank], source, rank).tobytes()

    counts = [2500 * (r % 2) + 3 for r in range(size)]
    outs = [room("int32", flat(n)) for n in counts]
    mine = put(noise("int32", counts[rank], "uneven", rank), flat(counts[rank]))
    run(dist.all_gather, [t.given for t in outs], mine.given)
    for source, out in enumerate(outs):
        assert out.bits() == noise("int32", counts[source], "uneven", source).tobytes()

    parts = [[numbers("int32", n, r, i) for i, n in enumerate(counts)] for r in range(size)]
    taken = room("int32", flat(counts[rank]))
    run(dist.reduce_scatter, taken.given, [put(p, flat(len(p))).given for p in parts[rank]])
    assert_reduced(taken.values(), ReduceOp.SUM, [part[rank] for part in parts])


def test_coalesced(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """Tensors that end inside a piece, an empty tensor, and views."""
    layouts = [flat(5), flat(2500), FLAT, flat(0), rows(3000), backwards(700), flat(1024)]
    inputs = [
        [numbers("float64", of.size, i, r) for r in range(size)] for i, of in enumerate(layouts)
    ]
    tensors = [put(parts[rank], of) for parts, of in zip(inputs, layouts, strict=True)]
    run(dist.all_reduce_coalesced, [t.given for t in tensors])
    for tensor, parts in zip(tensors, inputs, strict=True):
        assert_reduced(tensor.values(), ReduceOp.SUM, parts)


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "bfloat16", "float64", "complex128"])
def test_every_size_of_elements(
    dist: ModuleType, rank: int, size: int, dtype: str, run: Any
) -> None:
    """The kernels that pack views, for elements of 1, 2, 8 and 16 bytes (4 above)."""
    for layout in (backwards(9001), rows(9002), flat(9003)):
        parts = [numbers(dtype, layout.size, "sizes", r) for r in range(size)]
        tensor = put(parts[rank], layout)
        run(dist.all_reduce, tensor.given, ReduceOp.MAX if dtype != "complex128" else ReduceOp.SUM)
        op = ReduceOp.MAX if dtype != "complex128" else ReduceOp.SUM
        assert_reduced(tensor.values(), op, parts)


def test_many_dimensions(dist: ModuleType, rank: int, size: int) -> None:
    shape = (3, 2, 5, 2, 3, 2, 7, 2)
    strides, step = [0] * len(shape), 1
    for axis in (3, 0, 7, 2, 5, 1, 6, 4):
        strides[axis], step = step, step * (shape[axis] + 1)
    layout = Layout("", shape, tuple(strides), 0, step)
    parts = [numbers("int32", layout.size, "dimensions", r) for r in range(size)]
    tensor = put(parts[rank], layout)
    dist.all_reduce(tensor.given)
    assert_reduced(tensor.values(), ReduceOp.SUM, parts)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_rounded_once(
    dist: ModuleType, rank: int, size: int, dtype: str, run: Any
) -> None:
    random = np.random.default_rng(7)
    parts = list(random.normal(0, 100, (size, 9001)).astype(numpy_dtype(dtype)))
    for op in (ReduceOp.SUM, ReduceOp.PREMUL_SUM(0.3), ReduceOp.AVG):
        tensor = put(parts[rank], flat(9001))
        run(dist.all_reduce, tensor.given, op)
        assert_reduced(tensor.values(), op, parts)


@pytest.mark.fake_driver
@pytest.mark.mpi(min=2)
def test_pieces_and_paths(dist: ModuleType, rank: int, size: int) -> None:
    """A tensor is copied to the host and back in pieces, and no other path is used."""
    names = ("cuMemcpyAsync", "cuIpcGetMemHandle", "cuLaunchKernel")
    parts = [numbers("float32", 10 * 1024, "counted", r) for r in range(size)]
    tensor = put(parts[rank], flat(10 * 1024))
    before = {name: device.calls(name) for name in names}
    dist.all_reduce(tensor.given)
    made = {name: device.calls(name) - before[name] for name in names}
    assert made == {"cuMemcpyAsync": 20, "cuIpcGetMemHandle": 0, "cuLaunchKernel": 0}
    assert_reduced(tensor.values(), ReduceOp.SUM, parts)

    strided = put(parts[rank], backwards(10 * 1024))
    launched = device.calls("cuLaunchKernel")
    dist.all_reduce(strided.given)
    assert device.calls("cuLaunchKernel") - launched == 20
    assert_reduced(strided.values(), ReduceOp.SUM, parts)
