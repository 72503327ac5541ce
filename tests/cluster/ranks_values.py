"""Every collective, on the nodes on which this is started, compared with NumPy.

argv[2] is "all", or "some" for fewer lengths. First the values are small, so that every order of a
sum has the same bits, and repeat after a few elements, so that the right result is quick to make.
Then they are random, and the bits must be those of the order in which the algorithm adds.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import paddlempi as dist
import ranks_report
from paddlempi import ReduceOp, _native

Array = np.ndarray[Any, Any]
DType = np.dtype[Any]
Op = Any

PERIOD = 7
REPEATED = 10_007  # random numbers: a prime, so that they begin elsewhere in every piece
PARTS = 9 << 20  # bytes: in levels two whole parts, and one that is shorter
FLOATS = [np.dtype(t) for t in ("f4", "f8", "c8", "c16", "f2", ml_dtypes.bfloat16)]
WHOLE = [np.dtype(t) for t in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
EVERY = [*FLOATS, *WHOLE, np.dtype(bool)]
ARITHMETIC = [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
BITWISE = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
# Bytes: none, one, with the announcement, summed up by leaders, above it, on both sides of the
# least length for levels.
LENGTHS = [0, 1, 1001, 45_001, 300_003, (1 << 20) - 8, (1 << 20) + 4]
KINDS = ["mapped", "ordinary", "strided"]
IN_RANK_ORDER = ("inline", "doubling", "slices", "gather16", "slices16")


def ops_of(dtype: DType) -> list[Op]:
    if dtype.kind == "b":
        return [*BITWISE, ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
    if dtype in WHOLE:
        return ARITHMETIC + BITWISE
    return [*(ARITHMETIC[:3] if dtype.kind == "c" else ARITHMETIC), ReduceOp.PREMUL_SUM(2.0)]


# What the ranks give, and what must come of it


def given(rank: int, dtype: DType) -> Array:
    """What a rank gives: a period of it."""
    return ((np.arange(PERIOD) + 3 * rank) % 3).astype(dtype)


def reduced(op: Op, dtype: DType) -> Array:
    """A period of the result, made of what the ranks give."""
    size = dist.get_world_size()
    rows = [given(rank, dtype) for rank in range(size)]
    wide = dtype if dtype.kind in "iub" else np.dtype("c16" if dtype.kind == "c" else "f8")
    rows = [row.astype(wide) for row in rows]
    if op == ReduceOp.MIN or op == ReduceOp.MAX:
        return np.array((np.min if op == ReduceOp.MIN else np.max)(rows, axis=0)).astype(dtype)
    for bitwise, combine in zip(
        BITWISE, (np.bitwise_and, np.bitwise_or, np.bitwise_xor), strict=True
    ):
        if op == bitwise:
            return np.array(combine.reduce(rows)).astype(dtype)
    if op == ReduceOp.PRODUCT:
        return np.array(np.multiply.reduce(rows, dtype=wide)).astype(dtype)
    total = np.array(np.add.reduce(rows, dtype=wide))
    if op == ReduceOp.AVG:
        total = total // size if dtype.kind in "iu" else total / size
    elif op != ReduceOp.SUM:
        total = total * 2
    return total.astype(dtype)


def repeated(period: Array, count: int) -> Array:
    """As np.resize, which takes ten times as long."""
    return np.tile(period, -(-count // period.size))[:count]


def room(kind: str, count: int, dtype: DType) -> Array:
    if kind == "mapped":
        return dist.empty((count,), dtype=dtype.name)
    if kind == "strided":
        return np.zeros(2 * count, dtype)[::2]
    return np.zeros(count, dtype)


def filled(kind: str, count: int, dtype: DType, period: Array) -> Array:
    x = room(kind, count, dtype)
    x[:] = repeated(period, count)
    return x


def is_right(got: Array, period: Array, begin: int = 0) -> bool:
    return bool((got == repeated(np.roll(period, -(begin % PERIOD)), got.size)).all())


# The collectives


class Cases:
    """Which lengths are tried, and a number that chooses kinds of tensors, reduce ops and roots."""

    def __init__(self, how_much: str) -> None:
        self.all = how_much == "all"
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._number = 0

    def lengths(self, dtype: DType, some: int, parts: bool = True) -> Iterator[int]:
        """The elements of tensors: of all lengths, or of so many of them, others each time.

        One of several parts is among them, for two dtypes or for all.
        """
        self._number += 1
        first = 0 if self.all else self._number
        several = len(LENGTHS) if self.all else some
        chosen = [LENGTHS[(first + i) % len(LENGTHS)] for i in range(several)]
        if parts and (self.all or dtype in (FLOATS[0], FLOATS[-1])):
            chosen.append(PARTS + 1000)
        return (-(-nbytes // dtype.itemsize) for nbytes in chosen)

    def next(self) -> int:
        self._number += 1
        return self._number

    def kind(self) -> str:
        """The ranks need not have the same kind."""
        return KINDS[(self._number + self.rank) % 3]

    def op(self, dtype: DType) -> Op:
        ops = ops_of(dtype)
        return ops[self._number % len(ops)]


def all_reduces(cases: Cases) -> Iterator[tuple[str, bool]]:
    for dtype in EVERY:
        for i, op in enumerate(ops_of(dtype)):
            want = reduced(op, dtype)
            for count in cases.lengths(dtype, 1, parts=i % 4 == 0):
                cases.next()
                x = filled(cases.kind(), count, dtype, given(cases.rank, dtype))
                dist.all_reduce(x, op=op)
                yield f"all_reduce {dtype.name} {op} {count} {cases.kind()}", is_right(x, want)


def coalesced(cases: Cases) -> Iterator[tuple[str, bool]]:
    """Several tensors at once: also in turn, each of its own, while the next ones are under way."""
    for dtype in EVERY:
        for together in (True, False):
            cases.next()
            op, mine = cases.op(dtype), given(cases.rank, dtype)
            lengths = list(cases.lengths(dtype, 3, parts=cases.all))
            random.Random(cases.next()).shuffle(lengths)
            tensors = [filled(cases.kind(), n, dtype, mine) for n in lengths]
            if together:
                dist.all_reduce_coalesced(tensors, op=op)
            else:
                for work in [dist.all_reduce(x, op=op, async_op=True) for x in tensors]:
                    work.wait()
            want = reduced(op, dtype)
            yield f"several {dtype.name} {op} {together}", all(is_right(x, want) for x in tensors)


def shares(cases: Cases) -> Iterator[tuple[str, bool]]:
    """Shares of one length, and of several."""
    rank, size = cases.rank, cases.size
    for dtype in EVERY:
        mine = given(rank, dtype)
        for length in cases.lengths(dtype, 1):
            cases.next()
            kind, op, count = cases.kind(), cases.op(dtype), -(-length // size)
            total = reduced(op, dtype)
            whole = filled(kind, count * size, dtype, mine)
            share = room(kind, count, dtype)
            what = f"{dtype.name} {op} {count} {kind}"
            dist.reduce_scatter_tensor(share, whole, op=op)
            yield f"reduce_scatter_tensor {what}", is_right(share, total, rank * count)
            share[:] = repeated(mine, count)
            dist.all_gather_into_tensor(whole, share)
            rows = [repeated(given(r, dtype), count) for r in range(size)]
            yield f"all_gather_into_tensor {what}", bool((whole == np.concatenate(rows)).all())
            lengths = [count + (100 * r + 7 * (r % 2)) * (length > 1) for r in range(size)]
            tensors = [filled(kind, n, dtype, mine) for n in lengths]
            share = room(kind, lengths[rank], dtype)
            dist.reduce_scatter(share, tensors, op=op)
            yield f"reduce_scatter {what}", is_right(share, total)
            share[:] = repeated(mine, lengths[rank])
            dist.all_gather(tensors, share)
            right = all(is_right(x, given(r, dtype)) for r, x in enumerate(tensors))
            yield f"all_gather {what}", right


def pairs(cases: Cases) -> Iterator[tuple[str, bool]]:
    """all_to_all: shares of one length, in one tensor and in several, and of several lengths.

    In a group that prefers levels: on some shapes others are faster.
    """
    rank, size = cases.rank, cases.size
    os.environ["PADDLEMPI_ALGO"] = "all_to_all:levels"
    group = dist.new_group(list(range(size)))
    del os.environ["PADDLEMPI_ALGO"]
    node = _native.control("info")["node"]
    ranks = {node.count(n) for n in node}
    in_levels = len(ranks) == 1 and ranks != {1}

    def value(sender: int, receiver: int, count: int, dtype: DType) -> Array:
        return repeated(np.roll(given(sender, dtype), receiver), count)

    for dtype in EVERY:
        for length in cases.lengths(dtype, 2):
            cases.next()
            kind, count = cases.kind(), -(-length // size)
            whole, result = room(kind, count * size, dtype), room(cases.kind(), count * size, dtype)
            what = f"{dtype.name} {count} {kind}"
            whole[:] = np.concatenate([value(rank, r, count, dtype) for r in range(size)])
            want = [value(r, rank, count, dtype) for r in range(size)]
            dist.all_to_all_single(result, whole, group=group)
            yield f"all_to_all_single {what}", bool((result == np.concatenate(want)).all())
            path = _native.control("group_info", group=group._id)["algorithm"]
            if whole.nbytes >= 1 << 20:
                right = path == "staged" or (path == "levels") == in_levels
                yield f"all_to_all_single {what} by {path}", right
            uneven = 7 * (cases.next() % 2) * (length > 1)
            sends = [room(kind, count + uneven * (rank + r), dtype) for r in range(size)]
            recvs = [room(kind, x.size, dtype) for x in sends]
            for r, x in enumerate(sends):
                x[:] = value(rank, r, x.size, dtype)
            dist.all_to_all(recvs, sends, group=group)
            right = all((x == value(r, rank, x.size, dtype)).all() for r, x in enumerate(recvs))
            yield f"all_to_all {what} {uneven}", bool(right)


def from_and_to_a_root(cases: Cases) -> Iterator[tuple[str, bool]]:
    for dtype in EVERY:
        for count in cases.lengths(dtype, 2):
            root = cases.next() % cases.size
            op, mine = cases.op(dtype), given(cases.rank, dtype)
            x = filled(cases.kind(), count, dtype, mine)
            what = f"{dtype.name} {op} {count} {cases.kind()} {root}"
            dist.broadcast(x, root)
            yield f"broadcast {what}", is_right(x, given(root, dtype))
            x[:] = repeated(mine, count)
            dist.reduce(x, root, op=op)
            want = reduced(op, dtype) if cases.rank == root else mine
            yield f"reduce {what}", is_right(x, want)


def barriers(cases: Cases) -> Iterator[tuple[str, bool]]:
    """No rank leaves before the last one has come. The hosts have one clock."""
    for late in range(cases.size):
        if cases.rank == late:
            time.sleep(0.02)
        came = time.monotonic()
        dist.barrier()
        moments = np.array([came, -time.monotonic()])
        dist.all_reduce(moments, op=ReduceOp.MAX)
        yield f"barrier {late}", bool(moments[0] <= -moments[1])


# Bits


def randoms(rank: int, count: int, dtype: DType, seed: int) -> Array:
    """Random numbers, which repeat after some thousand: to make more of them takes long."""
    x = np.random.default_rng([seed, rank]).standard_normal((2, min(count, REPEATED)))
    return np.resize((x[0] + 1j * x[1] if dtype.kind == "c" else x[0]).astype(dtype), count)


def in_order(groups: list[list[int]], rows: list[Array], op: Op) -> Array:
    """The sum or product in the order of the ranks of each group, and then of the groups.

    16-bit floats are added in float32, and rounded once.
    """
    dtype = rows[0].dtype
    wide = np.dtype("f4") if dtype.itemsize == 2 else dtype
    combine: Callable[[Array, Array], Array] = np.multiply if op == ReduceOp.PRODUCT else np.add
    total: Array | None = None
    for ranks in groups:
        part = rows[ranks[0]].astype(wide)
        for rank in ranks[1:]:
            part = combine(part, rows[rank].astype(wide))
        total = part if total is None else combine(total, part)
    assert total is not None
    if op == ReduceOp.AVG:
        real = np.dtype(f"f{wide.itemsize // 2}") if wide.kind == "c" else wide
        total = (total.view(real) / real.type(len(rows))).view(wide)
    return total.astype(dtype)


def bits(cases: Cases) -> Iterator[tuple[str, bool]]:
    """The ranks come at random moments, and the bits do not depend on them."""
    node = _native.control("info")["node"]
    nodes = [[r for r in range(cases.size) if node[r] == n] for n in sorted(set(node))]
    for dtype in FLOATS:
        for count in cases.lengths(dtype, 3):
            seed = cases.next()
            # NumPy multiplies complex numbers in another way than C.
            ops = [ReduceOp.SUM, ReduceOp.AVG] + [ReduceOp.PRODUCT] * (dtype.kind != "c")
            op = ops[seed % len(ops)]
            rows = [randoms(r, count, dtype, seed) for r in range(cases.size)]
            for again in range(3 if cases.all else 2):
                x = room(cases.kind(), count, dtype)
                x[:] = rows[cases.rank]
                time.sleep(random.random() * 0.002)
                dist.all_reduce(x, op=op)
                path = _native.control("group_info", group=0)["algorithm"]
                if path == "mpi":
                    break  # the MPI decides
                # The pieces of staged are long enough for levels, and so is the last one.
                in_levels = path in ("leaders", "levels", "staged")
                order = nodes if in_levels else [list(range(cases.size))]
                want = in_order(order, rows, op)
                right = x.tobytes() == want.tobytes()
                yield f"bits {dtype.name} {op} {count} {path} {again}", right
            n = count // cases.size  # one share
            if not 0 < n * dtype.itemsize < LENGTHS[-1]:
                continue
            rows = [row[: n * cases.size] for row in rows]
            share, whole = room(cases.kind(), n, dtype), room(cases.kind(), n * cases.size, dtype)
            whole[:] = rows[cases.rank]
            dist.reduce_scatter_tensor(share, whole, op=op)
            path = _native.control("group_info", group=0)["algorithm"]
            if path != "mpi":
                order = (
                    nodes if path in ("leaders", "levels", "staged") else [list(range(cases.size))]
                )
                mine = [row[cases.rank * n : (cases.rank + 1) * n] for row in rows]
                right = share.tobytes() == in_order(order, mine, op).tobytes()
                yield f"bits of a share {dtype.name} {op} {count} {path}", right


def main() -> None:
    dist.init_process_group()
    cases = Cases(sys.argv[2])
    tried, wrong, algorithms = 0, [], set()
    for collectives in (all_reduces, coalesced, shares, pairs, from_and_to_a_root, barriers, bits):
        for what, right in collectives(cases):
            tried += 1
            algorithms.add(_native.control("group_info", group=0)["algorithm"])
            if not right:
                wrong.append(what)
    ranks_report.write(
        {
            "rank": dist.get_rank(),
            "tried": tried,
            "wrong": wrong[:20],
            "algorithms": sorted(algorithms),
        }
    )
    dist.destroy_process_group()
    sys.exit(bool(wrong))


main()
