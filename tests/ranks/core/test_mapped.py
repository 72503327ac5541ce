"""Collectives whose tensors lie in the heaps of the ranks: ``empty`` and its relatives.

On one node such a collective works in place ("mapped"), and a short one lies in the slots of the
arrival ("inline"). Everything else goes through blocks ("bounce"), or by MPI. Each test says which
way a call must take.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp
from tensors import assert_reduced, noise, numbers, numpy_dtype, reduced, reducible
from ways import FEW, INLINE, SLOTS, Place, check_way, garbage, took

CHUNK = 32 << 10  # bytes
OPS = [
    ReduceOp.SUM,
    ReduceOp.PRODUCT,
    ReduceOp.MIN,
    ReduceOp.MAX,
    ReduceOp.AVG,
    ReduceOp.BAND,
    ReduceOp.BOR,
    ReduceOp.BXOR,
    ReduceOp.PREMUL_SUM(0.5),
]


def around(dtype: str, ranks: int) -> list[int]:
    """Numbers of elements around the limits of "inline" and around whole chunks."""
    size = numpy_dtype(dtype).itemsize
    limits = [min(INLINE, SLOTS // ranks), ranks * 512, *(CHUNK * n for n in (1, 2, 3, 7))]
    return sorted({at // size + by for at in limits for by in (-1, 0, 1)})


def synchronous(function: Any, *arguments: Any) -> None:
    """Call a collective and wait in the call."""
    function(*arguments)


# One function an operation: it makes tensors, calls, checks the result, and returns how many bytes
# a rank gives.


def all_reduce(dist: ModuleType, make: Place, run: Any, dtype: str, each: int, op: Any) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [numbers(dtype, each, "all_reduce", r) for r in range(size)]
    tensor = make("recv", parts[rank])
    run(dist.all_reduce, tensor, op)
    assert_reduced(tensor, op, parts)
    return int(tensor.nbytes)


def reduce(dist: ModuleType, make: Place, run: Any, dtype: str, each: int, op: Any) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    root = size - 1
    parts = [numbers(dtype, each, "reduce", r) for r in range(size)]
    tensor = make("recv", parts[rank])
    run(dist.reduce, tensor, root, op)
    if rank == root:
        assert_reduced(tensor, op, parts)
    else:
        assert tensor.tobytes() == parts[rank].tobytes(), "only the root's tensor is written"
    return int(tensor.nbytes)


def reduce_scatter(dist: ModuleType, make: Place, run: Any, dtype: str, each: int, op: Any) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [
        numbers(dtype, each * size, "reduce_scatter", r).reshape(size, each) for r in range(size)
    ]
    send, recv = make("send", parts[rank]), make("recv", garbage(dtype, each))
    run(dist.reduce_scatter_tensor, recv, send, op)
    assert_reduced(recv, op, [part[rank] for part in parts])
    assert send.tobytes() == parts[rank].tobytes(), "the input was written to"
    return int(send.nbytes)


def broadcast(dist: ModuleType, make: Place, run: Any, dtype: str, each: int, op: Any) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    root = size // 2
    bits = noise(dtype, each, "broadcast")
    tensor = make("recv", bits if rank == root else garbage(dtype, each))
    run(dist.broadcast, tensor, root)
    assert tensor.tobytes() == bits.tobytes()
    return int(tensor.nbytes)


def all_gather(dist: ModuleType, make: Place, run: Any, dtype: str, each: int, op: Any) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [noise(dtype, each, "all_gather", r) for r in range(size)]
    send, recv = make("send", parts[rank]), make("recv", garbage(dtype, each * size))
    run(dist.all_gather_into_tensor, recv, send)
    assert recv.tobytes() == b"".join(part.tobytes() for part in parts)
    assert send.tobytes() == parts[rank].tobytes()
    return int(send.nbytes)


def gather(dist: ModuleType, make: Place, run: Any, dtype: str, each: int, op: Any) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [noise(dtype, each, "gather", r) for r in range(size)]
    send, recv = make("send", parts[rank]), make("recv", garbage(dtype, each * size))
    chunks = list(recv.reshape(size, each)) if rank == 0 else None
    run(dist.gather, send, chunks, 0)
    whole = parts if rank == 0 else [garbage(dtype, each * size)]
    assert recv.tobytes() == b"".join(part.tobytes() for part in whole)
    return int(send.nbytes)


def scatter(dist: ModuleType, make: Place, run: Any, dtype: str, each: int, op: Any) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    root = size - 1
    parts = noise(dtype, each * size, "scatter").reshape(size, each)
    send, recv = make("send", parts), make("recv", garbage(dtype, each))
    run(dist.scatter, recv, list(send) if rank == root else None, root)
    assert recv.tobytes() == parts[rank].tobytes()
    return int(send.nbytes)


def all_to_all(dist: ModuleType, make: Place, run: Any, dtype: str, each: int, op: Any) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [noise(dtype, each * size, "all_to_all", r).reshape(size, each) for r in range(size)]
    send, recv = make("send", parts[rank]), make("recv", garbage(dtype, each * size))
    run(dist.all_to_all_single, recv, send)
    assert recv.tobytes() == b"".join(part[rank].tobytes() for part in parts)
    assert send.tobytes() == parts[rank].tobytes()
    return int(send.nbytes)


REDUCTIONS = [all_reduce, reduce, reduce_scatter]
EVERY = [*REDUCTIONS, broadcast, all_gather, gather, scatter, all_to_all]
TWO_SIDES = [reduce_scatter, all_gather, gather, scatter, all_to_all]

each_operation = pytest.mark.parametrize("operation", EVERY, ids=lambda f: f.__name__)


@each_operation
def test_sizes(dist: ModuleType, size: int, operation: Any) -> None:
    make = Place(dist, lambda side, rank: False)
    for each in sorted({*FEW, *around("float32", size)}):
        given = operation(dist, make, synchronous, "float32", each, ReduceOp.SUM)
        check_way(dist, size, given, True)


@each_operation
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "complex128"])
def test_sizes_of_elements(
    dist: ModuleType, size: int, operation: Any, dtype: str, run: Any
) -> None:
    make = Place(dist, lambda side, rank: False)
    for each in (1, 65, *around(dtype, size)[::2]):
        given = operation(dist, make, run, dtype, each, ReduceOp.SUM)
        check_way(dist, size, given, True)


@pytest.mark.parametrize("operation", REDUCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("op", OPS, ids=str)
def test_reduce_ops(dist: ModuleType, size: int, operation: Any, op: ReduceOp, run: Any) -> None:
    make = Place(dist, lambda side, rank: False)
    for dtype in reducible(op):
        for each in (65, 20_011):
            given = operation(dist, make, run, dtype, each, op)
            check_way(dist, size, given, True)


def one_has_ordinary_memory(
    dist: ModuleType, size: int, operation: Any, each: int, run: Any
) -> None:
    for ordinary in {0, size - 1}:
        make = Place(dist, lambda side, rank, ordinary=ordinary: rank == ordinary)
        given = operation(dist, make, run, "float32", each, ReduceOp.SUM)
        check_way(dist, size, given, False)


@pytest.mark.parametrize(
    "operation", [f for f in EVERY if f is not reduce], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("each", [3, 4097, 30_001])
def test_one_rank_has_ordinary_memory(
    dist: ModuleType, size: int, operation: Any, each: int, run: Any
) -> None:
    """All ranks agree on MPI then, or on the slots if the input is short."""
    one_has_ordinary_memory(dist, size, operation, each, run)


@pytest.mark.parametrize("each", [3, 4097, 30_001])
def test_one_rank_has_ordinary_memory_in_a_reduce(
    dist: ModuleType, size: int, each: int, run: Any
) -> None:
    one_has_ordinary_memory(dist, size, reduce, each, run)


@pytest.mark.parametrize("operation", TWO_SIDES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("ordinary", ["send", "recv"])
def test_one_side_has_ordinary_memory(
    dist: ModuleType, size: int, operation: Any, ordinary: str, run: Any
) -> None:
    make = Place(dist, lambda side, rank: side == ordinary)
    for each in (5, 20_003):
        given = operation(dist, make, run, "float32", each, ReduceOp.SUM)
        check_way(dist, size, given, False)


def test_large(dist: ModuleType, size: int, run: Any) -> None:
    """More chunks than there are words for, so chunks are longer than 32 KiB."""
    make = Place(dist, lambda side, rank: False)
    for operation in (all_reduce, all_gather, all_to_all):
        given = operation(dist, make, run, "float32", (4 << 20) // 4 + 1, ReduceOp.SUM)
        check_way(dist, size, given, True)


def test_a_tensor_beyond_one_segment(dist: ModuleType, rank: int, size: int) -> None:
    """70 MiB: a peer maps a segment of that length when it first meets it."""
    tensor = dist.zeros((70 << 20) // 8, "int64")
    tensor += rank
    tensor[-1] = rank + 7
    dist.all_reduce(tensor)
    total = sum(range(size))
    assert (tensor[:-1] == total).all()
    assert tensor[-1] == total + 7 * size
    check_way(dist, size, tensor.nbytes, True)


def test_bits_are_the_same_on_all_ranks(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """Floats of very different size, whose sum depends on the order."""
    for dtype in ("float32", "float64", "bfloat16", "float16", "complex64"):
        random = np.random.default_rng(7 + rank)
        values = random.normal(0, 1, 50_021) * 10.0 ** random.integers(-3, 3, 50_021)
        tensor = dist.empty(50_021, dtype)
        for _ in range(3):
            tensor[...] = values.astype(tensor.dtype)
            run(dist.all_reduce, tensor)
            bits: list[Any] = [None] * size
            dist.all_gather_object(bits, tensor.tobytes())
            assert all(bit == bits[0] for bit in bits), dtype


def test_in_its_own_place(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    for each in (3, 4097, 30_001):
        for dtype in ("float32", "bfloat16", "uint8"):
            whole = dist.empty((size, each), dtype)
            whole[...] = garbage(dtype, size * each).reshape(size, each)
            whole[rank] = noise(dtype, each, rank)
            run(dist.all_gather_into_tensor, whole, whole[rank])
            assert whole.tobytes() == b"".join(noise(dtype, each, r).tobytes() for r in range(size))
            check_way(dist, size, whole[rank].nbytes, True)
            parts = [numbers(dtype, each * size, r).reshape(size, each) for r in range(size)]
            whole[...] = parts[rank]
            run(dist.reduce_scatter_tensor, whole[rank], whole)
            wanted = reduced(ReduceOp.SUM, [part[rank] for part in parts])
            np.testing.assert_array_equal(whole[rank], wanted)
            for other in {*range(size)} - {rank}:
                assert whole[other].tobytes() == parts[rank][other].tobytes()
            check_way(dist, size, whole.nbytes, True)


def test_where_other_ranks_still_read(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """A result that overlaps what others read is not written in place."""
    each = 20_000
    for place in (size - 1 - rank, (rank + 1) % size):
        whole = dist.zeros((size, each), "float32")
        whole[place] = numbers("float32", each, rank)
        run(dist.all_gather_into_tensor, whole, whole[place])
        for r in range(size):
            np.testing.assert_array_equal(whole[r], numbers("float32", each, r))
    given = [noise("float32", each * size, r).reshape(size, each) for r in range(size)]
    tensor = dist.empty((size, each))
    tensor[...] = given[rank]
    run(dist.all_to_all_single, tensor, tensor)
    assert tensor.tobytes() == b"".join(part[rank].tobytes() for part in given)


def test_slices_of_one_tensor(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """The offsets differ from rank to rank, and are no multiples of a cache line."""
    memory = dist.empty(200_000, "float32")
    memory[...] = -1
    for begin, end in ((1, 30_000), (30_000, 30_003), (50_001 + rank, 50_001 + rank + 40_000)):
        parts = [numbers("float32", end - begin, r) for r in range(size)]
        memory[begin:end] = parts[rank]
        run(dist.all_reduce, memory[begin:end])
        assert_reduced(memory[begin:end], ReduceOp.SUM, parts)
        check_way(dist, size, 4 * (end - begin), True)
        assert (memory[begin - 1], memory[end]) == (-1, -1), "written beside the slice"
        memory[begin:end] = -1


def test_views_that_are_not_contiguous(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    memory = dist.empty((300, 400), "float64")
    for view in (memory[::2, 1::3], memory.T, memory[::-1], memory[10:20, 5:9]):
        memory[...] = -1
        parts = [numbers("float64", view.size, r).reshape(view.shape) for r in range(size)]
        view[...] = parts[rank]
        run(dist.all_reduce, view)
        assert_reduced(view, ReduceOp.SUM, parts)
        view[...] = -1
        assert (memory == -1).all(), "written beside the view"


def test_several_in_flight(dist: ModuleType, rank: int, size: int) -> None:
    """They run in the order of their calls, whichever is waited for first."""
    tensors, works = [], []
    for step, each in enumerate([5, 20_001, 0, 90_000, 1, 1_025, 40_000, 3]):
        tensor = dist.zeros(each)
        tensor += rank + step
        tensors.append(tensor)
        works.append(dist.all_reduce(tensor, async_op=True))
    ordinary = np.full(30_000, rank, np.float32)
    works.append(dist.all_reduce(ordinary, async_op=True))
    same = dist.zeros(50_000)
    same += 1
    works += [dist.all_reduce(same, async_op=True) for _ in range(3)]
    for work in reversed(works):
        work.wait()
    for step, tensor in enumerate(tensors):
        assert (tensor == sum(range(size)) + size * step).all()
    assert (ordinary == sum(range(size))).all()
    assert (same == size**3).all()


def test_sync_after_async_and_one_rank_async(dist: ModuleType, rank: int, size: int) -> None:
    """Ranks need not agree on who waits: one rank is asynchronous, the others are not."""
    for step in range(20):
        tensor = dist.zeros(30_000)
        tensor += rank + 1
        work = dist.all_reduce(tensor, async_op=True) if rank == step % size else None
        if work is None:
            dist.all_reduce(tensor)
        else:
            work.wait()
        assert (tensor == size * (size + 1) / 2).all()
        check_way(dist, size, tensor.nbytes, True)


def test_dropped_while_it_runs(dist: ModuleType, rank: int, size: int) -> None:
    """The caller drops the work and the tensor at once; the other ranks still get its values."""
    for step in range(10):
        mine, keep = dist.zeros(60_000), dist.zeros(60_000)
        mine += rank + step
        keep += rank + step
        if rank == step % size:
            dist.all_reduce(mine, async_op=True)
            del mine
            other = dist.zeros(60_000)  # may not reuse the memory that is still in use
            other += 1000
        else:
            dist.all_reduce(mine)
            assert (mine == sum(range(size)) + size * step).all()
        dist.all_reduce(keep)
        assert (keep == sum(range(size)) + size * step).all()


def test_groups_and_threads(dist: ModuleType, rank: int, size: int) -> None:
    """Each thread has a group of its own, also groups of some of the ranks in another order."""
    orders = [range(size), range(size - 1, -1, -1), [r for r in range(size) if r != size - 1]]
    groups = [dist.new_group(list(order)) for order in orders if len(order)]
    failures: list[BaseException] = []

    def work(group: Any) -> None:
        try:
            me, members = dist.get_rank(group), dist.get_world_size(group)
            for step in range(40):
                tensor = dist.zeros(1_000 + 997 * step)
                tensor += me + step
                dist.all_reduce(tensor, group=group)
                assert (tensor == sum(range(members)) + members * step).all()
                check_way(dist, members, tensor.nbytes, True, group)
        except BaseException as error:  # told by the main thread
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(group,)) for group in groups if group.rank() >= 0
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert not failures
    for group in groups:
        if group.rank() >= 0:
            dist.destroy_process_group(group)


def test_memory_comes_and_goes(dist: ModuleType, rank: int, size: int) -> None:
    """Segments come, go and come again at the same place of the file, and the peers follow."""
    for step in range(6):
        large = [dist.zeros((66 << 20) // 4) for _ in range(1 + (step + rank) % 2)]
        for tensor in large:
            tensor[-5:] = rank + step
        dist.all_reduce(large[0][-20_000:])
        assert (large[0][-5:] == sum(range(size)) + size * step).all()
        check_way(dist, size, 80_000, True)
        del large, tensor


def test_barrier_and_objects(dist: ModuleType, rank: int, size: int) -> None:
    dist.barrier()
    assert took(dist) == ("single" if size == 1 else "inline")
    of_ranks: list[Any] = [None] * size
    dist.all_gather_object(of_ranks, "x" * 5_000 * (rank + 1))
    assert [len(text) for text in of_ranks] == [5_000 * (r + 1) for r in range(size)]
