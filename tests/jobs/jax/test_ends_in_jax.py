"""Deadlines, Ctrl-C, ranks that die and the end of the program, inside of compiled functions.

JAX runs a short function on the thread that calls it, and a long one on a thread of its own: each
test has both.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import job


def functions_that_wait() -> None:
    """A deadline, and then Ctrl-C, in a function on the caller's thread and in one on JAX's."""
    import os
    import signal
    import threading
    import time

    import jax
    import jax.numpy as jnp
    import paddlempi.jax as pj
    from ranks_tools import dist, done, stamp, stamped, start

    rank = start()
    groups = [dist.new_group([0, 1], timeout=1 if i < 2 else 60) for i in range(4)]
    short, long = jnp.ones(3), jnp.ones((300, 300))
    functions = [
        jax.jit(lambda x, group=group: pj.all_reduce(x @ x, group=group)) for group in groups
    ]
    xs = [short, long, short, long]
    for function, x in zip(functions, xs, strict=True):
        function(x).block_until_ready()
    failed = (jax.errors.JaxRuntimeError, ValueError)
    if rank == 0:
        for function, x in zip(functions[:2], xs, strict=False):
            try:
                function(x).block_until_ready()
            except failed as error:
                text = str(error)
                assert "DEADLINE_EXCEEDED: paddlempi: all_reduce(float32[" in text, text
                assert "rank(s) [1] never came" in text, text
            else:
                raise AssertionError("no deadline")
        for function, x in zip(functions[2:], xs, strict=False):
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            try:
                try:
                    function(x).block_until_ready()
                except failed as error:  # JAX's error of the call comes first, if at all
                    assert "CANCELLED: paddlempi: interrupted" in str(error), error
                time.sleep(5)
            except KeyboardInterrupt:
                assert time.monotonic() - began < 4
            else:
                raise AssertionError("Ctrl-C was lost")
        stamp("over")
    else:
        while not stamped("over"):
            time.sleep(0.05)
    done()


def test_functions_that_wait() -> None:
    job.succeed(2, functions_that_wait)


def the_last_calls_are_not_waited_for() -> None:
    """A program may end while a function still runs: what it sends arrives."""
    import time

    import jax
    import jax.numpy as jnp
    import paddlempi.jax as pj
    from ranks_tools import done, start

    rank = start()
    x = jnp.ones((300, 300))
    if rank == 0:
        jax.jit(lambda x: pj.send(x @ x, 1))(x)
    else:
        time.sleep(0.5)
        assert float(jax.jit(lambda x: pj.recv(x, 0))(x)[0, 0]) == 300
    done()


def test_the_last_calls_are_not_waited_for() -> None:
    job.succeed(2, the_last_calls_are_not_waited_for)


DIES = """
import os, signal, sys
import jax, jax.numpy as jnp, paddlempi as dist, paddlempi.jax as pj

rank = int(sys.argv[1])
store = f"file://{sys.argv[2]}"
dist.init_process_group("mpi", init_method=store, rank=rank, world_size=2, timeout=30)
function = jax.jit(lambda x: pj.all_reduce(x @ x))
xs = (jnp.ones(3), jnp.ones((300, 300)))
for x in xs:
    function(x).block_until_ready()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
for x in xs:
    try:
        function(x).block_until_ready()
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        print(str(error).splitlines()[0], flush=True)
"""


def test_a_rank_dies(tmp_path: Path) -> None:
    """The other rank is told which one has died. No launcher ends it."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", DIES, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = ranks[0].communicate(timeout=60)[0].splitlines()
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert len(told) == 2, told
    assert "UNAVAILABLE: paddlempi: " in told[0] and "rank(s) [1]" in told[0], told


def a_mesh_of_processes() -> None:
    """shard_map over one device of each process: no collective of XLA is needed."""
    import socket

    import jax
    import jax.numpy as jnp
    import numpy as np
    import paddlempi.jax as pj
    from jax import lax
    from ranks_tools import dist, done, start

    rank = start()
    size = dist.get_world_size()
    port = [0]
    if rank == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = [free.getsockname()[1]]
    dist.broadcast_object_list(port, 0)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port[0]}", size, rank, local_device_ids=[0])
    spec = jax.sharding.PartitionSpec("ranks")
    whole = np.arange(4 * size, dtype=np.float32)
    after, before = (rank + 1) % size, (rank - 1) % size
    for kind in (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit):
        mesh = jax.make_mesh((size,), ("ranks",), axis_types=(kind,))
        sharding = jax.sharding.NamedSharding(mesh, spec)
        x = jax.make_array_from_callback(whole.shape, sharding, lambda i: whole[i])

        def spread(body, out, check=True, mesh=mesh):  # type: ignore[no-untyped-def]
            mapped = jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=out, check_vma=check)
            return jax.jit(mapped)

        rows = whole.reshape(size, 4)
        for check in (True, False):
            total = spread(pj.all_reduce, jax.sharding.PartitionSpec(), check)
            assert np.array_equal(total(x).addressable_data(0), rows.sum(0))
            ring = spread(
                lambda x: pj.sendrecv(x, after, before) + pj.all_gather(x)[0], spec, check
            )
            assert np.array_equal(ring(x).addressable_data(0), rows[before] + rows[0])
        total = spread(pj.all_reduce, jax.sharding.PartitionSpec())
        gradient = jax.jit(jax.grad(lambda x: (total(x) ** 2).sum()))(x)  # noqa: B023
        assert np.array_equal(gradient.addressable_data(0), 2 * rows.sum(0))

        def step(_, c):  # type: ignore[no-untyped-def]
            return lax.pcast(pj.all_reduce(c), "ranks", to="varying") / size

        looped = spread(lambda x: lax.fori_loop(0, 5, step, x), spec)
        assert np.allclose(looped(x).addressable_data(0), rows.mean(0))
    assert jnp.isfinite(1.0)
    jax.distributed.shutdown()
    done()


def test_a_mesh_of_processes() -> None:
    job.succeed(2, a_mesh_of_processes)


def both_beside_each_other() -> None:
    """mpi4py begins MPI and uses it between our calls."""
    from mpi4py import MPI  # isort: skip
    import jax
    import jax.numpy as jnp
    import numpy as np
    import paddlempi.jax as pj
    from ranks_tools import dist, done

    dist.init_process_group("mpi", comm=MPI.COMM_WORLD)
    function = jax.jit(lambda x: pj.all_reduce(x) + 1)
    for _ in range(20):
        result = function(jnp.ones(4))
        theirs = np.empty(4, np.float32)
        MPI.COMM_WORLD.Allreduce(np.ones(4, np.float32), theirs)
        assert np.array_equal(result, theirs + 1)
    done()


def test_mpi4py_beside_us() -> None:
    job.succeed(2, both_beside_each_other)
