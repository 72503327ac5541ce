"""A Fourier transform of a 3-D array in pencils, over a grid of processes, with JAX.

    mpirun -np 4 python examples/fft_jax.py        # or: python -m paddlempi run -np 4 ...

Each process has a pencil: the whole of one dimension, and a part of the other two. It transforms
along the dimension that it has, and the processes of a row or a column of the grid then exchange
parts by ``lax.all_to_all``, so that each has the whole of the next dimension.
"""

from __future__ import annotations

import paddlempi.jax

paddlempi.jax.initialize()

import jax  # noqa: E402 (JAX's devices come after initialize)
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

SHAPE = (24, 16, 32)


def transform(pencil: jax.Array) -> jax.Array:
    """Return this process's part of the transform of an array of which it has a pencil along z.

    The pencil has the whole of z, and the parts of x and y that are this process's row and column.
    The result has the whole of x, and parts of y (by row) and z (by column).
    """
    pencil = jnp.fft.fft(pencil, axis=2)
    pencil = lax.all_to_all(pencil, "column", split_axis=2, concat_axis=1, tiled=True)  # all of y
    pencil = jnp.fft.fft(pencil, axis=1)
    pencil = lax.all_to_all(pencil, "row", split_axis=1, concat_axis=0, tiled=True)  # all of x
    return jnp.fft.fft(pencil, axis=0)


def main() -> None:
    """Transform an array over all processes, and compare with NumPy's transform of the whole."""
    count = jax.process_count()
    rows = 2 if count % 2 == 0 and count > 2 else 1
    mesh = jax.make_mesh((rows, count // rows), ("row", "column"), devices=jax.devices())
    random = np.random.default_rng(3)
    whole = random.normal(size=SHAPE) + 1j * random.normal(size=SHAPE)
    whole = whole.astype(np.complex64)

    before, after = PartitionSpec("row", "column", None), PartitionSpec(None, "row", "column")
    sharding = NamedSharding(mesh, before)
    pencils = jax.make_array_from_callback(SHAPE, sharding, lambda index: whole[index])
    spread = jax.jit(jax.shard_map(transform, mesh=mesh, in_specs=before, out_specs=after))(pencils)

    expected = np.fft.fftn(whole)
    for shard in spread.addressable_shards:
        np.testing.assert_allclose(shard.data, expected[shard.index], rtol=1e-3, atol=1e-2)
    if jax.process_index() == 0:
        print(f"a grid of {rows} x {count // rows} processes, as in one process", flush=True)


if __name__ == "__main__":
    main()
