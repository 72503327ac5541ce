"""Data-parallel training with JAX and Equinox: XLA adds the gradients up over all processes.

    mpirun -np 4 python examples/train_jax.py        # or: python -m paddlempi run -np 4 ...

Every process has its rows of each batch (``jax.sharding``), and all have the same model. The loss
is the mean over the whole batch, so XLA puts an all-reduce into the step; nothing here says so.
At the end each process trains alone on the whole batches, and compares.
"""

from __future__ import annotations

import paddlempi.jax

paddlempi.jax.initialize()

import equinox as eqx  # noqa: E402 (JAX's devices come after initialize)
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

BATCH, STEPS, RATE = 64, 30, 0.1


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return inputs and targets of all steps: a function that is to be learnt."""
    random = np.random.default_rng(1)
    inputs = random.uniform(-1, 1, (STEPS, BATCH, 4)).astype(np.float32)
    return [(x, np.sin(3 * x[:, :1]) * x[:, 1:2] + x[:, 2:3]) for x in inputs]


def loss(model: eqx.nn.MLP, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the mean squared error over the batch."""
    return jnp.mean((jax.vmap(model)(x) - y) ** 2)


@eqx.filter_jit
def step(model: eqx.nn.MLP, x: jax.Array, y: jax.Array) -> tuple[eqx.nn.MLP, jax.Array]:
    """Return the model after a step of gradient descent, and the loss before it."""
    value, gradients = eqx.filter_value_and_grad(loss)(model, x, y)
    return eqx.apply_updates(model, jax.tree.map(lambda g: -RATE * g, gradients)), value


def main() -> None:
    """Train over all processes, train alone, and compare the losses and the models."""
    mesh = jax.make_mesh((jax.process_count(),), ("batch",), devices=jax.devices())
    rows, alike = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
    first = eqx.nn.MLP(4, 1, 32, 2, key=jax.random.key(0))
    arrays, rest = eqx.partition(first, eqx.is_array)
    spread = jax.tree.map(lambda a: jax.make_array_from_process_local_data(alike, a), arrays)

    mine = slice(
        BATCH * jax.process_index() // jax.process_count(),
        BATCH * (jax.process_index() + 1) // jax.process_count(),
    )
    model, alone, losses, losses_alone = eqx.combine(spread, rest), first, [], []
    for x, y in batches():
        parts = (jax.make_array_from_process_local_data(rows, a[mine]) for a in (x, y))
        model, value = step(model, *parts)
        losses.append(float(value))
        alone, value = step(alone, x, y)
        losses_alone.append(float(value))

    np.testing.assert_allclose(losses, losses_alone, rtol=1e-4)
    leaves = zip(jax.tree.leaves(model), jax.tree.leaves(alone), strict=True)
    for a, b in ((a, b) for a, b in leaves if eqx.is_array(a)):
        np.testing.assert_allclose(a.addressable_data(0), b, atol=1e-4)
    if jax.process_index() == 0:
        print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}, as in one process", flush=True)


if __name__ == "__main__":
    main()
