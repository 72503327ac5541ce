"""Several devices of one process: a rank makes a call once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from outside import environment

PRELUDE = """
import jax, jax.numpy as jnp, numpy as np
import paddlempi as dist, paddlempi.jax as pj
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
"""

CALLS = (
    PRELUDE
    + """
dist.init_process_group()
mesh, x = Mesh(np.array(jax.devices()), ("x",)), jnp.arange(4.0)
assert mesh.size == 2
there = jax.device_put(x, NamedSharding(mesh, P("x")))
everywhere = dict(mesh=mesh, in_specs=P("x"), out_specs=P("x"))
calls = [
    lambda: jax.shard_map(pj.all_reduce, **everywhere)(x),
    lambda: jax.jit(jax.shard_map(pj.all_reduce, **everywhere))(x),
    lambda: jax.jit(jax.shard_map(lambda x: pj.broadcast(x * 2, 0), **everywhere))(x),
    lambda: jax.jit(pj.all_reduce)(there),
    lambda: pj.all_reduce(there),
    lambda: jax.pmap(pj.all_reduce)(x.reshape(2, 2)),
]
for number, call in enumerate(calls):
    try:
        call()
    except dist.errors.UnsupportedError as error:
        assert "2 devices of this process" in str(error), error
    else:
        raise AssertionError(number)
one = Mesh(np.array(jax.devices()[:1]), ("x",))
assert jax.shard_map(pj.all_reduce, mesh=one, in_specs=P("x"), out_specs=P("x"))(x).sum() == 6
assert jax.jit(pj.all_reduce)(jax.device_put(x, jax.devices()[1])).sum() == 6
"""
)

START = (
    PRELUDE
    + """
try:
    pj.initialize()
except dist.errors.ArgumentError as error:
    assert "2 CPU devices" in str(error) and "XLA_FLAGS" in str(error), error
else:
    raise AssertionError("started")
"""
)


def run(folder: Path, program: str) -> None:
    """Run a program as the only rank of a job without MPI, with two CPU devices."""
    path = folder / "program.py"
    path.write_text(program)
    flags = "--xla_force_host_platform_device_count=2"
    done = subprocess.run(
        [sys.executable, "-m", "paddlempi", "run", "-np", "1", str(path)],
        env={**environment(), "XLA_FLAGS": flags},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_calls_on_two_devices(rank: int, tmp_path: Path) -> None:
    if rank == 0:
        run(tmp_path, CALLS)


def test_initialize_with_two_devices(rank: int, tmp_path: Path) -> None:
    if rank == 0:
        run(tmp_path, START)
