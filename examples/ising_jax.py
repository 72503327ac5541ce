"""Variational Monte Carlo with JAX: the ground state of a chain of spins, in NetKet's manner.

    mpirun -np 2 python examples/ising_jax.py        # or: python -m paddlempi run -np 2 ...

Every process has some of the Markov chains. The energy is a mean over the samples of all of them,
``paddlempi.jax.all_reduce`` inside ``jit``, and its gradient goes through that: the derivative of
all_reduce is each process's part, and a second all_reduce adds the parts up. JAX itself knows of
one process only, so there is nothing to start. At the end each process runs all chains alone, and
compares.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import paddlempi as dist
from paddlempi import jax as pjax

SPINS, HIDDEN, FIELD = 10, 10, 1.0
CHAINS, SWEEPS, STEPS, RATE = 16, 20, 20, 0.05

Model = tuple[jax.Array, jax.Array, jax.Array]
"""The weights and biases of a restricted Boltzmann machine."""


def log_psi(model: Model, spins: jax.Array) -> jax.Array:
    """Return the logarithm of the wave function's amplitude; spins are +1 and -1."""
    weights, visible, hidden = model
    return spins @ visible + jnp.sum(jnp.log(jnp.cosh(spins @ weights + hidden)))


def sweep(model: Model, spins: jax.Array, key: jax.Array) -> jax.Array:
    """Return the sample of a chain after a try to turn each spin (Metropolis)."""

    def turn(spins: jax.Array, random: jax.Array) -> tuple[jax.Array, None]:
        where, chance = random
        other = spins.at[(where * SPINS).astype(int)].multiply(-1)
        better = 2 * (log_psi(model, other) - log_psi(model, spins))
        return jnp.where(jnp.log(chance) < better, other, spins), None

    return jax.lax.scan(turn, spins, jax.random.uniform(key, (SPINS, 2)))[0]


def local_energy(model: Model, spins: jax.Array) -> jax.Array:
    """Return the energy of a sample: neighbours that are alike, and a field across."""
    turned = spins * (1 - 2 * jnp.eye(SPINS))
    ratios = jnp.exp(jax.vmap(partial(log_psi, model))(turned) - log_psi(model, spins))
    return -jnp.sum(spins * jnp.roll(spins, 1)) - FIELD * jnp.sum(ratios)


@partial(jax.jit, static_argnums=3)
def step(
    model: Model, spins: jax.Array, keys: jax.Array, alone: bool
) -> tuple[Model, jax.Array, jax.Array]:
    """Return the model after a step, the samples, and the energy.

    ``spins`` and ``keys`` are those of this process's chains, or of all chains with ``alone``.
    """

    def total(x: jax.Array) -> jax.Array:
        return x if alone else pjax.all_reduce(x)

    def more(spins: jax.Array, key: jax.Array) -> jax.Array:
        each = jax.random.split(key, SWEEPS)
        return jax.lax.scan(lambda s, k: (sweep(model, s, k), None), spins, each)[0]

    spins = jax.vmap(more)(spins, keys)
    energies = jax.vmap(partial(local_energy, model))(spins)
    energy = total(jnp.sum(energies)) / CHAINS

    def surrogate(model: Model) -> jax.Array:
        logs = jax.vmap(partial(log_psi, model))(spins)
        return total(jnp.sum((energies - energy) * logs)) * 2 / CHAINS

    gradients = jax.tree.map(total, jax.grad(surrogate)(model))
    return jax.tree.map(lambda p, g: p - RATE * g, model, gradients), spins, energy


def train(chains: range, alone: bool) -> tuple[Model, list[float]]:
    """Return the model after all steps, and the energies; ``chains`` are those that run here."""
    key = jax.random.key(7)
    weights = 0.1 * jax.random.normal(key, (SPINS, HIDDEN))
    model: Model = (weights, jnp.zeros(SPINS), jnp.zeros(HIDDEN))
    keys = jax.vmap(lambda chain: jax.random.fold_in(key, chain))(jnp.array(chains))
    spins = jax.vmap(lambda k: jax.random.rademacher(k, (SPINS,), float))(keys)
    energies = []
    for i in range(STEPS):
        now = jax.vmap(lambda k, i=i: jax.random.fold_in(k, i))(keys)
        model, spins, energy = step(model, spins, now, alone)
        energies.append(float(energy))
    return model, energies


def main() -> None:
    """Find the ground state over all processes, find it alone, and compare."""
    dist.init_process_group("mpi")
    rank, size = dist.get_rank(), dist.get_world_size()
    model, energies = train(range(CHAINS * rank // size, CHAINS * (rank + 1) // size), False)
    alone, energies_alone = train(range(CHAINS), True)
    # Sums are in another order, so in the end a chain may take another turn.
    np.testing.assert_allclose(energies[:5], energies_alone[:5], rtol=1e-4)
    np.testing.assert_allclose(energies[-1], energies_alone[-1], rtol=0.1)
    for theirs, of_one in zip(model, alone, strict=True):
        np.testing.assert_allclose(theirs, of_one, atol=0.1)
    if rank == 0:
        print(f"energy {energies[0]:.3f} -> {energies[-1]:.3f}, as in one process", flush=True)


if __name__ == "__main__":
    main()
