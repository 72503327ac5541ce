"""Arrays of JAX in the functions of the package."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paddlempi import errors

FAILED = (jax.errors.JaxRuntimeError, ValueError)
"""An error of a call. JAX's fast path raises the second kind."""


def test_functions_in_place_return_a_new_array(dist: ModuleType, rank: int, size: int) -> None:
    x = jnp.arange(4.0) + rank
    ranks = np.arange(size)[:, None] + np.arange(4.0)
    total = dist.all_reduce(x)
    assert isinstance(total, jax.Array) and np.array_equal(total, ranks.sum(0))
    assert np.array_equal(dist.all_reduce(x, dist.ReduceOp.MAX), ranks.max(0))
    assert np.array_equal(dist.broadcast(x, 1), ranks[1])
    assert np.array_equal(dist.scan(x), ranks[: rank + 1].sum(0))
    before = dist.exscan(x)
    assert np.array_equal(before, ranks[:rank].sum(0) if rank else x)
    reduced = dist.reduce(x, 0)
    assert reduced is None if rank else np.array_equal(reduced, ranks.sum(0))
    half = dist.all_reduce(x.astype(jnp.bfloat16), dist.ReduceOp.PREMUL_SUM(0.5))
    assert half.dtype == jnp.bfloat16 and np.array_equal(half, (ranks / 2).sum(0))
    assert np.array_equal(x, ranks[rank])


def test_groups(dist: ModuleType, rank: int, size: int, backwards: Any) -> None:
    assert dist.broadcast(jnp.int32(rank), group=backwards, group_src=0) == size - 1
    assert dist.all_reduce(jnp.ones(2), dist.ReduceOp.SUM, backwards).tolist() == [size, size]


def test_in_compiled_functions(dist: ModuleType, rank: int, size: int) -> None:
    function = jax.jit(lambda x: dist.broadcast(dist.all_reduce(x), 0) * 2)
    assert function(jnp.float32(rank)) == size * (size - 1)


def test_functions_that_can_only_write(dist: ModuleType, rank: int, size: int) -> None:
    """All ranks are told, and the group goes on."""
    x = jnp.ones(2)
    wrong = {
        "all_gather": lambda: dist.all_gather([x] * size, x),
        "all_to_all": lambda: dist.all_to_all_single(jnp.ones(size), jnp.ones(size)),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(x, jnp.ones(2 * size)),
        "sendrecv": lambda: dist.sendrecv(x, rank, x, rank),
        "recv": lambda: dist.recv(x, 0),
    }
    for name, call in wrong.items():
        text = rf"{name}: an array of JAX cannot be written to: call paddlempi\.jax\.{name}\("
        with pytest.raises(errors.ArgumentError, match=text):
            call()
    with pytest.raises(errors.ArgumentError, match="async_op: an array of JAX is asynchronous"):
        dist.all_reduce(x, async_op=True)
    if rank == 0:
        with pytest.raises(errors.ArgumentError, match="all_reduce: async_op"):
            dist.all_reduce(x, async_op=True)
    else:
        with pytest.raises(FAILED, match=r"rank\(s\) \[0\] refused"):
            dist.all_reduce(x).block_until_ready()
    assert dist.all_reduce(x).tolist() == [size, size]


def test_arrays_are_sent(dist: ModuleType, rank: int, size: int) -> None:
    """A function that only reads its argument takes an array of JAX as any other tensor."""
    got = np.empty((size, 2), np.float32)
    dist.all_gather_into_tensor(got, jnp.full(2, rank, jnp.float32))
    assert got.tolist() == [[i, i] for i in range(size)]
    after, before = (rank + 1) % size, (rank - 1) % size
    work = dist.isend(jnp.float32(rank), after)
    row = np.empty((), np.float32)
    dist.recv(row, before)
    work.wait()
    assert row == before


def test_deleted_arrays(dist: ModuleType, size: int) -> None:
    """A function that an array is donated to deletes it. All ranks learn of the error."""

    def gone() -> Any:
        array = jnp.arange(4.0)
        array.delete()
        return array

    outs = [np.zeros(4, np.float32) for _ in range(size)]
    for call, error in (
        (lambda: dist.all_gather(outs, gone()), errors.DtypeError),
        (lambda: dist.isend(gone(), 0), errors.DtypeError),
        (lambda: dist.all_reduce(gone()), errors.ArgumentError),
        (lambda: dist.broadcast(gone(), 0), errors.ArgumentError),
    ):
        with pytest.raises(error, match="deleted"):
            call()
    dist.barrier()
