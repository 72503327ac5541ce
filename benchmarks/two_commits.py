"""The time of short calls: another commit's, and this tree's, in turn.

    python benchmarks/two_commits.py [--before REVISION] [--pairs 5] [--control]

It builds the core of REVISION (``HEAD~1``) and that of this tree, and runs jobs of two ranks
without MPI with each, in random order within a pair. A job measures all_reduce in place, SUM of
float32: in a loop in C of ``pmpi_submit``, and from Python with NumPy, for several lengths, in
ordinary memory and in the heap. A figure of a job is the median over blocks of calls. For each it
prints the median of both, and the least, median and greatest ratio of the pairs: this tree's time
by the other's. ``--control`` compares this tree with itself: its spread says what a ratio means.

The Python that runs it needs NumPy and an installed paddlempi, whose trampoline both sides take.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loops import compiled

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["-buildmode=c-shared", "-tags", "pymodule,grpcnotrace,netgo,osusergo", "-ldflags=-s -w"]
CORE, TRAMPOLINE = "_core.abi3.so", "libpaddlempi_trampoline.so"
BLOCKS = 30
SIZES = {"8 B": 2, "1 KiB": 256, "64 KiB": 1 << 14, "1 MiB": 1 << 18, "8 MiB": 1 << 21}

C_LOOP = """
#include "pmpi.h"
double loop(int (*submit)(const pmpi_op *, pmpi_work *, pmpi_result *), void *data, long count,
            long calls)
{
	pmpi_buf b = {.data = data, .count = count, .dtype = PMPI_DTYPE_FLOAT32, .device_type = 1};
	pmpi_op op = {.size = sizeof op, .code = PMPI_OP_ALL_REDUCE, .n_recv = 1, .recv = &b};
	op.reduce_op = PMPI_REDUCE_SUM, op.scale = 1, op.timeout_ns = -1;
	op.root = op.peer = op.peer2 = -1;
	double start = now();
	for (long i = 0; i < calls; i++) {
		pmpi_work work = 0;
		pmpi_result result;
		if (submit(&op, &work, &result))
			return -1;
	}
	return now() - start;
}
"""


def build(tree: Path, package: Path) -> None:
    """Make the package of a tree, with its core, in a folder."""
    import paddlempi

    shutil.copytree(tree / "python", package)
    core = package / "paddlempi" / CORE
    words = [sys.executable, "tools/go.py", "build", *FLAGS, "-o", str(core), "./capi/main"]
    subprocess.run(words, cwd=tree, check=True)
    shutil.copy(Path(paddlempi.__file__).parent / TRAMPOLINE, core.parent)


def rank(headers: str) -> None:
    """Measure in one rank; rank 0 prints."""
    import numpy as np
    import paddlempi as dist

    dist.init_process_group()
    figures: dict[str, float] = {}
    loop = compiled(C_LOOP, include=headers).loop
    loop.restype = ctypes.c_double
    core = ctypes.CDLL(str(Path(dist.__file__).parent / CORE))
    submit = ctypes.cast(core.pmpi_submit, ctypes.c_void_p)

    def block(name: str, seconds: list[float]) -> None:
        figures[name] = statistics.median(seconds) * 1e6

    for size, count in SIZES.items():
        calls = max(10, min(2000, (1 << 24) // (4 * count)))
        for where in ("heap", "memory") if count > 256 else ("memory",):
            x = dist.empty(count, "float32") if where == "heap" else np.zeros(count, np.float32)
            x[:] = 0
            at = ctypes.c_void_p(x.ctypes.data)
            times = [
                loop(submit, at, ctypes.c_long(count), ctypes.c_long(calls)) for _ in range(BLOCKS)
            ]
            assert min(times) > 0, "a call has failed"
            block(f"C, {size}, {where}", [t / calls for t in times])
            times = []
            for _ in range(BLOCKS):
                start = time.perf_counter()
                for _ in range(calls):
                    dist.all_reduce(x)
                times.append((time.perf_counter() - start) / calls)
            block(f"NumPy, {size}, {where}", times)
    if dist.get_rank() == 0:
        print(json.dumps(figures))
    dist.destroy_process_group()


def job(tree: Path, package: Path) -> dict[str, float]:
    """Run a job with a package, and return its figures in us."""
    words = [sys.executable, "-m", "paddlempi.testing.launch", "-np", "2", "--mpi", "node", "--"]
    words += ["python", str(Path(__file__).resolve()), "--rank", str(tree / "capi")]
    env = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run(words, env=env, stdout=subprocess.PIPE, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    figures: dict[str, float] = json.loads(line)
    return figures


def main() -> None:
    """Build both, run the pairs, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", default="HEAD~1", help="the other commit")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--control", action="store_true", help="this tree beside itself")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank(args.rank)
        return
    with tempfile.TemporaryDirectory() as folder:
        trees, packages = [Path(folder) / "tree", ROOT], [Path(folder) / "a", Path(folder) / "b"]
        words = ["git", "-C", str(ROOT), "worktree"]
        before = "HEAD" if args.control else args.before
        subprocess.run([*words, "add", "--quiet", "--detach", str(trees[0]), before], check=True)
        try:
            for tree, package in zip(trees, packages, strict=True):
                build(tree, package)
            pairs: list[list[dict[str, float]]] = []
            for _ in range(args.pairs):
                figures: list[dict[str, float]] = [{}, {}]
                for which in random.sample((0, 1), 2):
                    figures[which] = job(trees[which], packages[which])
                pairs.append(figures)
        finally:
            subprocess.run([*words, "remove", "--force", str(trees[0])], check=True)
    for name in pairs[0][0]:
        ratios = sorted(now[name] / before[name] for before, now in pairs)
        us = [statistics.median(pair[which][name] for pair in pairs) for which in (0, 1)]
        print(
            f"{name:26} {us[0]:9.2f} us before, {us[1]:9.2f} now; ratio {ratios[0]:.3f} to "
            f"{ratios[-1]:.3f}, median {statistics.median(ratios):.3f}"
        )


if __name__ == "__main__":
    main()
