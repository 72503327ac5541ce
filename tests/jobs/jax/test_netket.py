"""NetKet, which shards its samples over JAX's processes, finds a ground state."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from jax_job import succeed

if importlib.util.find_spec("netket") is None:
    pytest.skip("netket is not installed: make test-jax-netket", allow_module_level=True)

PROGRAM = """
import os

os.environ["NETKET_EXPERIMENTAL_SHARDING"] = "1"
import netket as nk

assert nk.config.netket_experimental_sharding
space = nk.hilbert.Spin(0.5, 8)
chain = nk.operator.IsingJax(space, graph=nk.graph.Chain(8), h=1.0)
sampler = nk.sampler.MetropolisLocal(space, n_chains=8 * size)
state = nk.vqs.MCState(sampler, nk.models.RBM(alpha=1), n_samples=512, seed=1, sampler_seed=2)
nk.driver.VMC(
    chain, nk.optimizer.Sgd(0.05), variational_state=state,
    preconditioner=nk.optimizer.SR(diag_shift=0.01),
).run(30, out=None, show_progress=False)
energy = float(state.expect(chain).mean.real)
exact = nk.exact.lanczos_ed(chain)[0]
assert abs(energy - exact) < 0.01 * abs(exact), (energy, exact)
print("done", energy, flush=True)
"""


def test_ground_state(tmp_path: Path) -> None:
    """All processes have the same energy, which is the exact one but for a percent."""
    output = succeed(2, PROGRAM, tmp_path)
    energies = {line.split()[1] for line in output.splitlines() if line.startswith("done")}
    assert output.count("done") == 2 and len(energies) == 1, output
