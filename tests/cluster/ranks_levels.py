"""Large tensors of every dtype and reduce op, over nodes of several ranks.

The values are small, so that every order of a sum has the same bits, and repeat after a few
elements, so that the right result is quick to make.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import paddlempi as dist
import ranks_report
from paddlempi import ReduceOp

Array = np.ndarray[Any, Any]
Op = Any

PERIOD = 7
PARTS = 9 << 20  # bytes: two whole parts in levels, and one that is shorter
FLOATS = [np.dtype(t) for t in ("f4", "f8", "c8", "c16", "f2", ml_dtypes.bfloat16)]
WHOLE = [np.dtype(t) for t in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
ARITHMETIC = [ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX]
BITWISE = [ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
# On both sides of the least length for levels, not round, and of more than a part.
LENGTHS = [0, 1, 1001, (1 << 20) + 4]
KINDS = ["mapped", "ordinary", "strided"]


def cases() -> Iterator[tuple[np.dtype[Any], Op]]:
    for dtype in FLOATS:
        ops = ARITHMETIC[:3] if dtype.kind == "c" else ARITHMETIC
        yield from ((dtype, op) for op in (*ops, ReduceOp.PREMUL_SUM(2.0)))
    for dtype in WHOLE:
        yield from ((dtype, op) for op in ARITHMETIC + BITWISE)
    yield from ((np.dtype(bool), op) for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR))


def given(rank: int, dtype: np.dtype[Any]) -> Array:
    """What a rank gives: a period of it."""
    return ((np.arange(PERIOD) + 3 * rank) % 3).astype(dtype)


def reduced(op: Op, dtype: np.dtype[Any]) -> Array:
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


def room(kind: str, count: int, dtype: np.dtype[Any]) -> Array:
    if kind == "mapped":
        return dist.empty((count,), dtype=dtype.name)
    if kind == "strided":
        return np.zeros(2 * count, dtype)[::2]
    return np.zeros(count, dtype)


def filled(kind: str, count: int, dtype: np.dtype[Any], period: Array) -> Array:
    x = room(kind, count, dtype)
    x[:] = np.resize(period, count)
    return x


def is_right(got: Array, period: Array, begin: int = 0) -> bool:
    return bool((got == np.resize(np.roll(period, -(begin % PERIOD)), got.size)).all())


def all_reduces() -> Iterator[tuple[str, bool]]:
    rank = dist.get_rank()
    for number, (dtype, op) in enumerate(cases()):
        want = reduced(op, dtype)
        for turn, nbytes in enumerate(LENGTHS if number % 3 else [*LENGTHS, PARTS + 1000]):
            count = -(-nbytes // dtype.itemsize)
            kind = KINDS[(number + turn + rank) % 3]  # the ranks need not have the same kinds
            x = filled(kind, count, dtype, given(rank, dtype))
            what = f"all_reduce {dtype.name} {op} {count} {kind}"
            dist.all_reduce(x, op=op)
            yield what, is_right(x, want)


def parts() -> Iterator[tuple[str, bool]]:
    """Shares of one length, and of several."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for number, dtype in enumerate([*FLOATS, np.dtype("i1"), np.dtype("i8")]):
        mine = given(rank, dtype)
        total = reduced(ReduceOp.SUM, dtype)
        for turn, nbytes in enumerate([0, 1000, (1 << 20) + 4000, PARTS]):
            kind = KINDS[(number + turn + rank) % 2]
            count = -(-nbytes // dtype.itemsize // size)
            whole = filled(kind, count * size, dtype, mine)
            share = room(kind, count, dtype)
            dist.reduce_scatter_tensor(share, whole)
            yield f"reduce_scatter {dtype.name} {count}", is_right(share, total, rank * count)
            share[:] = np.resize(mine, count)
            dist.all_gather_into_tensor(whole, share)
            rows = [np.resize(given(r, dtype), count) for r in range(size)]
            yield f"all_gather {dtype.name} {count}", bool((whole == np.concatenate(rows)).all())
            lengths = [count + 100 * r + 7 * (r % 2) for r in range(size)]
            tensors = [filled(kind, n, dtype, mine) for n in lengths]
            share = room(kind, lengths[rank], dtype)
            dist.reduce_scatter(share, tensors)
            yield f"uneven reduce_scatter {dtype.name} {count}", is_right(share, total)
            share[:] = np.resize(mine, lengths[rank])
            dist.all_gather(tensors, share)
            right = all(is_right(x, given(r, dtype)) for r, x in enumerate(tensors))
            yield f"uneven all_gather {dtype.name} {count}", right


def from_and_to_a_root() -> Iterator[tuple[str, bool]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    for number, dtype in enumerate([*FLOATS, np.dtype("i1"), np.dtype("i8")]):
        for turn, nbytes in enumerate([*LENGTHS, PARTS + 4000]):
            kind = KINDS[(number + turn + rank) % 3]
            count, root = -(-nbytes // dtype.itemsize), (number + turn) % size
            x = filled(kind, count, dtype, given(rank, dtype))
            dist.broadcast(x, root)
            yield f"broadcast {dtype.name} {count} {kind}", is_right(x, given(root, dtype))
            x[:] = np.resize(given(rank, dtype), count)
            dist.reduce(x, root, op=ReduceOp.SUM)
            want = reduced(ReduceOp.SUM, dtype) if rank == root else given(rank, dtype)
            yield f"reduce {dtype.name} {count} {kind}", is_right(x, want)


def main() -> None:
    dist.init_process_group()
    tried, wrong = 0, []
    for collectives in (all_reduces(), parts(), from_and_to_a_root()):
        for what, right in collectives:
            tried += 1
            if not right:
                wrong.append(what)
    ranks_report.write({"rank": dist.get_rank(), "tried": tried, "wrong": wrong[:20]})
    dist.destroy_process_group()
    sys.exit(bool(wrong))


main()
