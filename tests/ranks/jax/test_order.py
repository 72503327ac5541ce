"""Calls stay in order, and none is left out.

If two ranks had their calls in another order, they would call different things at the same time,
and get an error. So each test calls operations that differ from each other.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax


def test_independent_calls_of_a_function(pj: ModuleType, rank: int, size: int) -> None:
    """Nothing but the order orders them, and ranks are slow at other places."""

    def function(x: Any, slow: Any) -> Any:
        busy = [jnp.tanh(slow @ slow).sum() if rank == i else x.sum() for i in range(size)]
        given = [(x + b * 0)[: i + 1] for i, b in enumerate(busy * 3)]
        return [(pj.all_reduce, pj.all_gather)[i % 2](g) for i, g in enumerate(given)]

    results = jax.jit(function)(jnp.ones(20), jnp.ones((200, 200)))
    for i, result in enumerate(results):
        wanted = np.ones((size, i + 1))
        assert np.array_equal(result, wanted if i % 2 else wanted.sum(0))


def test_unused_results(pj: ModuleType, rank: int, size: int) -> None:
    """A call whose result is not used is made nevertheless, by this rank alone."""

    def function(x: Any) -> Any:
        pj.all_reduce(x) if rank == 0 else pj.all_reduce(x + 1)
        if rank:
            used = pj.all_gather(x)
        else:
            pj.all_gather(x)
            used = x
        pj.barrier()
        return used.sum()

    assert np.isfinite(jax.jit(function)(jnp.ones(3)))


def test_functions_one_after_another(pj: ModuleType, rank: int, size: int) -> None:
    """JAX runs a long function in the background, and short ones wait for it."""
    long = jax.jit(lambda x: pj.all_reduce(jnp.tanh(x @ x)[0]))
    short = [jax.jit(lambda x, op=op: pj.all_reduce(x, op)) for op in ("max", "min")]
    x, y = jnp.ones((300, 300)), jnp.arange(3) + rank
    results = []
    for i in range(12):
        results.append(long(x))
        results.append(short[i % 2](y))
        pj.all_gather(y)
    for i, (_, result) in enumerate(zip(results[::2], results[1::2], strict=True)):
        assert np.array_equal(result, np.arange(3) + (0 if i % 2 else size - 1))


def test_loops_between_calls(pj: ModuleType, rank: int, size: int) -> None:
    """A loop and the calls around it do not depend on each other's data."""

    @jax.jit
    def function(x: Any) -> Any:
        first = pj.all_gather(x)
        lax.fori_loop(0, 5, lambda i, c: pj.all_reduce(c, "max") + 1, x)
        middle = pj.all_reduce(x, "min")
        last = lax.cond(x[0] >= 0, lambda: pj.all_reduce(x, "product"), lambda: x)
        return first, middle, last, pj.broadcast(x, 0)

    first, middle, last, root = function(jnp.arange(3.0) + rank)
    ranks = np.arange(size)[:, None] + np.arange(3.0)
    assert np.array_equal(first, ranks) and np.array_equal(middle, ranks[0])
    assert np.array_equal(last, ranks.prod(0)) and np.array_equal(root, ranks[0])


def test_nested_functions(pj: ModuleType, rank: int, size: int) -> None:
    inner = jax.jit(lambda x: (pj.all_gather(x), pj.all_reduce(x, "max"))[1])
    outer = jax.jit(lambda x: (inner(x), pj.all_reduce(x), inner(x + 1)))
    a, b, c = outer(jnp.float32(rank))
    assert (float(a), float(b), float(c)) == (size - 1, size * (size - 1) / 2, size)


def test_messages_in_order(pj: ModuleType, rank: int) -> None:
    """Messages from one rank to another with one tag arrive in the order of the program."""
    if rank == 0:
        jax.jit(lambda x: [pj.send(x + i, 1) for i in range(10)] and None)(jnp.zeros(2))
    elif rank == 1:
        got = jax.jit(lambda x: [pj.recv(x, 0) for _ in range(10)])(jnp.zeros(2))
        assert [float(g[0]) for g in got] == list(range(10))


def test_data_orders_calls_that_are_not_ordered(pj: ModuleType, rank: int, size: int) -> None:
    def function(x: Any) -> Any:
        total = pj.all_reduce(x, ordered=False)
        parts = pj.all_gather(total, ordered=False)
        back = pj.reduce_scatter(parts, "max", ordered=False)
        return pj.broadcast(pj.all_to_all(back + parts, ordered=False), 0, ordered=False)

    result = jax.jit(function)(jnp.float32(rank))
    assert np.array_equal(result, np.full(size, size * (size - 1.0)))
    gradient = jax.jit(jax.grad(lambda x: pj.all_reduce(x, ordered=False) ** 2))(jnp.float32(rank))
    assert gradient == size * (size - 1)


def test_calls_take_the_fast_way(pj: ModuleType) -> None:
    """JAX calls the function without Python: it would take 100 us more."""
    function = jax.jit(lambda x: pj.all_reduce(x))
    function(jnp.ones(2))
    executable = function.lower(jnp.ones(2)).compile()._executable
    call = executable.unsafe_call
    assert not call.ordered_effects and not call.has_unordered_effects


@pytest.mark.parametrize("ordered", [True, False])
def test_an_order_of_jax_beside_ours(pj: ModuleType, size: int, ordered: bool) -> None:
    """Another ordered effect keeps its tokens."""
    seen: list[float] = []

    @jax.jit
    def function(x: Any) -> Any:
        for i in range(3):
            jax.debug.callback(lambda v: seen.append(float(v)), x + i, ordered=ordered)
            x = pj.all_reduce(x) / size
        return x

    for _ in range(2):
        function(jnp.float32(1)).block_until_ready()
    jax.effects_barrier()
    assert sorted(seen) == [1, 1, 2, 2, 3, 3] and (not ordered or seen == [1, 2, 3, 1, 2, 3])
