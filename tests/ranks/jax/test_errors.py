"""Errors: wrong arguments, and what the core finds in a call."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paddlempi import errors

FAILED = (jax.errors.JaxRuntimeError, ValueError)
"""An error of a call. JAX's fast path raises the second kind."""

Way = Callable[[Any], Any]


def test_other_shapes(pj: ModuleType, way: Way, rank: int, size: int) -> None:
    """All ranks name the ranks and their shapes; the group goes on."""
    x = jnp.ones(2 if rank else 3)
    text = (
        r"ABORTED: paddlempi: all_reduce: the ranks do not call the same thing: "
        r".*rank\(s\) \[0\]: all_reduce\(float32\[3\], SUM\)"
    )
    with pytest.raises(FAILED, match=text):
        jax.block_until_ready(way(lambda x: pj.all_reduce(x))(x))
    assert way(pj.all_reduce)(jnp.ones(2)).tolist() == [size, size]


def test_other_operations(pj: ModuleType, rank: int, size: int) -> None:
    with pytest.raises(FAILED, match=r"ABORTED: .* do not call the same thing"):
        function = pj.all_reduce if rank else pj.all_gather
        jax.jit(function)(jnp.ones(2)).block_until_ready()
    with pytest.raises(FAILED, match="do not call the same thing"):
        jax.jit(lambda x: pj.all_reduce(x, "max" if rank else "min"))(
            jnp.ones(2)
        ).block_until_ready()
    assert pj.all_reduce(jnp.ones(2)).tolist() == [size, size]


def test_a_dtype_that_an_op_does_not_take(pj: ModuleType) -> None:
    with pytest.raises(FAILED, match=r"FAILED_PRECONDITION: paddlempi: .*BAND"):
        pj.all_reduce(jnp.ones(2), "band").block_until_ready()


def test_a_message_of_another_length(pj: ModuleType, rank: int) -> None:
    if rank == 0:
        pj.send(jnp.ones(3), 1)
    elif rank == 1:
        with pytest.raises(FAILED, match=r"paddlempi: recv.* 12 bytes"):
            pj.recv(jnp.ones(2), 0).block_until_ready()


@pytest.mark.parametrize("trace", [False, True])
def test_wrong_arguments(pj: ModuleType, rank: int, size: int, trace: bool) -> None:
    """They are found before anything is sent, on this rank alone."""
    x = jnp.ones(size + 1)
    wrong: dict[str, tuple[type[Exception], Any]] = {
        "all_reduce: op='mean' is no reduce op": (
            errors.DtypeError,
            lambda: pj.all_reduce(x, "mean"),
        ),
        "all_reduce: op=3 is no reduce op": (errors.DtypeError, lambda: pj.all_reduce(x, 3)),
        "all_reduce: group is a list": (errors.DtypeError, lambda: pj.all_reduce(x, group=[0])),
        "all_reduce: x is a str": (errors.DtypeError, lambda: pj.all_reduce("x")),
        "all_reduce: an array of dtype int4": (
            errors.DtypeError,
            lambda: pj.all_reduce(x.astype("int4")),
        ),
        rf"all_to_all: x has shape \({size + 1},\): its first dimension must be {size}, the": (
            errors.ArgumentError,
            lambda: pj.all_to_all(x),
        ),
        rf"reduce_scatter: x has shape \({size + 1},\): .* must be a multiple of {size}": (
            errors.ArgumentError,
            lambda: pj.reduce_scatter(x, tiled=True),
        ),
        "all_gather: x is a scalar": (
            errors.ArgumentError,
            lambda: pj.all_gather(jnp.float32(1), tiled=True),
        ),
        "broadcast: src=99 is not among": (errors.ArgumentError, lambda: pj.broadcast(x, 99)),
        "broadcast: src or group_src must be given": (
            errors.ArgumentError,
            lambda: pj.broadcast(x),
        ),
        "send: dst is a str": (errors.DtypeError, lambda: pj.send(x, "0")),
        "send: tag=-1 is out of range": (errors.ArgumentError, lambda: pj.send(x, 0, tag=-1)),
        "recv: tag is a float": (errors.DtypeError, lambda: pj.recv(x, 0, tag=0.5)),
    }
    for text, (error, call) in wrong.items():
        with pytest.raises(error, match=text):
            jax.jit(lambda _, call=call: call() and None)(x) if trace else call()


def test_no_derivative_of_any_source(pj: ModuleType, rank: int, size: int) -> None:
    from paddlempi.jax import mpi4jax

    after, before = (rank + 1) % size, (rank - 1) % size
    x = jnp.ones(2)
    result = mpi4jax.sendrecv(x, x, source=before, dest=after)
    assert np.array_equal(result, x)
    with pytest.raises(NotImplementedError, match="if it receives from any rank, or any tag"):
        jax.linear_transpose(lambda x: mpi4jax.sendrecv(x, x, before, after), x)(x)


def test_a_group_that_was_destroyed(dist: ModuleType, pj: ModuleType, size: int) -> None:
    group = dist.new_group(list(range(size)))
    function = jax.jit(lambda x: pj.all_reduce(x, group=group))
    assert function(jnp.ones(2)).tolist() == [size, size]
    dist.destroy_process_group(group)
    with pytest.raises(FAILED, match="FAILED_PRECONDITION: paddlempi: "):
        function(jnp.ones(2)).block_until_ready()
