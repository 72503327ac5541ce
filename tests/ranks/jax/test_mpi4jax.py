"""The functions of mpi4jax, as mpi4jax's own tests call them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paddlempi import errors

Way = Callable[[Any], Any]


@pytest.fixture(scope="session")
def mpi4jax(pj: ModuleType) -> ModuleType:
    import paddlempi.jax.mpi4jax

    return paddlempi.jax.mpi4jax


def test_collectives(mpi4jax: ModuleType, way: Way, rank: int, size: int) -> None:
    x = jnp.ones((3, 2)) * rank
    ranks = np.arange(size)
    assert np.array_equal(
        way(lambda x: mpi4jax.allreduce(x, "sum"))(x), jnp.ones((3, 2)) * sum(ranks)
    )
    assert np.array_equal(way(lambda x: mpi4jax.scan(x, "sum"))(x)[0, 0], sum(ranks[: rank + 1]))
    assert np.array_equal(way(mpi4jax.allgather)(x)[:, 0, 0], ranks)
    assert np.array_equal(way(lambda x: mpi4jax.bcast(x, 1))(x), jnp.ones((3, 2)))
    result = way(lambda x: mpi4jax.reduce(x, "sum", 0))(x)
    assert np.array_equal(result, x if rank else jnp.ones((3, 2)) * sum(ranks))
    result = way(lambda x: mpi4jax.gather(x, 0))(x)
    assert result.shape == ((3, 2) if rank else (size, 3, 2))
    assert np.array_equal(result, x) if rank else np.array_equal(result[:, 0, 0], ranks)
    result = way(mpi4jax.alltoall)(jnp.arange(size) + 10 * rank)
    assert np.array_equal(result, 10 * ranks + rank)
    mpi4jax.barrier()


def test_scatter(mpi4jax: ModuleType, way: Way, rank: int, size: int) -> None:
    given = jnp.arange(size * 4.0).reshape(size, 2, 2) if rank == 0 else jnp.zeros((2, 2))
    result = way(lambda x: mpi4jax.scatter(x, 0))(given)
    assert np.array_equal(result, np.arange(4.0).reshape(2, 2) + 4 * rank)
    batched = jnp.stack([given, given + 1], axis=1 if rank == 0 else 0)
    result = way(jax.vmap(lambda x: mpi4jax.scatter(x, 0), in_axes=1 if rank == 0 else 0))(batched)
    assert np.array_equal(result[1], np.arange(4.0).reshape(2, 2) + 4 * rank + 1)


def test_messages(mpi4jax: ModuleType, way: Way, rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    x = jnp.arange(3.0) + rank
    result = way(lambda x: mpi4jax.sendrecv(x, x, source=before, dest=after))(x)
    assert np.array_equal(result, np.arange(3.0) + before)

    def pair(x: Any) -> Any:
        if rank == 0:
            mpi4jax.send(x, dest=1, tag=3)
            return mpi4jax.recv(x, source=1)
        if rank == 1:
            got = mpi4jax.recv(x)
            mpi4jax.send(got * 2, dest=0, tag=4)
        return x

    assert np.array_equal(way(pair)(x), np.arange(3.0) * 2 if rank == 0 else x)


def test_derivatives(mpi4jax: ModuleType, rank: int, size: int) -> None:
    """The matrix product of mpi4jax's tests: rows on every rank, and their sum."""
    matrix = jnp.asarray(np.random.default_rng(2).standard_normal((4, 4 * size)), jnp.float32)
    columns = slice(4 * rank, 4 * rank + 4)
    vector = jnp.arange(4.0 * size)

    def product(v: Any) -> Any:
        return mpi4jax.allreduce(matrix[:, columns] @ v, "sum")

    np.testing.assert_allclose(product(vector[columns]), matrix @ vector, rtol=1e-4)
    cotangent = jnp.arange(4.0) + 1
    for way in (jax.jit, lambda f: f):
        (back,) = jax.vjp(way(product), vector[columns])[1](cotangent)
        np.testing.assert_allclose(back, (matrix.T @ cotangent)[columns], rtol=1e-4)
    twice = jax.linear_transpose(
        lambda y: jax.linear_transpose(product, vector[columns])(y)[0], cotangent
    )
    np.testing.assert_allclose(twice(vector[columns])[0], matrix @ vector, rtol=1e-4)


def test_arguments_of_mpi4py(
    dist: ModuleType, mpi4jax: ModuleType, way: Way, rank: int, size: int
) -> None:
    mpi = pytest.importorskip("mpi4py.MPI")
    if mpi.COMM_WORLD.size != size:
        with pytest.raises(errors.UnsupportedError, match="give a group of paddlempi"):
            mpi4jax.allreduce(jnp.ones(2), mpi.SUM, comm=mpi.COMM_WORLD)
        return
    backwards = mpi.COMM_WORLD.Split(0, size - rank)
    result = way(lambda x: mpi4jax.allgather(x, comm=backwards))(jnp.int32(rank))
    assert result.tolist() == list(range(size - 1, -1, -1))
    result = way(lambda x: mpi4jax.bcast(x, 0, comm=backwards))(jnp.int32(rank))
    assert result == size - 1
    for op, wanted in ((mpi.SUM, size), (mpi.PROD, 1), (mpi.LAND, 1), (mpi.LXOR, size % 2)):
        result = way(lambda x, op=op: mpi4jax.allreduce(x, op, comm=mpi.COMM_WORLD))(jnp.ones(2))
        assert result.tolist() == [wanted, wanted]
    x = jnp.arange(2.0) + rank
    before = rank - 1 if rank else mpi.PROC_NULL
    after = rank + 1 if rank < size - 1 else mpi.PROC_NULL
    result = way(lambda x: mpi4jax.sendrecv(x, x * 0 - 1, before, after))(x)
    assert np.array_equal(result, x - 1 if rank else [-1, -1])
    custom = mpi.Op.Create(lambda a, b, t: None)
    with pytest.raises(errors.UnsupportedError, match="an op of a user"):
        mpi4jax.allreduce(x, custom)
    custom.Free()
    backwards.Free()


def test_what_is_refused(dist: ModuleType, mpi4jax: ModuleType) -> None:
    x = jnp.ones(2)
    with pytest.raises(errors.UnsupportedError, match="token: calls are in order without tokens"):
        mpi4jax.allreduce(x, "sum", token=None)
    with pytest.raises(errors.UnsupportedError, match="status: it is not filled in"):
        mpi4jax.recv(x, 0, status=object())
    with pytest.raises(errors.DtypeError, match="comm is a str"):
        mpi4jax.barrier(comm="world")
    with pytest.raises(errors.ArgumentError, match="bcast: root=99 is not among the"):
        mpi4jax.bcast(x, 99)
