"""Run programs as JAX's processes."""

from __future__ import annotations

from pathlib import Path

from paddlempi.testing import launch

ROOT = Path(__file__).resolve().parents[3]

BEGIN = """
import sys, time
import jax
import numpy as np
import paddlempi as dist
import paddlempi.jax

paddlempi.jax.initialize({options})
rank, size = jax.process_index(), jax.process_count()
assert (rank, size) == (dist.get_rank(), dist.get_world_size())
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("x",))
rows = NamedSharding(mesh, P("x"))


def spread(local):
    return jax.make_array_from_process_local_data(rows, local)


def mapped(function, out=P("x")):
    return jax.jit(shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=out, check_vma=False))


def mine(array):
    return np.asarray(array.addressable_shards[0].data)

"""
"""The beginning of programs: jax is imported first, as sorted imports have it."""


def run(
    ranks: int, program: str | Path, tmp_path: Path, *, mpi: str | None = None, options: str = ""
) -> launch.Result:
    """Run a program, or what comes after :data:`BEGIN`, to its end.

    Args:
        mpi: ``"node"``: without an MPI; None: over the MPI of this environment.
        options: arguments of ``paddlempi.jax.initialize`` in :data:`BEGIN`.
    """
    script = program
    if isinstance(program, str):
        script = tmp_path / "program.py"
        script.write_text(BEGIN.format(options=options) + program)
    # XLA's threads would get in each other's way.
    env = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "OMP_NUM_THREADS": "1"}
    result = launch.run(ranks, str(script), mpi=mpi, timeout=120, env=env, cwd=tmp_path)
    assert not result.timed_out, result.output
    return result


def succeed(
    ranks: int, program: str | Path, tmp_path: Path, *, mpi: str | None = None, options: str = ""
) -> str:
    """Run a program as :func:`run` does; return its output. Fail unless it succeeds."""
    result = run(ranks, program, tmp_path, mpi=mpi, options=options)
    assert result.returncode == 0, result.output
    return result.output
