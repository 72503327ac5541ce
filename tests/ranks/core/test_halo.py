"""Halos: Cartesian.halo_exchange in 1 to 4 dimensions, compared with the whole tensor."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import _native
from ranks_tools import impatient_group, needs_mpi
from tensors import Kind, Layout, noise

# Not in the contract: on a node these make no calls of MPI. tests/cluster/test_halos.py has several
# nodes.

DTYPES = ["bool", "int8", "uint16", "float16", "bfloat16", "float32", "int64", "complex64"]
DTYPES += ["complex128", "float8_e5m2"]
BORDER = 1  # what the border holds before

Widths = Sequence[tuple[int, int]]


def cuts(length: int, ranks: int) -> list[int]:
    """Where a dimension is cut: the parts of the ranks differ in length."""
    return [length * i // ranks for i in range(ranks + 1)]


def parts(cart: Any, lengths: Sequence[int], widths: Widths, lead: Sequence[int] = ()) -> Any:
    """Return this rank's part of a whole tensor with its border, before and after an exchange.

    The whole tensor has a number in each place that tells the place.
    """
    whole = np.arange(int(np.prod([*lead, *lengths]))).reshape(*lead, *lengths) % 251 + 2
    cells, values, inner, part, shape = [], [], [], [], list(lead)
    for k, (length, (before, behind)) in enumerate(zip(lengths, widths, strict=True)):
        ends = cuts(length, cart.dims[k])
        first, last = ends[cart.coords[k]], ends[cart.coords[k] + 1]
        at = np.arange(first - before, last + behind)
        if cart.periodic[k]:
            at %= length
        known = np.flatnonzero((at >= 0) & (at < length))
        cells.append(known)
        values.append(at[known])
        inner.append(slice(before, before + last - first))
        part.append(slice(first, last))
        shape.append(len(at))
    start = np.full(shape, BORDER)
    start[(..., *inner)] = whole[(..., *part)]
    wanted = start.copy()
    wanted[(..., *np.ix_(*cells))] = whole[(..., *np.ix_(*values))]
    return start, wanted


def grids(size: int, n: int) -> list[tuple[int, ...]]:
    """Return all dimensions of grids of that many ranks."""
    return [d for d in itertools.product(range(1, size + 1), repeat=n) if np.prod(d) == size]


@pytest.mark.parametrize("periodic", [False, True, "mixed"])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_values(dist: ModuleType, size: int, n: int, periodic: Any, run: Any) -> None:
    lengths = [3 * size + 2 - k % 2 for k in range(n)]
    all_widths = [
        [(1, 1)] * n,
        [(2, 1 + k % 2) for k in range(n)],
        [(k % 2, 1) for k in range(n)],
        [(0, 3)] + [(0, 0)] * (n - 1),
    ]
    for dims in grids(size, n):
        wraps = [k % 2 == 0 for k in range(n)] if periodic == "mixed" else periodic
        cart = dist.Cartesian(dims, periodic=wraps)
        for widths in all_widths:
            start, wanted = parts(cart, lengths, widths)
            tensor = start.astype("float32")
            run(cart.halo_exchange, tensor, widths)
            np.testing.assert_array_equal(tensor, wanted.astype("float32"))


def test_width_as_number_and_for_each_dimension(dist: ModuleType, size: int) -> None:
    cart = dist.Cartesian([0, 0], periodic=True)
    for width, widths in (
        (2, [(2, 2)] * 2),
        ((1, 2), [(1, 1), (2, 2)]),
        ([(1, 0), 2], [(1, 0), (2, 2)]),
    ):
        start, tensor = (x.astype("int32") for x in parts(cart, (4 * size, 5 * size), widths))
        cart.halo_exchange(start, width)
        np.testing.assert_array_equal(start, tensor)


def shown(dtype: str, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return values of a dtype that stand for numbers below 256."""
    return noise(dtype, 256, "halo")[numbers]


def packed(shape: Sequence[int]) -> Layout:
    size = int(np.prod(shape))
    steps = [int(np.prod(shape[k + 1 :])) for k in range(len(shape))]
    return Layout("", tuple(shape), tuple(steps), 0, size)


def spread(shape: Sequence[int]) -> Layout:
    """A tensor with its dimensions in another order in memory, gaps, and the last one reversed."""
    steps, step = [0] * len(shape), 2
    for k in [*range(1, len(shape)), 0]:
        steps[k] = step
        step *= shape[k] + 1
    steps[-1] = -steps[-1]
    return Layout("", tuple(shape), tuple(steps), -steps[-1] * (shape[-1] - 1) + 1, step + 3)


