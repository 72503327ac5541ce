"""XLA's own collectives over the core's groups, as JAX calls them."""

from __future__ import annotations

from pathlib import Path

from jax_job import succeed

VALUES = """
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)
everything = {
    "bool": "am", "int8": "amr", "uint8": "amr", "int32": "amr", "int64": "amr", "uint32": "amr",
    "float16": "", "bfloat16": "amr", "float32": "amr", "float64": "amr", "complex64": "ar",
    "complex128": "ar",
}
for dtype, kinds in everything.items():
    of_ranks = [(np.arange(8 * size) % 3 + i % 2).astype(jnp.dtype(dtype)) for i in range(size)]
    x = spread(of_ranks[rank])
    wide = [a.astype(complex) for a in of_ranks]
    def equal(function, expected):
        np.testing.assert_allclose(mine(mapped(function)(x)).astype(complex), expected, rtol=1e-5)
    if "r" in kinds:
        equal(lambda a: lax.psum(a, "x"), sum(wide))
        equal(lambda a: lax.psum_scatter(a, "x", tiled=True), sum(wide)[8 * rank : 8 * rank + 8])
    if "m" in kinds:
        equal(lambda a: lax.pmax(a, "x"), np.max([w.real for w in wide], axis=0))
        equal(lambda a: lax.pmin(a, "x"), np.min([w.real for w in wide], axis=0))
    if "a" in kinds:
        equal(lambda a: lax.all_gather(a, "x", tiled=True), np.concatenate(wide))
    parts = np.concatenate([w[8 * rank : 8 * rank + 8] for w in wide])
    equal(lambda a: lax.all_to_all(a, "x", 0, 0, tiled=True), parts)
    ring = [(i, (i + 1) % size) for i in range(size)]
    equal(lambda a: lax.ppermute(a, "x", ring), wide[rank - 1])
one = mapped(lambda a: lax.ppermute(a, "x", [(0, size - 1)]))(spread(np.ones(4) + rank))
assert (mine(one) == (rank == size - 1)).all()
large = np.full(3 << 20, 1 + rank, np.float32)
assert (mine(mapped(lambda a: lax.psum(a, "x"))(spread(large))) == size * (size + 1) / 2).all()

# Rows and columns of a mesh: every process takes part, some in other cliques.
grid = Mesh(np.array(jax.devices()).reshape(1, size), ("row", "column"))
add = shard_map(lambda a: (lax.psum(a, "row"), lax.psum(a, "column")), mesh=grid,
                in_specs=P(("row", "column")), out_specs=(P("column"), P("row")), check_vma=False)
place = NamedSharding(grid, P(("row", "column")))
of_row, of_column = jax.jit(add)(jax.make_array_from_process_local_data(place, np.array([rank])))
assert mine(of_row) == rank and mine(of_column) == sum(range(size))

# Some processes only: an error at once, and everything else goes on.
if rank < size - 1:
    part = Mesh(np.array(jax.devices()[: size - 1]), ("x",))
    held = jax.make_array_from_process_local_data(NamedSharding(part, P("x")), np.ones(2))
    assert (mine(jax.jit(lambda a: a + 1)(held)) == 2).all()  # without a collective it works
    for _ in range(2):
        try:
            jax.jit(lambda a: a.sum())(held)
            raise SystemExit("no error")
        except dist.errors.UnsupportedError as error:
            assert "processes 0, 1 of 3" in str(error) and "gloo" in str(error), error
back = Mesh(np.array(jax.devices()[::-1]), ("x",))
turned = jax.make_array_from_process_local_data(NamedSharding(back, P("x")), np.array([1.0 + rank]))
assert jax.jit(lambda a: a.sum())(turned) == size * (size + 1) / 2
print("done", flush=True)
"""


def test_values(tmp_path: Path) -> None:
    """All collectives and dtypes; meshes in another order, of rows and columns, and of a part."""
    assert succeed(3, VALUES, tmp_path, options="split_timeout=5").count("done") == 3


GLOO = """
if rank < 2:
    part = Mesh(np.array(jax.devices()[:2]), ("x",))
    held = jax.make_array_from_process_local_data(NamedSharding(part, P("x")), np.ones(2))
    assert jax.jit(lambda a: a.sum())(held) == 4
dist.barrier()
print("done", flush=True)
"""


def test_gloo_for_a_mesh_of_some_processes(tmp_path: Path) -> None:
    assert succeed(3, GLOO, tmp_path, mpi="node", options="collectives='gloo'").count("done") == 3
