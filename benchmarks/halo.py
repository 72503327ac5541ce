"""A halo exchange compared with MPI's derived types, in loops in C.

    mpirun -np 2 python benchmarks/halo.py [--json FILE]        # or: make bench-halo

The tensor is float32, 128 x 128 x 128 on each rank, with a border of 1 on all sides, edges and
corners included. The contenders take turns in the same processes. Before each call all cells are
written, as a step of a simulation does, and the ranks come together. Only the call is measured.

The contenders in C call the same libmpi, with a subarray type for each box:

* ``neighbours by dimension``: ``MPI_Neighbor_alltoallw`` on a grid of one dimension, for each
  dimension in turn. Each has the borders that the one before has filled.
* ``neighbours at once``: one ``MPI_Neighbor_alltoallw`` on a graph of up to 26 neighbours.
* ``messages by dimension``, ``messages at once``: the same by ``MPI_Isend`` and ``MPI_Irecv``.

Each result is checked first. A contender with a wrong one is left out: some MPIs mix up the two
neighbours of a dimension if they are one rank. It needs mpi4py and a C compiler.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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

# The function pointers and the handles come from the caller, so no mpi.h is needed. Handles in
# arrays have `size` bytes.
C_LOOPS = r"""
#include <stddef.h>
typedef int (*barrier)(void *);
typedef struct {
	barrier wait;
	void *comm;
	long cells;
	int computes;
} before;
/* What a step does before its exchange: it writes all cells, and the ranks come together. */
void begin(const before *b, float *data)
{
	for (long i = 0; b->computes && i < b->cells; i++)
		data[i] = data[i] * 0.5f + 1;
	b->wait(b->comm);
	b->wait(b->comm);
}
typedef int (*alltoallw)(void *, const int *, const ptrdiff_t *, void *, void *, const int *,
                         const ptrdiff_t *, void *, void *);
