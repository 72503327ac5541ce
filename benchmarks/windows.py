"""A put into another rank's window compared with MPI's, with mpi4py's, and with memcpy.

    mpirun -np 2 python benchmarks/windows.py [--json FILE]     # or: make bench-windows
    python benchmarks/on_hosts.py --program benchmarks/windows.py --shape 2x1    # on hosts, as root

Rank 0 puts into the window of rank 1 and waits until the data are there: ``put`` and ``flush``. The
contenders take turns in an order that is random in each round. A sample is the time of a block of
such pairs, divided by their number.

    paddlempi               from Python; rank 1 waits in paddlempi.recv
    paddlempi, MPI waits    the same, and rank 1 waits in MPI_Recv
    C                       a loop in C over MPI_Put and MPI_Win_flush of the same libmpi, in a
                            window of MPI_Win_create on ordinary memory; rank 1 waits in MPI_Recv
    C, allocated            the same in a window of MPI_Win_allocate
    mpi4py                  Put and Flush of mpi4py, in a window of MPI_Win_create
    mpi4py, allocated       the same in a window of MPI_Win_allocate
    memcpy                  a loop in C over a copy of the same bytes within rank 0
    memcpy, Python          the same from Python, by ctypes

The copies are measured if both ranks are on one node.

With ``--computing N``, rank 1 computes for 2 s without a call of any library, N times for each size
and contender, and rank 0 puts once meanwhile. It needs mpi4py and a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import time
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

SIZES = (8, 64 << 10, 1 << 20)
COMPUTES = 2.0  # seconds
OURS, IN_MPI = "paddlempi", "paddlempi, MPI waits"
TARGET = 1
RANK = 0  # of this process, since init

# The function pointers and the handles come from the caller, so no mpi.h is needed.
C_LOOPS = r"""
#include <stdint.h>
#include <string.h>
typedef int (*put_function)(const void *, int, void *, int, intptr_t, int, void *, void *);
typedef int (*flush_function)(int, void *);
double put_and_flush(put_function put, flush_function flush, const void *from, int bytes,
                     void *type, int target, void *window, long calls)
{
	double start = now();
	int failed = 0;
	for (long i = 0; i < calls; i++) {
		failed |= put(from, bytes, type, target, 0, bytes, type, window);
		failed |= flush(target, window);
	}
	return failed ? -1 : now() - start;
}
double copy(void *to, const void *from, size_t bytes, long calls)
{
	double start = now();
	for (long i = 0; i < calls; i++) {
		memcpy(to, from, bytes);
		__asm__ volatile("" : : : "memory");
	}
	return now() - start;
}
void compute(double seconds)
{
	double start = now();
	while (now() - start < seconds)
		;
}
"""


def build() -> ctypes.CDLL:
    """Compile the loops in C."""
    loops = compiled(C_LOOPS)
    pointer, integer, long = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
    loops.put_and_flush.restype = loops.copy.restype = ctypes.c_double
    loops.put_and_flush.argtypes = [*[pointer] * 3, integer, pointer, integer, pointer, long]
    loops.copy.argtypes = [pointer, pointer, ctypes.c_size_t, long]
    loops.compute.argtypes, loops.compute.restype = [ctypes.c_double], None
    return loops


class Contender:
    """A way to put into the window of rank 1, in which this base class sends words by MPI.

    Args:
        loops: the loops in C.
        size: the bytes of a put.
        value: what all bytes are set to.
    """

    def __init__(self, loops: ctypes.CDLL, size: int, value: int) -> None:
        self.loops, self.size = loops, size
        self.given = np.full(size, value, np.uint8)
        self.landed = np.zeros(0, np.uint8)
        """On rank 1, what is put into."""

    def block(self, calls: int) -> float:
        """Put and flush some times on rank 0. Return the seconds."""
        raise NotImplementedError

    def wait(self) -> None:
        """Let rank 1 wait for ``release`` of rank 0, in the library that puts."""
        MPI.COMM_WORLD.Recv(np.zeros(1, np.uint8), 0)

    def release(self) -> None:
        MPI.COMM_WORLD.Send(np.zeros(1, np.uint8), TARGET)

    def free(self) -> None:
        """End the window. Collective."""


class Ours(Contender):
    """paddlempi, from Python."""

    def __init__(self, loops: ctypes.CDLL, size: int, value: int) -> None:
        super().__init__(loops, size, value)
        self.window = dist.Window(size, "uint8")
        self.landed = self.window.local

    def block(self, calls: int) -> float:
        put, flush, given = self.window.put, self.window.flush, self.given
        start = time.perf_counter()
        for _ in range(calls):
            put(given, TARGET)
            flush(TARGET)
        return time.perf_counter() - start

    def wait(self) -> None:
        dist.recv(np.zeros(1, np.uint8), 0)

    def release(self) -> None:
        dist.send(np.zeros(1, np.uint8), TARGET)

    def free(self) -> None:
        self.window.free()


class OursInMPI(Ours):
    """paddlempi, while rank 1 waits inside MPI."""

    wait, release = Contender.wait, Contender.release


class Mpi4py(Contender):
    """mpi4py, in a window on ordinary memory."""

    def __init__(self, loops: ctypes.CDLL, size: int, value: int) -> None:
        super().__init__(loops, size, value)
        self.window = self.made()
        self.window.Lock_all()

    def made(self) -> Any:
        self.landed = np.zeros(self.size, np.uint8)
        return MPI.Win.Create(self.landed, comm=MPI.COMM_WORLD)

    def block(self, calls: int) -> float:
        put, flush, given = self.window.Put, self.window.Flush, [self.given, MPI.BYTE]
        start = time.perf_counter()
        for _ in range(calls):
            put(given, TARGET)
            flush(TARGET)
        return time.perf_counter() - start

    def free(self) -> None:
        self.window.Unlock_all()
        self.window.Free()


class C(Mpi4py):
    """A loop in C over the same calls of MPI."""

    library: ctypes.CDLL

    def block(self, calls: int) -> float:
        byte, window = MPI._handleof(MPI.BYTE), MPI._handleof(self.window)
        put, flush = (
            ctypes.cast(function, ctypes.c_void_p)
            for function in (self.library.MPI_Put, self.library.MPI_Win_flush)
        )
        seconds = self.loops.put_and_flush(
            put, flush, self.given.ctypes.data, self.size, byte, TARGET, window, calls
        )
        assert seconds >= 0, "MPI_Put or MPI_Win_flush failed"
        return float(seconds)


def allocated(self: Mpi4py) -> Any:
    """Make the window on memory of MPI."""
    window = MPI.Win.Allocate(self.size, comm=MPI.COMM_WORLD)
    self.landed = np.frombuffer(window.tomemory(), np.uint8)
    self.landed[...] = 0
    return window


class CAllocated(C):
    """The same in a window of MPI_Win_allocate."""

    made = allocated


class Mpi4pyAllocated(Mpi4py):
    """mpi4py in a window of MPI_Win_allocate."""

    made = allocated


class Memcpy(Contender):
    """A copy within rank 0."""

    def __init__(self, loops: ctypes.CDLL, size: int, value: int) -> None:
        super().__init__(loops, size, value)
        self.copied = np.zeros(size, np.uint8)

    def block(self, calls: int) -> float:
        to, given = self.copied.ctypes.data, self.given.ctypes.data
        return float(self.loops.copy(to, given, self.size, calls))


class MemcpyPython(Memcpy):
    """The same copy from Python."""

    def block(self, calls: int) -> float:
        memmove, to, given, size = (
            ctypes.memmove,
            self.copied.ctypes.data,
            self.given.ctypes.data,
            self.size,
        )
        start = time.perf_counter()
        for _ in range(calls):
            memmove(to, given, size)
        return time.perf_counter() - start


KINDS: dict[str, type[Contender]] = {
    OURS: Ours,
    IN_MPI: OursInMPI,
    "C": C,
    "C, allocated": CAllocated,
    "mpi4py": Mpi4py,
    "mpi4py, allocated": Mpi4pyAllocated,
    "memcpy": Memcpy,
    "memcpy, Python": MemcpyPython,
}


def measure(names: list[str], loops: ctypes.CDLL, size: int, rounds: int) -> dict[str, Any]:
    """Measure contenders at one size.

    Returns:
        On rank 0, statistics of the samples, in microseconds a call, and of their ratios to ours.
    """
    made = {name: KINDS[name](loops, size, 1 + i) for i, name in enumerate(names)}
    calls = 200 if size <= 4096 else 20 if size <= 65536 else 4
    samples: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds + 2):
        for name in shuffled(names, round_):
            one = made[name]
            MPI.COMM_WORLD.Barrier()
            if RANK == TARGET:
                one.wait()
                continue
            seconds = one.block(calls)
            one.release()
            if round_ >= 2:  # the first two touch memory and fill caches
                samples[name].append(seconds / calls * 1e6)
    result: dict[str, Any] = {"bytes": size, "calls": calls, "rounds": rounds}
    for i, name in enumerate(names):
        one = made[name]
        MPI.COMM_WORLD.Barrier()
        if RANK == TARGET:
            assert (one.landed == 1 + i).all(), f"{name}: rank 1 has not what was put"
        else:
            result[name] = {
                "p50_us": quantile(samples[name], 0.5),
                "p99_us": quantile(samples[name], 0.99),
                "ratio": quartiles(ratios(samples[name], samples[OURS])),
            }
        one.free()
    return result


def measure_computing(
    names: list[str], loops: ctypes.CDLL, size: int, rounds: int
) -> dict[str, float]:
    """Return on rank 0 the longest of some puts, in ms, while rank 1 computes."""
    longest = {}
    for i, name in enumerate(names):
        one = KINDS[name](loops, size, 1 + i)
        milliseconds = []
        for _ in range(rounds):
            MPI.COMM_WORLD.Barrier()
            if RANK == TARGET:
                loops.compute(COMPUTES)
            else:
                time.sleep(0.2)
                milliseconds.append(one.block(1) * 1e3)
            MPI.COMM_WORLD.Barrier()
        if RANK == TARGET:
            assert (one.landed == 1 + i).all(), f"{name}: rank 1 has not what was put"
        else:
            longest[name] = max(milliseconds)
        one.free()
    return longest


def show(row: dict[str, Any], names: list[str]) -> None:
    """Print a line for each contender."""
    for name in names:
        r = row[name]
        print(
            f"{row['bytes'] if name == OURS else '':>10}  {name:20} {r['p50_us']:10.2f} "
            f"{r['p99_us']:10.2f}  {r['ratio'].show()}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--computing", type=int, default=0, metavar="N", help="puts, 2 s each")
    options = parser.parse_args()

    dist.init_process_group("mpi")
    global RANK
    RANK = dist.get_rank()
    if dist.get_world_size() != 2:
        raise SystemExit("windows.py: it takes 2 ranks: mpirun -np 2")
    environment = report.environment()
    C.library = ctypes.CDLL(environment["mpi"]["path"])
    loops = build()
    names = [name for name in KINDS if "memcpy" not in name or environment["nodes"] == 1]
    if RANK == 0:
        print(report.headline(environment))
        columns = f"{'bytes':>10}  {'contender':20} {'p50 us':>10} {'p99 us':>10}"
        print(columns + "  time : paddlempi's (quartiles)")
    gc.disable()
    rows = []
    for size in options.sizes:
        rows.append(measure(names, loops, size, options.rounds))
        if RANK == 0:
            show(rows[-1], names)
    if RANK == 0 and options.computing:
        print("# rank 1 computes for 2 s: the longest put, ms")
    for row in rows if options.computing else []:
        found = measure_computing([OURS, "C"], loops, row["bytes"], options.computing)
        if RANK == 0:
            row["computing_ms"] = found
            print(f"{row['bytes']:>10}  " + "  ".join(f"{n} {ms:.2f}" for n, ms in found.items()))
    dist.barrier()
    dist.destroy_process_group()
    if RANK == 0 and options.json:
        Path(options.json).write_text(json.dumps(environment | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
