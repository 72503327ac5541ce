"""An all_reduce compared with MPI's in a loop in C, by messages and in mapped memory.

    mpirun -np 2 python benchmarks/overhead.py [--json FILE]        # or: make bench-c

``python -m paddlempi bench`` compares paddlempi with mpi4py, gloo and plain MPI. This program adds
a contender that it cannot have, because it needs a C compiler: a loop in C that calls the same
libmpi. A sample is the time of a block of calls, divided by their number. The program also
measures what ``import paddlempi`` adds to a bare interpreter.

Sizes are bytes of a float32 SUM in place: in ordinary memory, where the core calls MPI unless the
tensor is small, and in memory that the ranks map (``mapped``). It needs mpi4py and a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

import numpy as np  # noqa: E402
import paddlempi as dist  # noqa: E402
from loops import compiled  # noqa: E402
from mpi4py import MPI  # noqa: E402
from paddlempi.cli.bench import report  # noqa: E402
from paddlempi.cli.bench.figures import quantile, quartiles, ratios  # noqa: E402
from paddlempi.cli.bench.sampling import shuffled  # noqa: E402

SIZES = (8, 1 << 10, 4 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20)

# The function pointer and the handles come from the caller, so no mpi.h is needed.
C_LOOP = r"""
typedef int (*allreduce)(void *, void *, int, void *, void *, void *);
double loop(allreduce f, void *in_place, void *buf, int count, void *type, void *op, void *comm,
            long calls)
{
	double start = now();
	for (long i = 0; i < calls; i++)
		f(in_place, buf, count, type, op, comm);
	return now() - start;
}
"""


Block = Callable[[np.ndarray, int], float]
"""Makes a number of calls on an array, and returns the seconds that they took."""


def mpi_contender(loops: ctypes.CDLL, path: str, in_place: int) -> Block:
    """Return the loop over MPI_Allreduce of the library at ``path``."""
    pointer, loop = ctypes.c_void_p, loops.loop
    loop.restype = ctypes.c_double
    loop.argtypes = [*[pointer] * 3, ctypes.c_int, *[pointer] * 3, ctypes.c_long]
    function = ctypes.cast(ctypes.CDLL(path).MPI_Allreduce, pointer)
    handles = [MPI._handleof(x) for x in (MPI.FLOAT, MPI.SUM, MPI.COMM_WORLD)]

    def block(a: np.ndarray, calls: int) -> float:
        return float(loop(function, in_place, a.ctypes.data, a.size, *handles, calls))

    return block


def mpi4py_contender(a: np.ndarray, calls: int) -> float:
    allreduce, in_place = MPI.COMM_WORLD.Allreduce, MPI.IN_PLACE
    start = time.perf_counter()
    for _ in range(calls):
        allreduce(in_place, a)
    return time.perf_counter() - start


def paddlempi_contender(a: np.ndarray, calls: int) -> float:
    all_reduce = dist.all_reduce
    start = time.perf_counter()
    for _ in range(calls):
        all_reduce(a)
    return time.perf_counter() - start


def measure(contenders: dict[str, tuple[Block, bool]], size: int, rounds: int) -> dict[str, Any]:
    """Measure all contenders at one size. Those marked true get memory that the ranks map.

    Returns:
        Statistics of the samples, in microseconds a call, and of their ratios to C.
    """
    ordinary = np.zeros(size // 4, np.float32)
    mapped = dist.zeros(size // 4, np.float32)
    calls = 200 if size <= 4096 else 20 if size <= 65536 else 2 if size <= 4 << 20 else 1
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds + 2):
        for name in shuffled(names, round_):
            block, shared = contenders[name]
            MPI.COMM_WORLD.Barrier()
            seconds = block(mapped if shared else ordinary, calls)
            if round_ >= 2:  # the first two touch memory and fill caches
                samples[name].append(seconds / calls * 1e6)
    result: dict[str, Any] = {"bytes": size, "calls": calls, "rounds": rounds}
    for name in names:
        above = [x - c for x, c in zip(samples[name], samples["C"], strict=True)]
        result[name] = {
            "p50_us": quantile(samples[name], 0.5),
            "p99_us": quantile(samples[name], 0.99),
            "above_C_us": quantile(above, 0.5),
            "ratio": quartiles(ratios(samples[name], samples["C"])),
        }
    return result


def show(row: dict[str, Any], names: Iterable[str]) -> None:
    """Print a line for each contender."""
    for name in names:
        r = row[name]
        print(
            f"{row['bytes'] if name == 'C' else '':>10} {name:20} {r['p50_us']:10.2f} "
            f"{r['p99_us']:10.2f} {r['above_C_us']:9.2f}  {r['ratio'].show()}",
            flush=True,
        )


def import_cost(times: int = 15) -> float:
    """Return the milliseconds that ``import paddlempi`` adds to ``python -c pass``.

    The result is the median of the differences of ``times`` pairs.
    """

    def run(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    run("import paddlempi")
    return 1e3 * statistics.median(run("import paddlempi") - run("pass") for _ in range(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=100, help="large sizes have fewer")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()

    dist.init_process_group("mpi")
    environment = report.environment()
    mpi = environment["mpi"]
    in_place = {"openmpi": 1, "standard": 1, "mpich": ctypes.c_size_t(-1).value}[mpi["abi"]]
    loops = compiled(C_LOOP)
    contenders: dict[str, tuple[Block, bool]] = {
        "C": (mpi_contender(loops, mpi["path"], in_place), False),
        "mpi4py": (mpi4py_contender, False),
        "paddlempi": (paddlempi_contender, False),
        "paddlempi, mapped": (paddlempi_contender, True),
    }
    rank = dist.get_rank()
    if rank == 0:
        print(report.headline(environment))
        print(f"{'bytes':>10} {'':20} {'p50 us':>10} {'p99 us':>10} {'above C':>9}  ratio to C")
    gc.disable()
    rows = []
    for nbytes in options.sizes:
        rounds = max(7, min(options.rounds, options.rounds * (1 << 20) // max(nbytes, 1)))
        rows.append(measure(contenders, nbytes, rounds))
        if rank == 0:
            show(rows[-1], contenders)
    dist.barrier()
    dist.destroy_process_group()
    if rank:
        return
    cost = import_cost()
    core = sys.modules["paddlempi._core"].__file__
    assert core is not None
    megabytes = os.path.getsize(core) / 1e6
    print(f"import paddlempi: {cost:.1f} ms above a bare interpreter; the core: {megabytes:.1f} MB")
    if options.json:
        record = environment | {"rows": rows, "import_ms": cost}
        Path(options.json).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
