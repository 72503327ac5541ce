"""Paddle's tensors in the heap, which ``paddlempi.empty`` and its relatives make."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import numpy as np
import paddle
import paddlempi
import pytest
from paddlempi import _native
from values import DTYPES, array, defined, equal, reduced, values

SHAPE = (3, 7_001)


def took() -> str:
    """Return the algorithm of the world's last collective."""
    return str(_native.control("group_info", group=0)["algorithm"])


def in_heap(given: Any, dtype: str) -> Any:
    """Return a heap tensor with the values of an array."""
    tensor = paddlempi.empty(np.shape(given), dtype, "paddle")
    wide = "complex128" if np.iscomplexobj(given) else "float64"
    address = tensor.data_ptr()
    paddle.assign(paddle.to_tensor(np.asarray(given, wide)).astype(dtype), tensor)
    assert tensor.data_ptr() == address, "Paddle gave the tensor other memory"
    return tensor


def check_way(size: int) -> None:
    assert took() == ("single" if size == 1 else "mapped")


def test_what_is_made() -> None:
    for dtype in [*DTYPES, "float8_e4m3fn", "float8_e5m2"]:
        kind = getattr(paddle, dtype)
        for name in (dtype, kind):
            tensor = paddlempi.zeros((2, 3), name, "paddle")
            assert (tensor.shape, tensor.dtype) == ([2, 3], kind)
            assert tensor.place.is_cpu_place() and tensor.is_contiguous()
            if not dtype.startswith("float8"):
                assert not array(tensor).any()
        like = paddlempi.empty_like(tensor)
        assert (like.shape, like.dtype) == ([2, 3], kind)
    assert paddlempi.empty((0, 3), "bfloat16", "paddle").shape == [0, 3]
    with pytest.raises(paddlempi.errors.DtypeError):
        paddlempi.empty(3, "uint16", "paddle")


def test_freed_with_the_last_reference(dist: ModuleType) -> None:
    def used() -> int:
        return int(_native.control("info", sys_prefix="/usr")["heap"]["used"])

    gc.collect()  # buckets of earlier tests
    before = used()
    for dtype in ("float32", "bfloat16", "bool"):
        tensor = paddlempi.zeros((1_000, 64), dtype, "paddle")
        bytes_of = tensor.element_size() * 64_000
        assert used() - before == bytes_of
        view = tensor[5:10]
        del tensor
        assert used() - before == bytes_of
        del view
        assert used() == before


@pytest.mark.parametrize("op", ["SUM", "MAX", "AVG"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_all_reduce(dist: ModuleType, rank: int, size: int, op: str, asynchronous: bool) -> None:
    for dtype in DTYPES:
        if not defined(op, dtype) or dtype == "bool":
            continue
        parts = [values(r, SHAPE, dtype) for r in range(size)]
        tensor = in_heap(parts[rank], dtype)
        version = tensor.inplace_version
        task = dist.all_reduce(tensor, getattr(dist.ReduceOp, op), sync_op=not asynchronous)
        if asynchronous:
            task.wait()
        equal(tensor, reduced(op, parts, dtype), (op, dtype), mean=op == "AVG")
        assert tensor.inplace_version > version, "autograd was not told"
        check_way(size)


def test_everything_else(dist: ModuleType, rank: int, size: int) -> None:
    for dtype in ("bfloat16", "float32", "int8"):
        parts = [values(r, SHAPE, dtype) for r in range(size)]
        mine = in_heap(parts[rank], dtype)
        everyone = paddlempi.empty((size, *SHAPE), dtype, "paddle")
        dist.stream.all_gather(everyone, mine)
        equal(everyone, np.stack(parts), dtype)
        check_way(size)
        dist.stream.reduce_scatter(mine, everyone)
        equal(mine, size * parts[rank], dtype)
        check_way(size)
        dist.broadcast(mine, src=size - 1)
        equal(mine, size * parts[size - 1], dtype)
        check_way(size)
        back = paddlempi.empty((size, *SHAPE), dtype, "paddle")
        dist.stream.alltoall(back, everyone)
        equal(back, np.stack([parts[rank]] * size), dtype)
        check_way(size)


def test_bits_are_the_same_on_all_ranks(dist: ModuleType, rank: int, size: int) -> None:
    random = np.random.default_rng(rank)
    for dtype in ("float32", "bfloat16", "float16"):
        given = random.normal(0, 1, 50_021) * 10.0 ** random.integers(-3, 3, 50_021)
        tensor = in_heap(given, dtype)
        dist.all_reduce(tensor)
        everyone: list[Any] = []
        dist.all_gather_object(everyone, array(tensor).tobytes())
        assert all(bits == everyone[0] for bits in everyone)


def test_autograd(dist: ModuleType, rank: int, size: int) -> None:
    leaf = in_heap(np.full(SHAPE, 3.0), "float32")
    leaf.stop_gradient = False
    (leaf * 2).sum().backward()
    assert (leaf.grad.numpy() == 2).all()
    changed = in_heap(np.full(SHAPE, 2.0), "float32")
    weight = paddle.ones([1])
    weight.stop_gradient = False
    loss = (weight * changed).sum()
    dist.all_reduce(changed)
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()