@pytest.mark.parametrize("layout", [packed, spread])
def test_kinds_dtypes_and_strides(dist: ModuleType, kind: Kind, layout: Any, run: Any) -> None:
    cart = dist.Cartesian([0, 0], periodic=[False, True])
    widths = [(1, 1), (2, 1)]
    start, wanted = parts(cart, (13, 11), widths, lead=(3,))
    placed = layout(start.shape)
    if min(placed.strides) < 0 and kind.name in ("torch", "paddle"):
        return  # these have no negative strides
    for dtype in kind.dtypes(DTYPES):
        tensor = kind.make(dtype, placed).fill(shown(dtype, start))
        run(cart.halo_exchange, tensor.given, widths)
        assert tensor.bits() == shown(dtype, wanted).tobytes(), dtype


@pytest.mark.parametrize("memory", ["ordinary", "heap"])
@pytest.mark.parametrize("length", [3, 40, 300])
def test_short_and_long_blocks(
    dist: ModuleType, size: int, memory: str, length: int, run: Any
) -> None:
    """A block lies in the arrival slot, or in the heap, or goes in messages."""
    for dims in grids(size, 2):
        cart = dist.Cartesian(dims, periodic=[True, False])
        start, wanted = parts(cart, (length * size, length * size + 1), [(3, 2)] * 2)
        tensor = start.astype("int64")
        if memory == "heap":
            tensor = dist.empty(start.shape, "int64")
            tensor[...] = start
        for _ in range(5):
            tensor[...] = start
            run(cart.halo_exchange, tensor, [(3, 2)] * 2)
            np.testing.assert_array_equal(tensor, wanted)


def test_a_lent_tensor_may_be_changed_at_once(dist: ModuleType, rank: int, size: int) -> None:
    """A tensor of long rows in the heap is not packed: the neighbours read it before the return."""
    cart = dist.Cartesian([size, 1], periodic=[True, False])
    widths = [(2, 1), (0, 0)]
    room = dist.empty((9, 7001), "float32")
    heap, ordinary = room[::-1, 1:], np.empty((9, 7000), "float32")
    for step in range(60):
        tensor = (heap, ordinary)[step % 3 == 1 + rank % 2]
        tensor[2:-1] = (1000 * step + 10 * rank + np.arange(6))[:, None]
        cart.halo_exchange(tensor, widths)
        before, behind = (1000 * step + 10 * ((rank + s) % size) for s in (-1, 1))
        assert (tensor[0] == before + 4).all() and (tensor[1] == before + 5).all(), step
        assert (tensor[-1] == behind).all(), step
        tensor[...] = -1


