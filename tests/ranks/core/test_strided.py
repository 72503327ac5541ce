"""Tensors that are not contiguous and longer than a piece, on all ranks or on some of them."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp
from tensors import assert_reduced, numbers

ROWS, COLUMNS = 1536, 1536  # 9 MiB of float32: a piece has 8 MiB


def view_of(kind: str, rows: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Return a view of rows * COLUMNS elements, and the array that it is a view of."""
    if kind == "contiguous":
        whole = np.empty((rows, COLUMNS), dtype)
        return whole, whole
    if kind == "columns":
        whole = np.empty((rows, 2 * COLUMNS + 1), dtype)
        view = whole[:, 1::2]
    elif kind == "transposed":
        whole = np.empty((COLUMNS, rows), dtype)
        view = whole.T
    elif kind == "backwards":
        whole = np.empty((rows, COLUMNS), dtype)
        view = whole[::-1, ::-1]
    else:
        whole = np.empty((rows, 4, COLUMNS // 2 + 3), dtype)
        view = whole[:, 1:3, 2:-1]
    return view, whole


class Case:
    """A view with values, in an array of which nothing else may change."""

    def __init__(self, kind: str, values: np.ndarray) -> None:
        self.view, self.whole = view_of(kind, values.size // COLUMNS, values.dtype)
        self.whole.view(np.uint8)[...] = 1
        self.view[...] = values.reshape(self.view.shape)

    def values(self) -> np.ndarray:
        copy = self.view.copy()
        self.view[...] = np.frombuffer(b"\1" * copy.itemsize, copy.dtype)[0]
        assert (self.whole.view(np.uint8) == 1).all(), "written to between the elements"
        self.view[...] = copy
        return copy.reshape(-1)


def kind_on(rank: int, shape: str, mixed: bool) -> str:
    return shape if not mixed or rank % 2 == 0 else "contiguous"


@functools.cache
def data(rank: int, rows: int = ROWS, dtype: str = "float32") -> np.ndarray:
    return numbers(dtype, rows * COLUMNS, "strided", rank)


ways = pytest.mark.parametrize(
    ("shape", "mixed", "run"),
    [
        ("columns", False, False),
        ("transposed", True, True),
        ("backwards", False, True),
        ("slices", True, False),
    ],
    indirect=["run"],
    ids=["columns", "transposed-some-ranks-async", "backwards-async", "slices-some-ranks"],
)


@ways
def test_elementwise(
    dist: ModuleType, rank: int, size: int, shape: str, mixed: bool, run: Any
) -> None:
    parts = [data(r) for r in range(size)]
    own = kind_on(rank, shape, mixed)

    case = Case(own, parts[rank])
    run(dist.all_reduce, case.view)
    assert_reduced(case.values(), ReduceOp.SUM, parts)

    case = Case(own, parts[rank])
    run(dist.broadcast, case.view, size - 1)
    assert (case.values() == parts[-1]).all()

    case = Case(own, parts[rank])
    run(dist.reduce, case.view, 0, ReduceOp.MAX)
    want = np.max(parts, axis=0) if rank == 0 else parts[rank]
    assert (case.values() == want).all()

    case = Case(own, parts[rank])
    run(dist.scan, case.view)
    assert_reduced(case.values(), ReduceOp.SUM, parts[: rank + 1])

    case = Case(own, parts[rank])
    run(dist.exscan, case.view)
    if rank == 0:
        assert (case.values() == parts[0]).all()
    else:
        assert_reduced(case.values(), ReduceOp.SUM, parts[:rank])


@ways
def test_shares(dist: ModuleType, rank: int, size: int, shape: str, mixed: bool, run: Any) -> None:
    rows = ROWS // size
    parts = [data(r, rows) for r in range(size)]
    own = kind_on(rank, shape, mixed)
    zeros = np.zeros(rows * COLUMNS, np.float32)

    outs = [Case(own, zeros) for _ in range(size)]
    run(dist.all_gather, [o.view for o in outs], Case(own, parts[rank]).view)
    for r in range(size):
        assert (outs[r].values() == parts[r]).all()

    out = Case(own, np.zeros(size * rows * COLUMNS, np.float32))
    run(dist.all_gather_into_tensor, out.view, Case(own, parts[rank]).view)
    assert (out.values() == np.concatenate(parts)).all()

    outs = [Case(own, zeros) for _ in range(size)]
    run(dist.gather, Case(own, parts[rank]).view, [o.view for o in outs] if rank == 0 else None)
    if rank == 0:
        for r in range(size):
            assert (outs[r].values() == parts[r]).all()

    out = Case(own, zeros)
    run(dist.scatter, out.view, [Case(own, p).view for p in parts] if rank == 0 else None)
    assert (out.values() == parts[rank]).all()

    lists = [[data(r * size + i, rows) for i in range(size)] for r in range(size)]
    out = Case(own, zeros)
    run(dist.reduce_scatter, out.view, [Case(own, p).view for p in lists[rank]])
    assert_reduced(out.values(), ReduceOp.SUM, [lists[r][rank] for r in range(size)])

    out = Case(own, zeros)
    run(dist.reduce_scatter_tensor, out.view, Case(own, np.concatenate(lists[rank])).view)
    assert_reduced(out.values(), ReduceOp.SUM, [lists[r][rank] for r in range(size)])

    outs = [Case(own, zeros) for _ in range(size)]
    run(dist.all_to_all, [o.view for o in outs], [Case(own, p).view for p in lists[rank]])
    for r in range(size):
        assert (outs[r].values() == lists[r][rank]).all()

    out = Case(own, np.zeros(size * rows * COLUMNS, np.float32))
    run(dist.all_to_all_single, out.view, Case(own, np.concatenate(lists[rank])).view)
    assert (out.values() == np.concatenate([lists[r][rank] for r in range(size)])).all()


@pytest.mark.parametrize("mixed", [False, True], ids=["all", "some-ranks"])
def test_shares_of_different_lengths(
    dist: ModuleType, rank: int, size: int, mixed: bool, run: Any
) -> None:
    own = kind_on(rank, "columns", mixed)
    rows = [ROWS * r // size for r in range(size)]  # the first is empty
    rows[-1] += ROWS

    def case(n: int, seed: int) -> Case:
        return Case(own, data(seed, n))

    outs = [case(n, 99) for n in rows]
    run(dist.all_gather, [o.view for o in outs], case(rows[rank], rank).view)
    for r in range(size):
        assert (outs[r].values() == data(r, rows[r])).all()

    out = case(rows[rank], 99)
    run(dist.reduce_scatter, out.view, [case(n, rank).view for n in rows])
    assert_reduced(out.values(), ReduceOp.SUM, [data(r, rows[rank]) for r in range(size)])

    def length(source: int, to: int) -> int:
        return ROWS * ((source + 2 * to) % 3) // size

    sent = [data(rank * size + to, length(rank, to)) for to in range(size)]
    outs = [case(length(r, rank), 99) for r in range(size)]
    run(dist.all_to_all, [o.view for o in outs], [Case(own, s).view for s in sent])
    for r in range(size):
        assert (outs[r].values() == data(r * size + rank, length(r, rank))).all()

    out = Case(own, np.zeros(sum(length(r, rank) for r in range(size)) * COLUMNS, np.float32))
    run(
        dist.all_to_all_single,
        out.view,
        Case(own, np.concatenate(sent)).view,
        [length(r, rank) for r in range(size)],
        [length(rank, to) for to in range(size)],
    )
    want = [data(r * size + rank, length(r, rank)) for r in range(size)]
    assert (out.values() == np.concatenate(want)).all()


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float64", "complex128"])
def test_dtypes(dist: ModuleType, rank: int, size: int, dtype: str, run: Any) -> None:
    rows = 9 * 2**20 // (COLUMNS * np.dtype(numbers(dtype, 1, 0).dtype).itemsize)
    parts = [data(r, rows, dtype) for r in range(size)]
    case = Case(kind_on(rank, "columns", True), parts[rank])
    run(dist.all_reduce, case.view)
    strided = case.values()
    assert_reduced(strided, ReduceOp.SUM, parts)
    flat = parts[rank].copy()
    run(dist.all_reduce, flat)
    if dtype in ("int8", "bfloat16"):  # summed up by this library: the same bits
        assert strided.tobytes() == flat.tobytes()


def test_in_place_and_interleaved(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    rows = ROWS // size * size
    share = rows // size
    whole = np.empty((rows, 2 * COLUMNS), np.float32)
    even, odd = whole[:, ::2], whole[:, 1::2]

    even[...] = -1
    even[rank * share : (rank + 1) * share] = data(rank, share).reshape(share, COLUMNS)
    run(dist.all_gather_into_tensor, even, even[rank * share : (rank + 1) * share])
    assert (even.reshape(-1) == np.concatenate([data(r, share) for r in range(size)])).all()

    even[...] = data(rank, rows).reshape(rows, COLUMNS)
    run(dist.all_to_all_single, odd, even)  # what is sent lies between what is received
    want = [data(r, rows).reshape(size, -1)[rank] for r in range(size)]
    assert (odd.reshape(-1) == np.concatenate(want)).all()
    assert (even.reshape(-1) == data(rank, rows)).all()

    even[...] = data(rank, rows).reshape(rows, COLUMNS)
    run(dist.all_to_all_single, even[::-1], even)  # written over what is sent
    assert (even[::-1].reshape(-1) == np.concatenate(want)).all()


def test_elements_that_share_memory_cannot_receive(dist: ModuleType, rank: int) -> None:
    row = np.zeros((1, 2**21), np.float32)
    wide = np.lib.stride_tricks.as_strided(row, (4, 2**21), (0, 4))
    with pytest.raises(dist.errors.ArgumentError, match="share memory"):
        dist.all_reduce(wide)
    with pytest.raises(dist.errors.ArgumentError, match="share memory"):
        dist.recv(wide, 0)
    dist.barrier()


def test_a_list_is_reduced_in_pieces(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    lengths = [1, 300_000, 0, 2_500_000, 7]
    parts = [
        [numbers("float32", n, "list", r, i) for i, n in enumerate(lengths)] for r in range(size)
    ]
    mine = [p.copy() for p in parts[rank]]
    gaps = np.zeros((len(mine[3]), 2), np.float32)
    gaps[:, 0] = mine[3]
    mine[3] = gaps[:, 0]
    run(dist.all_reduce_coalesced, mine)
    for i, tensor in enumerate(mine):
        assert_reduced(tensor, ReduceOp.SUM, [parts[r][i] for r in range(size)])
    assert (gaps[:, 1] == 0).all()
