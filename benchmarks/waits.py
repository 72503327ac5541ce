"""How long an all_reduce takes while other programs use the CPUs, over "mpi" and over gloo.

    python -m paddlempi run -np 2 benchmarks/waits.py
    python -m paddlempi run -np 4 benchmarks/waits.py --loads 0,8 --sizes 8,8192 --pin

Rank 0 starts so many loops of normal priority. Then the two take turns in blocks of calls, each
from torch on a tensor of float32. A row has the median and two percentiles of the time of a call in
us, the worst of the blocks, the CPU time of a rank for a call, and in brackets the median of each
block.
--pin binds rank r to CPU r, modulo their number.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time

import torch
import torch.distributed as dist


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def block(group: dist.ProcessGroup, tensor: torch.Tensor, calls: int) -> list[float]:
    """Return the median, p95, p99 and the CPU time of a call, in us, as this rank sees them."""
    for _ in range(5):
        dist.all_reduce(tensor, group=group)
    times, before = [], cpu()
    for _ in range(calls):
        begun = time.perf_counter_ns()
        dist.all_reduce(tensor, group=group)
        times.append((time.perf_counter_ns() - begun) / 1e3)
    used = (cpu() - before) / calls * 1e6
    times.sort()
    return [times[calls // 2], times[calls * 95 // 100], times[calls * 99 // 100], used]


def measure(groups: dict[str, dist.ProcessGroup], load: int, options: argparse.Namespace) -> None:
    for size in options.sizes:
        tensor = torch.zeros(max(1, size // 4))
        calls = min(options.calls, max(40, options.bytes // size))
        found: dict[str, list[list[float]]] = {name: [] for name in groups}
        for _ in range(options.blocks):
            for name, group in groups.items():
                found[name].append(block(group, tensor, calls))
        for name, rows in found.items():
            p50, p95, p99, used = (max(column) for column in zip(*rows, strict=True))
            if dist.get_rank() == 0:
                medians = " ".join(f"{row[0]:.1f}" for row in rows)
                print(
                    f"load {load} {'pinned' if options.pin else 'free':6} {size:8} B {name:5}"
                    f" p50 {p50:8.1f} p95 {p95:8.1f} p99 {p99:8.1f} CPU {used:8.1f} ({medians})",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    numbers = lambda text: [int(one) for one in text.split(",")]  # noqa: E731
    parser.add_argument("--sizes", type=numbers, default=[8, 8192, 262144, 4194304])
    parser.add_argument("--loads", type=numbers, default=[0, 2, 8])
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--calls", type=int, default=2000, help="in a block")
    parser.add_argument("--bytes", type=int, default=1 << 33, help="in a block, at most")
    parser.add_argument("--backends", default="mpi,gloo")
    parser.add_argument("--pin", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ranks = list(range(dist.get_world_size()))
    if options.pin:
        cpus = sorted(os.sched_getaffinity(0))
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), {cpus[rank % len(cpus)]})
    groups = {name: dist.new_group(ranks, backend=name) for name in options.backends.split(",")}
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for load in options.loads:
            while rank == 0 and len(loops) < load:
                loop = [sys.executable, "-c", "while True: pass"]
                loops.append(subprocess.Popen(loop, preexec_fn=unbind))
            dist.barrier()
            measure(groups, load, options)
    finally:
        for loop in loops:
            loop.kill()
    dist.barrier()
    dist.destroy_process_group()


def unbind() -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))


if __name__ == "__main__":
    main()
