"""vmap, derivatives, control flow and shard_map, against one process that has all arrays."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax


def arrays(size: int, *shape: int) -> Any:
    """Return the arrays of all ranks."""
    return jnp.asarray(np.random.default_rng(3).standard_normal((size, *shape)), jnp.float32)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap(pj: ModuleType, rank: int, size: int, axis: int) -> None:
    """A batch gives what its elements give one by one."""
    shape = [size, 3, 2]
    shape.insert(axis, 4)
    x = arrays(size, *shape)[rank]
    after, before = (rank + 1) % size, (rank - 1) % size
    for function in (
        pj.all_reduce,
        pj.all_gather,
        pj.reduce_scatter,
        pj.all_to_all,
        lambda x: pj.broadcast(x, size - 1),
        lambda x: pj.sendrecv(x, after, before),
        lambda x: pj.all_gather(x, tiled=True),
    ):
        got = jax.jit(jax.vmap(function, in_axes=axis))(x)
        one_by_one = jnp.stack([function(jnp.take(x, i, axis)) for i in range(4)])
        assert np.array_equal(got, one_by_one)
        nested = jax.vmap(jax.vmap(function, in_axes=axis), in_axes=0)(jnp.stack([x, x + 1]))
        assert np.array_equal(nested[0], one_by_one)


def test_vmap_of_messages(pj: ModuleType, rank: int) -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    if rank == 0:
        jax.jit(jax.vmap(lambda x: pj.send(x, 1), in_axes=1))(x)
    elif rank == 1:
        got = jax.jit(jax.vmap(lambda x: pj.recv(x, 0), in_axes=1))(jnp.zeros_like(x))
        assert np.array_equal(got, x.T)


def check_gradient(function: Any, alone: Any, size: int, rank: int, *shape: int) -> None:
    """Compare a rank's gradient with its part of that of one process, which has all arrays."""
    x = arrays(size, *shape)
    wanted = jax.grad(alone)(x)[rank]
    for gradient in (jax.grad(function), jax.jit(jax.grad(function))):
        np.testing.assert_allclose(gradient(x[rank]), wanted, rtol=1e-5)


def test_gradient_of_sums(pj: ModuleType, rank: int, size: int) -> None:
    """All ranks compute the same from a sum, so it counts once."""
    check_gradient(
        lambda x: (pj.all_reduce(x) ** 2).sum(), lambda x: (x.sum(0) ** 2).sum(), size, rank, 5
    )
    check_gradient(
        lambda x: (pj.all_reduce(x, "avg") ** 2).sum(),
        lambda x: (x.mean(0) ** 2).sum(),
        size,
        rank,
        5,
    )


def test_gradients_of_other_operations(pj: ModuleType, rank: int, size: int) -> None:
    """Each rank has a loss of its own, and one process adds the losses of all ranks."""
    weights = arrays(size, size, 5)
    after, before = (rank + 1) % size, (rank - 1) % size
    check_gradient(
        lambda x: (pj.all_gather(x) ** 2 * weights[rank]).sum(),
        lambda x: (x**2 * weights.sum(0)).sum(),
        size,
        rank,
        5,
    )
    check_gradient(
        lambda x: (pj.reduce_scatter(x) ** 2 * weights[rank]).sum(),
        lambda x: (x.sum(0)[:, None] ** 2 * weights).sum(),
        size,
        rank,
        size,
        5,
    )
    check_gradient(
        lambda x: (pj.all_to_all(x) ** 2 * weights[rank]).sum(),
        lambda x: (jnp.swapaxes(x, 0, 1) ** 2 * weights).sum(),
        size,
        rank,
        size,
        5,
    )
    check_gradient(
        lambda x: (pj.broadcast(x, 1) ** 2 * weights[rank, 0]).sum(),
        lambda x: (x[1] ** 2 * weights[:, 0]).sum(),
        size,
        rank,
        5,
    )
    check_gradient(
        lambda x: (pj.sendrecv(x, after, before) ** 2 * weights[rank, 0]).sum(),
        lambda x: (jnp.roll(x, 1, axis=0) ** 2 * weights[:, 0]).sum(),
        size,
        rank,
        5,
    )


def test_forward_derivatives(pj: ModuleType, rank: int, size: int) -> None:
    x, v = arrays(size, 5), arrays(size, 5) + 1
    value, derivative = jax.jvp(lambda x: pj.all_reduce(x) ** 2, (x[rank],), (v[rank],))
    np.testing.assert_allclose(value, x.sum(0) ** 2, rtol=1e-5)
    np.testing.assert_allclose(derivative, 2 * x.sum(0) * v.sum(0), rtol=1e-4)
    hessian = jax.jit(jax.hessian(lambda x: (pj.all_reduce(x) ** 3).sum()))(x[rank])
    # Forward derivatives are along the vectors of all ranks, here the same one on every rank.
    np.testing.assert_allclose(hessian, jnp.diag(6 * x.sum(0)) * size, rtol=1e-4, atol=1e-5)


