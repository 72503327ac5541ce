"""Several devices of one process: a rank makes a call once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from outside import environment

DEVICES = "--xla_force_host_platform_device_count=2"

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


# The devices come after initialize() has looked, and nobody looks at what is compiled. Each process
# has a device in both rows of the mesh.
LATER = (
    PRELUDE
    + """
from paddlempi.jax import _private
_private.watch_meshes = lambda refuse: None
pj.initialize()
jax.config.update("jax_num_cpu_devices", 2)
mesh = Mesh(np.array(jax.devices()).reshape(2, 2).T, ("y", "x"))
x = jax.make_array_from_callback(
    (2, 2), NamedSharding(mesh, P("x", "y")), lambda i: np.ones((2, 2), np.float32)[i]
)
everywhere = dict(mesh=mesh, in_specs=P("x", "y"), out_specs=P("x", "y"))
for call in (lambda a: jax.lax.psum(a, "x"), lambda a: jax.lax.all_gather(a, "x", tiled=True)):
    try:
        print(jax.jit(jax.shard_map(call, **everywhere))(x).addressable_shards[0].data)
    except Exception as error:
        assert "has 2 CPU devices" in str(error), error
    else:
        raise AssertionError("values")
dist.barrier()
"""
)


def run(folder: Path, program: str, ranks: int = 1, flags: str = DEVICES) -> None:
    """Run a program as a job without MPI, with two CPU devices."""
    path = folder / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "paddlempi", "run", "-np", str(ranks), str(path)],
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


def test_devices_of_which_only_xla_knows(rank: int, tmp_path: Path) -> None:
    """Without an error there were values of one device, and memory that nobody had written."""
    if rank == 0:
        run(tmp_path, LATER, 2, "")
