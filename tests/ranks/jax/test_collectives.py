"""Every function, eager and compiled, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paddlempi.errors import NotMemberError

Way = Callable[[Any], Any]

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
SHAPES = [(), (0,), (3,), (2, 0), (2, 3, 4), (70, 1000)]
NUMPY = {"sum": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum}


def make(rank: int, shape: tuple[int, ...], dtype: Any = "float32") -> np.ndarray[Any, Any]:
    """Return other small integers on every rank, which every dtype has."""
    count = int(np.prod(shape))
    return ((np.arange(count) + rank) % 3 + 1).reshape(shape).astype(jnp.dtype(dtype))


def everybodys(size: int, shape: tuple[int, ...], dtype: Any = "float32") -> list[Any]:
    return [make(rank, shape, dtype) for rank in range(size)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_every_dtype(
    pj: ModuleType, wide: None, way: Way, rank: int, size: int, dtype: str
) -> None:
    given = jnp.asarray(make(rank, (5, 7), dtype))
    result = way(pj.all_reduce)(given)
    wanted = np.sum(np.stack(everybodys(size, (5, 7), dtype)), axis=0).astype(given.dtype)
    assert result.dtype == given.dtype
    assert np.array_equal(result, wanted)
    assert np.array_equal(given, make(rank, (5, 7), dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_are_summed_in_float32(
    pj: ModuleType, way: Way, rank: int, size: int, dtype: str
) -> None:
    values = np.random.default_rng(1).standard_normal((size, 4001)).astype(jnp.dtype(dtype))
    result = way(pj.all_reduce)(jnp.asarray(values[rank]))
    wanted = values.astype(np.float32).sum(axis=0, dtype=np.float32).astype(values.dtype)
    assert np.array_equal(result, wanted)


@pytest.mark.parametrize("op", NUMPY)
@pytest.mark.parametrize("shape", SHAPES)
def test_all_reduce(
    pj: ModuleType, way: Way, rank: int, size: int, op: str, shape: tuple[int, ...]
) -> None:
    result = way(lambda x: pj.all_reduce(x, op))(make(rank, shape))
    assert result.shape == shape
    assert np.array_equal(result, NUMPY[op].reduce(everybodys(size, shape)))


def test_other_reductions(dist: ModuleType, pj: ModuleType, way: Way, rank: int, size: int) -> None:
    mean = way(lambda x: pj.all_reduce(x, "avg"))(make(rank, (4,)))
    assert np.allclose(mean, np.mean(everybodys(size, (4,)), axis=0))
    scaled = way(lambda x: pj.all_reduce(x, dist.ReduceOp.PREMUL_SUM(0.5)))(make(rank, (4,)))
    assert np.array_equal(scaled, 0.5 * np.sum(everybodys(size, (4,)), axis=0))
    bits = [np.array([1 << r, 3], np.int32) for r in range(size)]
    for op, function in (
        ("bor", np.bitwise_or),
        ("band", np.bitwise_and),
        ("bxor", np.bitwise_xor),
    ):
        result = way(lambda x, op=op: pj.all_reduce(x, op))(bits[rank])
        assert np.array_equal(result, function.reduce(bits))


@pytest.mark.parametrize("shape", [s for s in SHAPES if s])
def test_all_gather(pj: ModuleType, way: Way, rank: int, size: int, shape: tuple[int, ...]) -> None:
    wanted = everybodys(size, shape)
    assert np.array_equal(way(pj.all_gather)(make(rank, shape)), np.stack(wanted))
    tiled = way(lambda x: pj.all_gather(x, tiled=True))(make(rank, shape))
    assert np.array_equal(tiled, np.concatenate(wanted))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bool", "bfloat16"])
def test_all_gather_of_other_dtypes(
    pj: ModuleType, way: Way, rank: int, size: int, dtype: str
) -> None:
    result = way(pj.all_gather)(jnp.asarray(make(rank, (3,), dtype)))
    assert np.array_equal(result, np.stack(everybodys(size, (3,), dtype)))


def test_all_gather_of_scalars(pj: ModuleType, way: Way, rank: int, size: int) -> None:
    assert way(pj.all_gather)(jnp.int32(rank)).tolist() == list(range(size))


@pytest.mark.parametrize("shape", SHAPES)
def test_reduce_scatter_and_all_to_all(
    pj: ModuleType, way: Way, rank: int, size: int, shape: tuple[int, ...]
) -> None:
    given = [make(r, (size, *shape)) for r in range(size)]
    result = way(pj.reduce_scatter)(given[rank])
    assert result.shape == shape
    assert np.array_equal(result, np.sum(given, axis=0)[rank])
    result = way(pj.all_to_all)(given[rank])
    assert np.array_equal(result, np.stack([parts[rank] for parts in given]))


def test_tiles(pj: ModuleType, way: Way, rank: int, size: int) -> None:
    given = [make(r, (size * 3, 2)) for r in range(size)]
    result = way(lambda x: pj.reduce_scatter(x, "max", tiled=True))(given[rank])
    assert np.array_equal(result, np.max(given, axis=0)[rank * 3 : rank * 3 + 3])
    result = way(lambda x: pj.all_to_all(x, tiled=True))(given[rank])
    wanted = np.concatenate([parts[rank * 3 : rank * 3 + 3] for parts in given])
    assert np.array_equal(result, wanted)


@pytest.mark.parametrize("shape", SHAPES)
def test_broadcast(pj: ModuleType, way: Way, rank: int, size: int, shape: tuple[int, ...]) -> None:
    given = jnp.asarray(make(rank, shape))
    result = way(lambda x: pj.broadcast(x, size - 1))(given)
    assert np.array_equal(result, make(size - 1, shape))
    assert np.array_equal(given, make(rank, shape))


def test_messages(pj: ModuleType, way: Way, rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size

    def ring(x: Any) -> Any:
        return pj.sendrecv(x, after, before)

    def ping(x: Any) -> Any:
        if rank == 0:
            pj.send(x, 1, tag=5)
            return pj.recv(jax.ShapeDtypeStruct((2, 2), "int32"), src=1)
        if rank == 1:
            got = pj.recv(x, src=0, tag=5)
            pj.send(got[:2, :2].astype(jnp.int32) + 1, 0)
        return x

    given = make(rank, (3, 4))
    assert np.array_equal(way(ring)(given), make(before, (3, 4)))
    result = way(ping)(given)
    if rank == 0:
        assert np.array_equal(result, given[:2, :2] + 1)


def test_other_shapes_in_a_ring(pj: ModuleType, way: Way, rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size

    def ring(x: Any) -> Any:
        like = jax.ShapeDtypeStruct((before + 1,), jnp.float32)
        return pj.sendrecv(x, after, before, like, send_tag=rank, recv_tag=before)

    assert np.array_equal(way(ring)(make(rank, (rank + 1,))), make(before, (before + 1,)))


def test_barrier(pj: ModuleType, way: Way) -> None:
    def function(x: Any) -> Any:
        pj.barrier()
        return x

    assert way(function)(jnp.ones(2)).tolist() == [1, 1]


def test_groups(
    dist: ModuleType, pj: ModuleType, way: Way, rank: int, size: int, backwards: Any
) -> None:
    result = way(lambda x: pj.all_gather(x, backwards))(jnp.int32(rank))
    assert result.tolist() == list(range(size - 1, -1, -1))
    result = way(lambda x: pj.broadcast(x, group=backwards, group_src=0))(jnp.int32(rank))
    assert result == size - 1
    result = way(lambda x: pj.broadcast(x, 0, backwards))(jnp.int32(rank))
    assert result == 0
    group = dist.new_group([0])
    if rank == 0:
        assert way(lambda x: pj.all_reduce(x, group=group))(jnp.ones(2)).tolist() == [1, 1]
    else:
        with pytest.raises(NotMemberError, match="all_reduce: this rank is no member"):
            pj.all_reduce(jnp.ones(2), group=group)


def test_donated_arrays(pj: ModuleType, rank: int, size: int) -> None:
    function = jax.jit(lambda x: pj.all_reduce(x) + 1, donate_argnums=0)
    given = jnp.full((1000,), rank + 1.0)
    assert np.all(np.asarray(function(given)) == size * (size + 1) / 2 + 1)
    assert given.is_deleted()


def test_an_operand_that_is_used_afterwards(pj: ModuleType, rank: int, size: int) -> None:
    function = jax.jit(lambda x: (pj.all_reduce(x), pj.broadcast(x, 0), x * 2))
    total, first, twice = function(jnp.full((1000,), rank + 1.0))
    assert (float(total[0]), float(first[0])) == (size * (size + 1) / 2, 1)
    assert float(twice[0]) == 2 * (rank + 1)


@pytest.mark.parametrize("layout", ["transposed", "strided"])
def test_arrays_of_other_layouts(
    pj: ModuleType, way: Way, rank: int, size: int, layout: str
) -> None:
    cut = {"transposed": lambda x: x.T, "strided": lambda x: x[::2, 1:]}[layout]
    result = way(lambda x: pj.all_reduce(cut(x)))(make(rank, (6, 8)))
    assert np.array_equal(result, cut(np.sum(everybodys(size, (6, 8)), axis=0)))
