"""Prepared calls compared with plain ones, in turn in one run.

    mpirun -np 2 python benchmarks/prepared.py [--json FILE]    # or: make bench-prepared

The plain and the prepared ``all_reduce`` of the same array of float32 take turns, in an order that
is random in each round, and so do ``async_op=True`` with ``wait()`` and ``start()`` with
``wait()``. A sample is the time of a block of calls, divided by their number. The ratio of a round
is that of its two samples; the table has the median of the ratios and its quartiles. ``again`` is
the plain call a second time: how far apart equal things seem to be.

Arrays of up to 4 KiB travel in the announcement. Longer ones lie in memory that the ranks map.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddlempi as dist
from paddlempi.cli.bench import report
from paddlempi.cli.bench.figures import quantile, quartiles, ratios
from paddlempi.cli.bench.sampling import shuffled

SIZES = (8, 4 << 10, 64 << 10)
Block = Callable[[int], float]
"""Makes a number of calls, and returns the seconds that they took."""


def blocks(nbytes: int) -> dict[str, dict[str, Block]]:
    """Return the contenders of each comparison; the first of each is the plain call."""
    array = dist.zeros(nbytes // 4, "float32")
    call = dist.prepare("all_reduce", array)

    def plain(calls: int) -> float:
        all_reduce = dist.all_reduce
        began = time.perf_counter()
        for _ in range(calls):
            all_reduce(array)
        return time.perf_counter() - began

    def prepared(calls: int) -> float:
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - began

    def waited(calls: int) -> float:
        all_reduce = dist.all_reduce
        began = time.perf_counter()
        for _ in range(calls):
            work = all_reduce(array, async_op=True)
            work.wait()
        return time.perf_counter() - began

    def started(calls: int) -> float:
        start, wait = call.start, call.wait
        began = time.perf_counter()
        for _ in range(calls):
            start()
            wait()
        return time.perf_counter() - began

    return {
        "call": {"plain": plain, "prepared": prepared, "again": plain},
        "start, wait": {"plain": waited, "prepared": started, "again": waited},
    }


def measure(contenders: dict[str, Block], calls: int, rounds: int) -> dict[str, Any]:
    """Return statistics of the samples, in microseconds a call, and of their ratios to plain."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for round_ in range(rounds + 2):
        for name in shuffled(list(contenders), round_):
            dist.barrier()
            seconds = contenders[name](calls)
            if round_ >= 2:  # the first two touch memory and fill caches
                samples[name].append(seconds / calls * 1e6)
    return {
        name: {
            "p25_us": quantile(samples[name], 0.25),
            "p50_us": quantile(samples[name], 0.5),
            "ratio": quartiles(ratios(samples[name], samples["plain"])),
        }
        for name in contenders
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()

    dist.init_process_group("mpi")
    rank = dist.get_rank()
    environment = report.environment()
    if rank == 0:
        print(report.headline(environment))
        print(f"{'bytes':>8} {'':12} {'':9} {'p25 us':>8} {'p50 us':>8}  ratio to plain")
    gc.disable()
    rows = []
    for nbytes in options.sizes:
        for what, contenders in blocks(nbytes).items():
            result = measure(contenders, 300 if nbytes <= 4096 else 50, options.rounds)
            rows.append({"bytes": nbytes, "what": what, "rounds": options.rounds} | result)
            for name, row in result.items():
                if rank == 0:
                    figures = f"{row['p25_us']:8.2f} {row['p50_us']:8.2f}  {row['ratio'].show()}"
                    print(f"{nbytes:>8} {what:12} {name:9} {figures}", flush=True)
    dist.destroy_process_group()
    if options.json and rank == 0:
        Path(options.json).write_text(json.dumps(environment | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