double neighbours(alltoallw f, void *data, int phases, void **comms, void **gives, void **gets,
                  const int *ones, const ptrdiff_t *zeros, const before *b, long calls)
{
	double all = 0;
	for (long i = 0; i < calls; i++) {
		begin(b, data);
		double from = now();
		for (int k = 0; k < phases; k++)
			f(data, ones, zeros, gives[k], data, ones, zeros, gets[k], comms[k]);
		all += now() - from;
	}
	return all;
}
typedef int (*start)(void *, int, void *, int, int, void *, void *);
typedef int (*waitall)(int, void *, void *);
double messages(start isend, start irecv, waitall all, void *data, int phases, const int *n_gives,
                const int *n_gets, void **gives, void **gets, const int *to, const int *from,
                void *comm, char *requests, int size, void *ignore, const before *b, long calls)
{
	double all_calls = 0;
	for (long i = 0; i < calls; i++) {
		int g = 0, r = 0;
		begin(b, data);
		double from_then = now();
		for (int k = 0; k < phases; k++) {
			char *q = requests;
			for (int end = r + n_gets[k]; r < end; r++, q += size)
				irecv(data, 1, gets[r], from[r], 7, comm, q);
			for (int end = g + n_gives[k]; g < end; g++, q += size)
				isend(data, 1, gives[g], to[g], 7, comm, q);
			all((int)((q - requests) / size), requests, ignore);
		}
		all_calls += now() - from_then;
	}
	return all_calls;
}
"""

Block = Callable[[np.ndarray, int], float]
"""Makes a number of exchanges of an array, and returns the seconds that they took."""


class Box(NamedTuple):
    """A part of the tensor that goes to a rank, or comes from it."""

    rank: int
    begin: tuple[int, ...]
    lengths: tuple[int, ...]


def phases(
    cart: Any, shape: Sequence[int], w: int, at_once: bool
) -> list[tuple[list[Box], list[Box]]]:
    """Return what goes where and comes from where, one pair of lists for each phase."""

    def box(direction: Sequence[int], outside: bool, done: int) -> Box | None:
        begin, lengths, at = [], [], []
        for k, (n, d) in enumerate(zip(shape, direction, strict=True)):
            if d == 0:
                whole = k < done
                begin.append(0 if whole else w)
                lengths.append(n if whole else n - 2 * w)
            else:
                first = 0 if outside else w
                begin.append(first if d < 0 else n - w - first)
                lengths.append(w)
            at.append(cart.coords[k] + d)
        try:
            return Box(cart.rank_of(at), tuple(begin), tuple(lengths))
        except dist.errors.ArgumentError:
            return None

    def both(directions: list[tuple[int, ...]], done: int) -> tuple[list[Box], list[Box]]:
        gives = [box(d, False, done) for d in directions]
        gets = [box([-x for x in d], True, done) for d in directions]
        return [b for b in gives if b], [b for b in gets if b]

    n = len(shape)
    if at_once:
        return [both([d for d in itertools.product((-1, 0, 1), repeat=n) if any(d)], 0)]
    return [
        both([tuple(s if i == k else 0 for i in range(n)) for s in (-1, 1)], k) for k in range(n)
    ]


class Before(ctypes.Structure):
    """What is done before each exchange: ``before`` in C."""

    _fields_ = (
        ("wait", ctypes.c_void_p),
        ("comm", ctypes.c_void_p),
        ("cells", ctypes.c_long),
        ("computes", ctypes.c_int),
    )


class InC:
    """The contenders in C, on one libmpi."""

    def __init__(self, environment: dict[str, Any], shape: Sequence[int]) -> None:
        self.loops = compiled(C_LOOPS)
        self.before = Before()
        self.lib = ctypes.CDLL(environment["mpi"]["path"])
        self.wide = environment["mpi"]["abi"] != "mpich"  # handles are pointers
        self.mask = (1 << 64) - 1 if self.wide else (1 << 32) - 1
        self.ignore = {"openmpi": 0, "mpich": 1, "standard": 0}[environment["mpi"]["abi"]]
        self.shape = list(shape)
        self.keep: list[Any] = []  # what C reads
        self.before.wait = self.function("MPI_Barrier")
        self.before.comm = MPI._handleof(MPI.COMM_WORLD)
        self.before.cells = int(np.prod(shape))

    def function(self, name: str) -> ctypes.c_void_p:
        return ctypes.cast(getattr(self.lib, name), ctypes.c_void_p)

    def types(self, boxes: Sequence[Box]) -> list[int]:
        made = [
            MPI.FLOAT.Create_subarray(self.shape, list(b.lengths), list(b.begin)).Commit()
            for b in boxes
        ]
        self.keep.append(made)
        return [MPI._handleof(t) & self.mask for t in made]

    def array(self, values: Sequence[int], kind: Any) -> int:
        """Return the address of an array for C, which stays."""
        kept = np.array(list(values) or [0], kind)
        self.keep.append(kept)
        return int(kept.ctypes.data)

    def neighbours(self, parts: list[tuple[list[Box], list[Box]]]) -> Block:
        handle = np.uint64 if self.wide else np.uint32
        comms, gives, gets = [], [], []
        for give, get in parts:
            comm = MPI.COMM_WORLD.Create_dist_graph_adjacent(
                [b.rank for b in get], [b.rank for b in give]
            )
            self.keep.append(comm)
            comms.append(MPI._handleof(comm))
            gives.append(self.array(self.types(give), handle))
            gets.append(self.array(self.types(get), handle))
        most = max(len(x) for part in parts for x in part) or 1
        loop = self.loops.neighbours
        loop.restype = ctypes.c_double
        p = ctypes.c_void_p
        loop.argtypes = [p, p, ctypes.c_int, p, p, p, p, p, p, ctypes.c_long]
        given = (
            self.array(comms, np.uint64),
            self.array(gives, np.uint64),
            self.array(gets, np.uint64),
            self.array([1] * most, np.int32),
            self.array([0] * most, np.int64),
            ctypes.addressof(self.before),
        )
        function = self.function("MPI_Neighbor_alltoallw")

        def block(a: np.ndarray, calls: int) -> float:
            return float(loop(function, a.ctypes.data, len(parts), *given, calls))

        return block

    def messages(self, parts: list[tuple[list[Box], list[Box]]]) -> Block:
        give = [b for part in parts for b in part[0]]
        get = [b for part in parts for b in part[1]]
        loop = self.loops.messages
        loop.restype = ctypes.c_double
        p, i = ctypes.c_void_p, ctypes.c_int
        loop.argtypes = [p, p, p, p, i, p, p, p, p, p, p, p, p, i, p, p, ctypes.c_long]
        size = 8 if self.wide else 4
        given = (
            self.array([len(part[0]) for part in parts], np.int32),
            self.array([len(part[1]) for part in parts], np.int32),
            self.array(self.types(give), np.uint64),
            self.array(self.types(get), np.uint64),
            self.array([b.rank for b in give], np.int32),
            self.array([b.rank for b in get], np.int32),
            MPI._handleof(MPI.COMM_WORLD),
            self.array([0] * (len(give) + len(get)), np.uint64),
            size,
            self.ignore,
            ctypes.addressof(self.before),
        )
        functions = [self.function(f"MPI_{name}") for name in ("Isend", "Irecv", "Waitall")]

        def block(a: np.ndarray, calls: int) -> float:
            return float(loop(*functions, a.ctypes.data, len(parts), *given, calls))

        return block


def paddlempi_block(in_c: InC, cart: Any, width: int) -> Block:
    begin = in_c.loops.begin
    begin.restype, begin.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p]
    before = ctypes.addressof(in_c.before)

    def block(a: np.ndarray, calls: int) -> float:
        exchange, clock, seconds = cart.halo_exchange, time.perf_counter, 0.0
        for _ in range(calls):
            begin(before, a.ctypes.data)
            start = clock()
            exchange(a, width)
            seconds += clock() - start
        return seconds

    return block


def filled(a: np.ndarray, rank: int) -> np.ndarray:
    """Fill an array with numbers that tell the place and the rank."""
    a[...] = (np.arange(a.size) % 16381 + 100003 * (rank + 1)).reshape(a.shape)
    return a


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--calls", type=int, default=20, help="in a sample")
    parser.add_argument("--inner", type=int, nargs="+", default=(128, 128, 128))
    parser.add_argument("--width", type=int, default=1)
    parser.add_argument("--periodic", action="store_true")
    parser.add_argument(
        "--no-compute", action="store_true", help="nothing is written between calls"
    )
    options = parser.parse_args()

    dist.init_process_group("mpi")
    environment = report.environment()
    n, w = len(options.inner), options.width
    cart = dist.Cartesian([0] * n, periodic=options.periodic)
    shape = tuple(length + 2 * w for length in options.inner)
    ordinary, mapped = np.zeros(shape, np.float32), dist.zeros(shape, "float32")
    in_c = InC(environment, shape)
    by_dimension, at_once = (phases(cart, shape, w, once) for once in (False, True))
    ours = paddlempi_block(in_c, cart, w)
    contenders: dict[str, tuple[Block, np.ndarray]] = {
        "C, neighbours by dimension": (in_c.neighbours(by_dimension), ordinary),
        "C, neighbours at once": (in_c.neighbours(at_once), ordinary),
        "C, messages by dimension": (in_c.messages(by_dimension), ordinary),
        "C, messages at once": (in_c.messages(at_once), ordinary),
        "paddlempi": (ours, ordinary),
        "paddlempi, mapped": (ours, mapped),
    }
    rank = dist.get_rank()
    for a in (ordinary, mapped):
        filled(a, rank)
    ours(ordinary, 1)
    wanted = ordinary.copy()
    for name, (block, a) in list(contenders.items()):
        filled(a, rank)
        MPI.COMM_WORLD.Barrier()
        block(a, 1)
        same = a == wanted
        if not options.periodic and "by dimension" in name:
            # There the edges of the whole grid travel with the faces beside them.
            for k in range(n):
                for end, at in ((0, slice(w)), (cart.dims[k] - 1, slice(-w, None))):
                    if cart.coords[k] == end:
                        same[(slice(None),) * k + (at,)] = True
        if not MPI.COMM_WORLD.allreduce(bool(same.all()), MPI.LAND):
            del contenders[name]
            if rank == 0:
                print(f"{name}: a wrong result; left out", flush=True)
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    gc.disable()
    in_c.before.computes = not options.no_compute
    for round_ in range(options.rounds + 2):
        for name in shuffled(list(contenders), round_):
            block, a = contenders[name]
            MPI.COMM_WORLD.Barrier()
            seconds = block(a, options.calls)
            seconds = MPI.COMM_WORLD.allreduce(seconds, MPI.MAX)
            if round_ >= 2:  # the first two touch memory and fill caches
                samples[name].append(seconds / options.calls * 1e6)
    rows = {}
    medians = {name: quantile(times, 0.5) for name, times in samples.items()}
    best = min((name for name in medians if name.startswith("C")), key=lambda name: medians[name])
    for name, times in samples.items():
        rows[name] = {
            "p50_us": medians[name],
            "p99_us": quantile(times, 0.99),
            "faster_than_best_C": quartiles(ratios(samples[best], times)),
        }
    if rank == 0:
        print(report.headline(environment))
        print(
            f"{options.inner} float32 a rank, width {w}, grid {cart.dims}, "
            f"{'' if options.periodic else 'not '}periodic"
        )
        print(f"{'':28} {'p50 us':>10} {'p99 us':>10}  fastest C : this")
        for name, row in rows.items():
            print(
                f"{name:28} {row['p50_us']:10.1f} {row['p99_us']:10.1f}  "
                f"{row['faster_than_best_C'].show()}",
                flush=True,
            )
        if options.json:
            record = environment | {"rows": rows, "dims": cart.dims, "inner": options.inner}
            Path(options.json).write_text(json.dumps(record, indent=1))
    del in_c.keep
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
