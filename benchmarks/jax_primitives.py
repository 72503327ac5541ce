"""all_reduce in compiled functions of JAX, compared with JAX's psum over gloo, in turn in one run.

    mpirun -np 2 python benchmarks/jax_primitives.py [--json FILE]    # or: make bench-jax

Two comparisons: one call of a compiled function, and a ``fori_loop`` of 100 calls in one compiled
function. In a round each contender has a block of calls, in an order that is random. A sample is
the time of a block, divided by its calls. The ratio of a round is that of gloo's sample to the
contender's; the table has the median of the ratios and its quartiles. ``nothing`` is a compiled
function that adds 1: what a call costs without communication. gloo sums over a mesh of all
processes, so its arrays are global; ours are arrays of each process.

A result is waited for after each call.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import paddlempi as dist
import paddlempi.jax as pj
from jax import lax
from paddlempi.cli.bench import report
from paddlempi.cli.bench.figures import quantile, quartiles, ratios
from paddlempi.cli.bench.sampling import shuffled

SIZES = (8, 4 << 10, 64 << 10, 1 << 20, 16 << 20)
LOOP = 100
Block = Callable[[int], float]
"""Makes a number of calls, and returns the seconds that they took."""


def start_gloo() -> Any:
    """Connect the processes by JAX's service, and return the sharding over all of them."""
    port = [0]
    if dist.get_rank() == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = [free.getsockname()[1]]
    dist.broadcast_object_list(port, 0)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port[0]}", dist.get_world_size(), dist.get_rank(), local_device_ids=[0]
    )
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((dist.get_world_size(),), ("ranks",), axis_types=auto)
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("ranks"))


def block(function: Any, x: Any) -> Block:
    def run(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            function(x).block_until_ready()
        return time.perf_counter() - began

    return run


def looped(step: Any) -> Any:
    size = dist.get_world_size()
    return lambda x: lax.fori_loop(0, LOOP, lambda _, value: step(value) / size, x)


def blocks(nbytes: int, sharding: Any) -> dict[str, dict[str, Block]]:
    """Return the contenders of each comparison."""
    count = nbytes // 4
    mine = jnp.ones(count, jnp.float32)
    size = dist.get_world_size()
    shape = (count * size,)
    everybodys = jax.make_array_from_callback(shape, sharding, lambda _: mine)

    def over_gloo(step: Any) -> Any:
        spec = sharding.spec
        return jax.jit(jax.shard_map(step, mesh=sharding.mesh, in_specs=spec, out_specs=spec))

    def psum(x: Any) -> Any:
        return lax.pcast(lax.psum(x, "ranks"), "ranks", to="varying")

    def unordered(x: Any) -> Any:
        return pj.all_reduce(x, ordered=False)

    return {
        "call": {
            "gloo": block(over_gloo(psum), everybodys),
            "ordered": block(jax.jit(pj.all_reduce), mine),
            "unordered": block(jax.jit(unordered), mine),
            "nothing": block(jax.jit(lambda x: x + 1), mine),
        },
        f"loop of {LOOP}": {
            "gloo": block(over_gloo(looped(psum)), everybodys),
            "ordered": block(jax.jit(looped(pj.all_reduce)), mine),
            "unordered": block(jax.jit(looped(unordered)), mine),
        },
    }


def measure(contenders: dict[str, Block], calls: int, rounds: int) -> dict[str, Any]:
    """Return statistics of the samples, in microseconds a call, and of gloo's ratios to them."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(rounds + 1):
        for name in shuffled(list(contenders), round_):
            dist.barrier()
            seconds = contenders[name](calls)
            if round_ >= 1:  # the first one compiles
                samples[name].append(seconds / calls * 1e6)
    return {
        name: {
            "p25_us": quantile(samples[name], 0.25),
            "p50_us": quantile(samples[name], 0.5),
            "ratio": quartiles(ratios(samples["gloo"], samples[name])),
        }
        for name in contenders
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()

    dist.init_process_group("mpi")
    sharding = start_gloo()
    rank = dist.get_rank()
    environment = report.environment()
    if rank == 0:
        print(report.headline(environment))
        print(f"{'bytes':>8} {'':12} {'':9} {'p25 us':>9} {'p50 us':>9}  gloo's time over it")
    gc.disable()
    rows = []
    for nbytes in options.sizes:
        for what, contenders in blocks(nbytes, sharding).items():
            repeats = 1 if what == "call" else LOOP
            calls = max(1, (100 if nbytes <= 64 << 10 else 5) // repeats)
            rounds = options.rounds if calls * repeats * nbytes <= 200 << 20 else 3
            result = measure(contenders, calls, rounds)
            rows.append({"bytes": nbytes, "what": what, "rounds": rounds} | result)
            for name, row in result.items():
                if rank == 0:
                    p25, p50 = row["p25_us"] / repeats, row["p50_us"] / repeats
                    print(
                        f"{nbytes:>8} {what:12} {name:9} {p25:9.2f} {p50:9.2f}  "
                        f"{row['ratio'].show()}",
                        flush=True,
                    )
    if options.json and rank == 0:
        Path(options.json).write_text(json.dumps(environment | {"rows": rows}, indent=1))
    jax.distributed.shutdown()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
