"""all_reduce, all_reduce_coalesced and the functional allreduce."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp
from tensors import (
    FLAT,
    LAYOUTS,
    STRIDED,
    Kind,
    NumpyKind,
    assert_reduced,
    every,
    numbers,
    numpy_dtype,
    reduced,
    reducible,
)

OPS = [
    ReduceOp.SUM,
    ReduceOp.PRODUCT,
    ReduceOp.MIN,
    ReduceOp.MAX,
    ReduceOp.AVG,
    ReduceOp.BAND,
    ReduceOp.BOR,
    ReduceOp.BXOR,
    ReduceOp.PREMUL_SUM(0.5),
]


@pytest.mark.parametrize("op", OPS, ids=str)
def test_all_reduce(
    dist: ModuleType, rank: int, size: int, kind: Kind, op: ReduceOp, run: Any
) -> None:
    for dtype, layout in every(kind, reducible(op)):
        parts = [numbers(dtype, layout.size, "all_reduce", r) for r in range(size)]
        tensor = kind.make(dtype, layout).fill(parts[rank])
        run(dist.all_reduce, tensor.given, op)
        assert_reduced(tensor.values(), op, parts)


def test_in_a_group(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    for members in ([size - 1], list(range(size - 1, -1, -1)), list(range(0, size, 2))):
        group = dist.new_group(members)
        if rank not in members:
            continue
        tensor = np.full(5, rank + 1, np.int64)
        run(dist.all_reduce, tensor, group=group)
        assert (tensor == sum(member + 1 for member in members)).all()
        dist.destroy_process_group(group)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("elements", [1, 33, 4096, 70_001])
def test_16_bits_are_summed_in_32_and_rounded_once(
    dist: ModuleType, rank: int, size: int, dtype: str, elements: int
) -> None:
    random = np.random.default_rng(elements)
    parts = list(random.normal(0, 100, (size, elements)).astype(numpy_dtype(dtype)))
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MAX, ReduceOp.PREMUL_SUM(0.3)):
        tensor = parts[rank].copy()
        dist.all_reduce(tensor, op)
        np.testing.assert_array_equal(tensor, reduced(op, parts))
    mean = parts[rank].copy()
    dist.all_reduce(mean, ReduceOp.AVG)
    assert_reduced(mean, ReduceOp.AVG, parts)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX, ReduceOp.SUM], ids=str)
def test_nan_propagates(dist: ModuleType, rank: int, size: int, dtype: str, op: ReduceOp) -> None:
    tensor = np.ones(size + 1, numpy_dtype(dtype))
    tensor[rank] = np.nan  # a different element on every rank
    dist.all_reduce(tensor, op)
    assert np.isnan(tensor[:size].astype(np.float64)).all()
    assert not np.isnan(tensor[size:].astype(np.float64)).any()


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_integers_wrap(dist: ModuleType, size: int, dtype: str) -> None:
    for elements in (3, 67, 70_001):  # vector code has its own arithmetic
        most = np.full(elements, np.iinfo(dtype).max, dtype)
        tensor = most.copy()
        dist.all_reduce(tensor)
        np.testing.assert_array_equal(tensor, reduced(ReduceOp.SUM, [most] * size))


@pytest.mark.parametrize("elements", [1 << 12, (1 << 16) + 1, (1 << 20) + 3])
def test_bigger(dist: ModuleType, rank: int, size: int, elements: int, run: Any) -> None:
    for dtype in ("float32", "int64", "bfloat16"):
        parts = [numbers(dtype, elements, "bigger", r) for r in range(size)]
        tensor = parts[rank].copy()
        run(dist.all_reduce, tensor)
        np.testing.assert_array_equal(tensor, reduced(ReduceOp.SUM, parts))


def test_coalesced(dist: ModuleType, rank: int, size: int, kind: Kind, run: Any) -> None:
    for dtype in kind.dtypes(reducible(ReduceOp.SUM)):
        tensors, inputs = [], []
        for index, layout in enumerate(LAYOUTS):
            parts = [numbers(dtype, layout.size, index, r) for r in range(size)]
            inputs.append(parts)
            tensors.append(kind.make(dtype, layout).fill(parts[rank]))
        run(dist.all_reduce_coalesced, [tensor.given for tensor in tensors])
        for tensor, parts in zip(tensors, inputs, strict=True):
            assert_reduced(tensor.values(), ReduceOp.SUM, parts)


def test_functional(dist: ModuleType, rank: int, size: int, kind: Kind) -> None:
    if kind.name == "dlpack":
        with pytest.raises(dist.errors.DtypeError):
            dist.allreduce(kind.make("float32", FLAT).given)
        return
    for dtype in kind.dtypes(["float32", "int64", "bfloat16"]):
        for layout in LAYOUTS:
            parts = [numbers(dtype, layout.size, "functional", r) for r in range(size)]
            tensor = kind.make(dtype, layout).fill(parts[rank])
            before = tensor.bits()
            made = dist.allreduce(tensor.given)
            assert tensor.bits() == before, "the input was written to"
            assert made is not tensor.given
            wanted = reduced(ReduceOp.SUM, parts).reshape(layout.shape)
            np.testing.assert_array_equal(_read(made, dtype).reshape(layout.shape), wanted)


def _read(made: Any, dtype: str) -> np.ndarray[Any, Any]:
    """Return the values of a tensor that the library made; it may have the model's strides."""
    if hasattr(made, "data_ptr"):
        values = made.contiguous().cast("float64") if hasattr(made, "cast") else made.double()
        return np.asarray(values.numpy()).astype(numpy_dtype(dtype))
    return np.asarray(made)


def test_functional_list(dist: ModuleType, rank: int, size: int) -> None:
    given = [np.full(3, rank, np.float32), np.full(2, 2 * rank, np.int32)]
    first, second = dist.allreduce(given, "max")
    assert (first == size - 1).all()
    assert (second == 2 * (size - 1)).all()
    assert (given[0] == rank).all()
    (mean,) = dist.allreduce((given[0],), "avg")
    np.testing.assert_allclose(mean, (size - 1) / 2, rtol=1e-6)


def test_repeated(dist: ModuleType, rank: int, size: int) -> None:
    tensor = np.zeros(1, np.int64)
    for step in range(2000):
        tensor[0] = rank + step
        dist.all_reduce(tensor)
        assert tensor[0] == sum(range(size)) + size * step


def test_many_at_once(dist: ModuleType, rank: int, size: int) -> None:
    tensors = [np.full(17, rank + step, np.float64) for step in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for step, tensor in enumerate(tensors):
        assert (tensor == sum(range(size)) + size * step).all()


def test_plain_buffers(dist: ModuleType, size: int) -> None:
    import array

    one = bytearray([1, 2, 3])
    dist.all_reduce(one)
    assert one == bytearray([size, 2 * size, 3 * size])
    two = array.array("d", [0.5, 1.5])
    dist.all_reduce(two)
    assert list(two) == [0.5 * size, 1.5 * size]
    three = np.float64(1)
    with pytest.raises(dist.errors.ArgumentError, match="read-only"):
        dist.all_reduce(three)


def test_strided_backwards(dist: ModuleType, rank: int, size: int) -> None:
    tensor = NumpyKind().make("int32", STRIDED).fill(numbers("int32", 6, rank))
    parts = [numbers("int32", 6, r).reshape(2, 3) for r in range(size)]
    dist.all_reduce(tensor.given[::-1, ::-1])
    np.testing.assert_array_equal(tensor.values(), reduced(ReduceOp.SUM, parts))