def test_some_blocks_are_short(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """The ranks give blocks of very different lengths."""
    cart = dist.Cartesian([size], periodic=False)
    for length in (2, 700, 90_000):
        mine = np.full((2 + (length if rank else 2), 3), rank, "float64")
        whole = mine.copy()
        run(cart.halo_exchange, mine.T, 1)
        if rank > 0:
            whole[0] = rank - 1
        if rank < size - 1:
            whole[-1] = rank + 1
        np.testing.assert_array_equal(mine, whole)


def test_nothing_inside(dist: ModuleType, size: int, run: Any) -> None:
    """A tensor without an inner part, or without elements, is exchanged where nothing travels."""
    cart = dist.Cartesian([size, 1])
    tensor = np.full((4, 2), 5.0)
    run(cart.halo_exchange, tensor, [(1, 1), (1, 1)])
    assert (tensor == 5).all()
    run(cart.halo_exchange, np.zeros((0, 4, 4)), 1)
    run(cart.halo_exchange, np.zeros((3, 0)), 0)


def test_many_steps_in_the_queue(dist: ModuleType, size: int) -> None:
    """Exchanges of several tensors are under way at once, between other collectives."""
    cart = dist.Cartesian([0, 0, 0], periodic=True)
    start, wanted = parts(cart, (5 * size, 6 * size, 4 * size), [(1, 1)] * 3)
    tensors = [start.astype("float32") + 300 * i for i in range(40)]
    sums = np.ones(3)
    works = []
    for tensor in tensors:
        works.append(cart.halo_exchange(tensor, 1, async_op=True))
        works.append(dist.all_reduce(sums, async_op=True))
    for work in reversed(works):
        work.wait()
    border = wanted != start
    for i, tensor in enumerate(tensors):
        np.testing.assert_array_equal(tensor[border], wanted[border] + 300 * i)
    assert (sums == float(size) ** len(tensors)).all()


def test_an_exchange_sees_the_one_before(dist: ModuleType, rank: int, size: int) -> None:
    """An exchange in the queue sends what the exchange before it has received."""
    cart = dist.Cartesian([size])
    tensor = np.zeros(3 + 2)
    tensor[1:-1] = rank + 1
    view = tensor[:-1]  # its inner part is the border of the other
    works = [cart.halo_exchange(tensor, 1, async_op=True), cart.halo_exchange(view, [(0, 1)], True)]
    for work in works:
        work.wait()
    wanted = np.zeros(5)
    wanted[1:-1] = rank + 1
    if rank > 0:
        wanted[0] = rank
    if rank < size - 1:
        wanted[-1] = rank + 2
        wanted[-2] = rank + 1  # what the next rank has received in the exchange before
    np.testing.assert_array_equal(tensor, wanted)


def test_reverse_view_of_channels_last(dist: ModuleType, size: int) -> None:
    """A view puts the dimensions of the grid last."""
    cart = dist.Cartesian([0, 0])
    start, wanted = parts(cart, (4 * size, 4 * size), [(1, 1)] * 2, lead=(3,))
    tensor = np.ascontiguousarray(np.moveaxis(start, 0, -1))
    cart.halo_exchange(np.moveaxis(tensor, -1, 0), 1)
    np.testing.assert_array_equal(np.moveaxis(tensor, -1, 0), wanted)


def test_a_group_of_its_own(dist: ModuleType, rank: int, size: int) -> None:
    """Grids on a group in another order, reordered, and parts of a grid."""
    ranks = list(reversed(range(size)))
    cart = dist.Cartesian([0, 0], group=dist.new_group(ranks), periodic=True)
    assert cart.rank_of(cart.coords) == rank
    assert cart.coords_of(rank) == cart.coords
    assert cart.rank_of([0, 0]) == size - 1
    reordered = dist.Cartesian([0, 0], reorder=True)
    for one in (cart, reordered, cart.sub([False, True]), cart.sub([True, True])):
        widths = [(1, 2)] * len(one.dims)
        start, wanted = parts(one, [4 * size] * len(one.dims), widths)
        tensor = start.astype("int16")
        one.halo_exchange(tensor, widths)
        np.testing.assert_array_equal(tensor, wanted)
    row = cart.sub([False, True])
    assert row.dims == cart.dims[1:] and row.coords == cart.coords[1:] and row.periodic == (True,)
    assert cart.sub([False, False]).dims == ()


def test_dims_are_those_of_mpi(dist: ModuleType, size: int) -> None:
    """A 0 is chosen as MPI chooses it, here for few ranks; Go's tests have more."""
    needs_mpi()
    path = _native.control("info", sys_prefix=sys.prefix, mpi=None)["mpi"]["path"]
    create = ctypes.CDLL(path).MPI_Dims_create
    for dims in ([0], [0, 0], [0, 0, 0], [0] * 4, [size, 0], [1, 0, 0]):
        chosen = (ctypes.c_int * len(dims))(*dims)
        assert create(size, len(dims), chosen) == 0
        assert dist.Cartesian(dims).dims == tuple(chosen)


def test_shift(dist: ModuleType, rank: int, size: int) -> None:
    line, ring = dist.Cartesian([size]), dist.Cartesian([size], periodic=True)
    assert line.shift(0) == (rank - 1 if rank else None, rank + 1 if rank + 1 < size else None)
    assert ring.shift(-1, 2) == ((rank - 2) % size, (rank + 2) % size)
    assert ring.shift(0, -1) == ((rank + 1) % size, (rank - 1) % size)
    assert line.shift(0, size) == (None, None)
    with pytest.raises(dist.errors.ArgumentError, match="dim=1"):
        line.shift(1)


# Wrong use


def test_wrong_arguments(dist: ModuleType, rank: int, size: int) -> None:
    errors = dist.errors
    for dims in ([size + 1], [size, 2], [-1], [0, size + 1]):
        with pytest.raises(errors.ArgumentError, match="dims"):
            dist.Cartesian(dims)
    with pytest.raises(errors.DtypeError, match="dims"):
        dist.Cartesian(["a"])
    with pytest.raises(errors.ArgumentError, match="periodic"):
        dist.Cartesian([size], periodic=[True, False])
    cart = dist.Cartesian([size])
    with pytest.raises(errors.ArgumentError, match="coords"):
        cart.rank_of([size])
    tensor = np.zeros((4, 4))
    for width, error, text in (
        ("1", errors.DtypeError, "width='1'"),
        ([1.5], errors.DtypeError, "width"),
        ([(1, 2, 3)], errors.DtypeError, "width"),
        ([1, 1], errors.ArgumentError, "2 values"),
        (-1, errors.ArgumentError, "0 or more"),
        (3, errors.ArgumentError, "fewer than its border"),
    ):
        with pytest.raises(error, match=text):
            cart.halo_exchange(tensor, width)
    with pytest.raises(errors.ArgumentError, match="1 dimensions, the grid has 2"):
        dist.Cartesian([size, 1]).halo_exchange(np.zeros(9), 1)
    with pytest.raises(errors.ArgumentError, match="1 to 4"):
        dist.Cartesian([size, 1, 1, 1, 1]).halo_exchange(np.zeros([9] * 5), 1)
    with pytest.raises(errors.ArgumentError, match="share memory"):
        cart.halo_exchange(np.lib.stride_tricks.as_strided(tensor, (9, 9), (0, 8)), 1)
    with pytest.raises(errors.DtypeError):
        cart.halo_exchange(None, 1)
    cart.halo_exchange(tensor, 1)  # the group is usable


def test_one_rank_is_wrong(dist: ModuleType, rank: int, size: int) -> None:
    """The rank whose tensor is wrong raises, and the others raise too."""
    if size == 1:
        return
    cart = dist.Cartesian([size])
    for wrong in (np.zeros(1), "no tensor"):
        error = dist.errors.RefusedError
        if rank == 1:
            error = dist.errors.DtypeError
            if isinstance(wrong, np.ndarray):
                error = dist.errors.ArgumentError
        with pytest.raises(error):
            cart.halo_exchange(wrong if rank == 1 else np.zeros(9), 1)
    tensor = np.full(3, float(rank))
    cart.halo_exchange(tensor, 1)
    assert tensor[-1] == min(rank + 1, size - 1)


def test_mismatches(dist: ModuleType, rank: int, size: int) -> None:
    """All ranks raise the same error, and the group stays usable."""
    if size == 1:
        return
    line, torus = dist.Cartesian([size, 1]), dist.Cartesian([size, 1], periodic=True)
    last = rank == size - 1
    for call, text in (
        (lambda: line.halo_exchange(np.zeros((9, 9)), 2 if last else 1), "width"),
        (lambda: line.halo_exchange(np.zeros((9, 9), "f4" if last else "f8"), 1), "float32"),
        (lambda: (torus if last else line).halo_exchange(np.zeros((9, 9)), 1), "detail"),
        (lambda: line.halo_exchange(np.zeros((2 + last, 9, 9)), 1), "detail"),
        (lambda: line.halo_exchange(np.zeros((9, 8 + last)), 1), "differ in that dimension only"),
        (lambda: dist.barrier() if last else line.halo_exchange(np.zeros((9, 9))), "barrier"),
        (lambda: line.halo_exchange(np.zeros((300, 60000 + last)), 1), "differ in that dimension"),
    ):
        with pytest.raises(dist.errors.MismatchError, match=text) as caught:
            call()
        assert caught.value.ranks
        tensor = np.full((3, 3), float(rank))
        line.halo_exchange(tensor, 1)
        assert tensor[-1, 1] == min(rank + 1, size - 1)


def test_not_on_a_member(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group([0])
    if rank:
        with pytest.raises(dist.errors.NotMemberError):
            dist.Cartesian([1], group=group)
    else:
        assert dist.Cartesian([0], group=group).dims == (1,)


# Ranks that do not come


@pytest.mark.mpi(ranks=[2, 3])
def test_a_rank_that_is_late(dist: ModuleType, rank: int, size: int) -> None:
    """The error names the rank that never came, and the group is broken."""
    cart = dist.Cartesian([size], group=impatient_group(0.5))
    late = size - 1
    if rank != late:
        with pytest.raises(dist.errors.TimeoutError, match="float64, width 1") as caught:
            cart.halo_exchange(np.zeros(9), 1)
        assert list(caught.value.ranks) == [late]
    dist.barrier()
    with pytest.raises(dist.errors.GroupBrokenError):
        cart.halo_exchange(np.zeros(9), 1)


@pytest.mark.mpi(ranks=2)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_interrupted(dist: ModuleType, rank: int, asynchronous: bool) -> None:
    """Ctrl-C ends a call and breaks the group; it ends the wait for a work, which goes on."""
    cart = dist.Cartesian([2], group=dist.new_group())
    tensor = np.full(3, float(rank))
    if rank == 0:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            if asynchronous:
                work = cart.halo_exchange(tensor, 1, async_op=True)
                work.wait()
            else:
                cart.halo_exchange(tensor, 1)
    dist.barrier()
    if not asynchronous:
        with pytest.raises(dist.errors.GroupBrokenError):
            cart.halo_exchange(tensor, 1)
        return
    if rank == 0:
        work.wait()
    else:
        cart.halo_exchange(tensor, 1)
    assert tensor.tolist() == ([0, 0, 1] if rank == 0 else [0, 1, 1])