def test_transposes(pj: ModuleType, rank: int, size: int) -> None:
    """As in mpi4jax: that of a sum is the identity, and that of the identity is the sum."""
    x = arrays(size, 5)
    once = jax.linear_transpose(pj.all_reduce, x[rank])
    assert np.array_equal(jax.jit(once)(x[rank])[0], x[rank])
    twice = jax.linear_transpose(lambda y: once(y)[0], x[rank])
    np.testing.assert_allclose(twice(x[rank])[0], x.sum(0), rtol=1e-5)


@pytest.mark.parametrize("op", ["max", "product"])
def test_no_derivative(pj: ModuleType, op: str) -> None:
    with pytest.raises(NotImplementedError, match=f"all_reduce with op='{op}' has no derivative"):
        jax.grad(lambda x: pj.all_reduce(x, op).sum())(jnp.ones(2))
    with pytest.raises(NotImplementedError, match="send has no derivative: use sendrecv"):
        jax.grad(lambda x: (pj.send(x, 0), x.sum())[1])(jnp.ones(2))
    stopped = jax.grad(lambda x: (x * pj.all_reduce(lax.stop_gradient(x), op)).sum())(jnp.ones(2))
    assert stopped.shape == (2,)


def test_loops_and_branches(pj: ModuleType, rank: int, size: int) -> None:
    def body(carry: Any, x: Any) -> Any:
        total = pj.all_reduce(x)
        carry = lax.cond(
            total[0] > 0,
            lambda c: pj.all_reduce(c) / size,
            lambda c: pj.all_reduce(c, "max"),
            carry,
        )
        return carry + total, pj.all_gather(x)

    @jax.jit
    def function(xs: Any) -> Any:
        start = lax.fori_loop(0, 10, lambda i, c: pj.all_reduce(c) / size, jnp.zeros(3) + rank)
        carry, seen = lax.scan(body, start, xs)
        return lax.while_loop(
            lambda c: c[0].sum() < 1e3,
            lambda c: (pj.all_reduce(jnp.abs(c[0]) + 1), c[1] + 1),
            (carry, 0),
        ), seen

    xs = arrays(size, 7, 3)
    (result, steps), seen = function(xs[rank])
    carry = np.full(3, (size - 1) / 2)
    for i in range(7):
        carry = carry + np.asarray(xs[:, i].sum(0))
    count = 0
    while carry.sum() < 1e3:
        carry, count = size * (np.abs(carry) + 1), count + 1
    np.testing.assert_allclose(result, carry, rtol=1e-4)
    assert int(steps) == count
    assert np.array_equal(seen, jnp.swapaxes(xs, 0, 1))


def test_gradient_through_a_loop(pj: ModuleType, rank: int, size: int) -> None:
    def together(x: Any) -> Any:
        step = jax.checkpoint(lambda c, _: (jnp.sin(pj.all_reduce(c) / size), None))
        return lax.scan(step, x, None, length=4)[0].sum()

    def alone(x: Any) -> Any:
        return lax.scan(lambda c, _: (jnp.sin(c), None), x.mean(0), None, length=4)[0].sum()

    x = arrays(size, 3)
    # After the first step all ranks have the same, of which each counts 1/n of the sum.
    gradient = jax.jit(jax.grad(together))(x[rank])
    np.testing.assert_allclose(gradient, jax.grad(alone)(x)[rank] / size**3, rtol=1e-4)


def test_custom_derivatives(pj: ModuleType, rank: int, size: int) -> None:
    @jax.custom_vjp
    def function(x: Any) -> Any:
        return pj.all_reduce(x)

    function.defvjp(lambda x: (pj.all_reduce(x), x), lambda x, ct: (pj.all_reduce(ct) * x,))
    x = arrays(size, 3)
    gradient = jax.jit(jax.grad(lambda x: function(x).sum()))(x[rank])
    np.testing.assert_allclose(gradient, size * x[rank], rtol=1e-5)


def test_shard_map(pj: ModuleType, rank: int, size: int) -> None:
    """One device a process: the body is a call of each process, with and without JAX's check."""
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("x",), axis_types=auto, devices=jax.local_devices()[:1])
    spec = jax.sharding.PartitionSpec
    x = arrays(size, 4)
    for check in (False, True):
        function = jax.shard_map(
            lambda x: pj.all_reduce(x) + pj.all_gather(x).sum(0),
            mesh=mesh,
            in_specs=spec("x"),
            out_specs=spec("x"),
            check_vma=check,
        )
        np.testing.assert_allclose(jax.jit(function)(x[rank]), 2 * x.sum(0), rtol=1e-5)
        squares = jax.grad(lambda x, f=function: (f(x) ** 2).sum())
        assert jax.jit(squares)(x[rank]).shape == (4,)
