"""Lists of tensors in the heaps of the ranks, and shares that differ in length.

The tensors of a list lie anywhere in their heap. The ranks tell each other where, in the slots of
the arrival or, if there are many, in an index in the heap.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp, _native
from paddlempi.errors import MismatchError, TimeoutError
from ranks_tools import set_timeout
from tensors import assert_reduced, noise, numbers
from ways import FEW, INLINE, Place, check_way, garbage

MANY = 400
"""So many tensors have no room in a slot."""


def alike(each: int, size: int) -> list[int]:
    """Shares of one length."""
    return [each] * size


def growing(each: int, size: int) -> list[int]:
    """Shares that differ."""
    return [each + 7 * r for r in range(size)]


def with_nothing(each: int, size: int) -> list[int]:
    """Shares that differ, one of which is empty."""
    return [0 if r == size // 2 else each for r in range(size)]


# One function an operation: it makes tensors, calls, checks the result, and returns how many bytes
# a rank gives at most.


def coalesced(dist: ModuleType, make: Place, run: Any, dtype: str, shares: list[int]) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [*shares, 0, 3]
    parts = [[numbers(dtype, n, i, r) for r in range(size)] for i, n in enumerate(lengths)]
    tensors = [make("recv", part[rank]) for part in parts]
    run(dist.all_reduce_coalesced, tensors)
    for tensor, part in zip(tensors, parts, strict=True):
        assert_reduced(tensor, ReduceOp.SUM, part)
    return sum(tensor.nbytes for tensor in tensors)


def all_gather(dist: ModuleType, make: Place, run: Any, dtype: str, shares: list[int]) -> int:
    rank = dist.get_rank()
    parts = [noise(dtype, n, r) for r, n in enumerate(shares)]
    send, results = make("send", parts[rank]), [make("recv", garbage(dtype, n)) for n in shares]
    run(dist.all_gather, results, send)
    for result, part in zip(results, parts, strict=True):
        assert result.tobytes() == part.tobytes()
    return max(part.nbytes for part in parts)


def all_to_all(dist: ModuleType, make: Place, run: Any, dtype: str, shares: list[int]) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [[noise(dtype, shares[(a + b) % size], a, b) for b in range(size)] for a in range(size)]
    sends = [make("send", part) for part in parts[rank]]
    results = [make("recv", garbage(dtype, shares[(r + rank) % size])) for r in range(size)]
    run(dist.all_to_all, results, sends)
    for r, result in enumerate(results):
        assert result.tobytes() == parts[r][rank].tobytes()
    for send, part in zip(sends, parts[rank], strict=True):
        assert send.tobytes() == part.tobytes(), "the input was written to"
    given = int(sum(part.nbytes for part in parts[rank]))
    if len(set(shares)) > 1:
        given += INLINE + 1  # no slot takes lengths that differ
    return given


def splits(dist: ModuleType, make: Place, run: Any, dtype: str, shares: list[int]) -> int:
    """All_to_all_single, whose sides are one tensor each."""
    rank, size = dist.get_rank(), dist.get_world_size()
    lengths = [[shares[(a + 2 * b) % size] for b in range(size)] for a in range(size)]
    received = [lengths[r][rank] for r in range(size)]
    sends = [noise(dtype, sum(lengths[r]), r) for r in range(size)]
    send, recv = make("send", sends[rank]), make("recv", garbage(dtype, sum(received)))
    run(dist.all_to_all_single, recv, send, received, lengths[rank])
    begins = [sum(lengths[r][:rank]) for r in range(size)]
    wanted = [sends[r][begins[r] : begins[r] + received[r]].tobytes() for r in range(size)]
    assert recv.tobytes() == b"".join(wanted)
    uneven = any(len({*row}) > 1 for row in [*lengths, *zip(*lengths, strict=True)])
    return int(send.nbytes) + INLINE + 1 if uneven else int(send.nbytes)


def reduce_scatter(dist: ModuleType, make: Place, run: Any, dtype: str, shares: list[int]) -> int:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [[numbers(dtype, n, r, i) for i, n in enumerate(shares)] for r in range(size)]
    sends = [make("send", part) for part in parts[rank]]
    recv = make("recv", garbage(dtype, shares[rank]))
    run(dist.reduce_scatter, recv, sends)
    assert_reduced(recv, ReduceOp.SUM, [part[rank] for part in parts])
    return sum(send.nbytes for send in sends)


def gather(dist: ModuleType, make: Place, run: Any, dtype: str, shares: list[int]) -> int:
    rank, size, each = dist.get_rank(), dist.get_world_size(), shares[0]
    root = size - 1
    send = make("send", noise(dtype, each, rank))
    results = [make("recv", garbage(dtype, each)) for _ in range(size)]
    run(dist.gather, send, results if rank == root else None, root)
    if rank == root:
        for r, result in enumerate(results):
            assert result.tobytes() == noise(dtype, each, r).tobytes()
    return int(send.nbytes)


def scatter(dist: ModuleType, make: Place, run: Any, dtype: str, shares: list[int]) -> int:
    rank, size, each = dist.get_rank(), dist.get_world_size(), shares[0]
    sends = [make("send", noise(dtype, each, r)) for r in range(size)]
    recv = make("recv", garbage(dtype, each))
    run(dist.scatter, recv, sends if rank == 0 else None, 0)
    assert recv.tobytes() == noise(dtype, each, rank).tobytes()
    return size * int(recv.nbytes)


OPERATIONS = [coalesced, all_gather, all_to_all, splits, reduce_scatter, gather, scatter]
UNEVEN = OPERATIONS[:5]

each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)


@each_operation
def test_sizes(dist: ModuleType, size: int, operation: Any, run: Any) -> None:
    make = Place(dist, lambda side, rank: False)
    kinds = (alike, growing, with_nothing) if operation in UNEVEN else (alike,)
    for i, each in enumerate([*FEW, 20_011]):
        given = operation(dist, make, run, "float32", kinds[i % len(kinds)](each, size))
        check_way(dist, size, given, True)


@each_operation
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "complex128"])
def test_sizes_of_elements(
    dist: ModuleType, size: int, operation: Any, dtype: str, run: Any
) -> None:
    make = Place(dist, lambda side, rank: False)
    for kind in (alike, growing, with_nothing) if operation in UNEVEN else (alike,):
        for each in (1, 33, 4097, 70_001):
            given = operation(dist, make, run, dtype, kind(each, size))
            check_way(dist, size, given, True)


@pytest.mark.parametrize("operation", UNEVEN, ids=lambda f: f.__name__)
@pytest.mark.parametrize("each", [3, 9_001])
def test_one_rank_has_ordinary_memory(
    dist: ModuleType, size: int, operation: Any, each: int, run: Any
) -> None:
    """All ranks agree on MPI then, or on the slots if the inputs are short."""
    for ordinary in {0, size - 1}:
        make = Place(dist, lambda side, rank, ordinary=ordinary: rank == ordinary)
        for kind in (alike, growing):
            given = operation(dist, make, run, "float32", kind(each, size))
            check_way(dist, size, given, False)


def test_one_tensor_of_a_list_is_ordinary(dist: ModuleType, rank: int, size: int) -> None:
    parts = [numbers("float32", 9_000, r) for r in range(size)]
    tensors = [dist.empty(9_000), np.empty(9_000, np.float32)]
    for tensor in tensors:
        tensor[...] = parts[rank]
    dist.all_reduce_coalesced(tensors)
    check_way(dist, size, 72_000, False)
    for tensor in tensors:
        assert_reduced(tensor, ReduceOp.SUM, parts)


def test_neighbours_in_a_list(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """Chunks of one tensor, in order, in another order, and from the middle of a cache line."""
    each = 9_001
    for order in (range(size), range(size - 1, -1, -1)):
        whole = dist.zeros((size + 1) * each)[5:]
        chunks = [whole[i * each : (i + 1) * each] for i in order]
        send = dist.empty(each)
        send[...] = numbers("float32", each, rank)
        run(dist.all_gather, chunks, send)
        check_way(dist, size, send.nbytes, True)
        for r, chunk in enumerate(chunks):
            np.testing.assert_array_equal(chunk, numbers("float32", each, r))
        assert (whole[size * each :] == 0).all(), "written behind the last chunk"


def test_results_that_overlap(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """Parallel work would write twice there. MPI takes the list one after the other."""
    tensor = dist.zeros(9_000)
    tensor += rank
    run(dist.all_reduce_coalesced, [tensor, tensor])
    check_way(dist, size, 72_000, False)
    assert (tensor == sum(range(size))).all()


def test_in_its_own_place(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    lengths = [9_000 + 50 * r for r in range(size)]
    chunks = [dist.zeros(length) for length in lengths]
    chunks[rank] += rank + 1
    run(dist.all_gather, chunks, chunks[rank])
    check_way(dist, size, 4 * max(lengths), True)
    for r, chunk in enumerate(chunks):
        assert (chunk == r + 1).all()
    run(dist.reduce_scatter, chunks[rank], chunks)
    check_way(dist, size, 4 * sum(lengths), True)
    for r, chunk in enumerate(chunks):
        assert (chunk == (size * (r + 1) if r == rank else r + 1)).all()


def test_one_rank_has_nothing(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """Its own lengths are all 0 and so all alike. The others' are not."""
    lengths = np.zeros((size, size), int)
    lengths[: size - 1, : size - 1] = np.arange(size - 1) + 9_000
    if size > 1:
        lengths[0, 0] = 5
    out, into = dist.empty(int(lengths[rank].sum())), dist.zeros(int(lengths[:, rank].sum()))
    out[...] = rank
    run(dist.all_to_all_single, into, out, lengths[:, rank].tolist(), lengths[rank].tolist())
    np.testing.assert_array_equal(into, np.repeat(np.arange(size), lengths[:, rank]))
    check_way(dist, size, 1 << 20, True)


def test_an_empty_share_of_a_short_list(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """Lists of ordinary tensors whose lengths differ go through the slots if all are short."""
    parts = [numbers("float32", 11 * r, r) for r in range(size)]
    results = [np.zeros(11 * r, np.float32) for r in range(size)]
    run(dist.all_gather, results, parts[rank])
    check_way(dist, size, 44 * size, False)
    for result, part in zip(results, parts, strict=True):
        np.testing.assert_array_equal(result, part)
    result = np.zeros(11 * rank, np.float32)
    run(dist.reduce_scatter, result, parts)
    check_way(dist, size, 44 * size, False)
    np.testing.assert_array_equal(result, size * parts[rank])


def used(dist: ModuleType) -> int:
    """Return the bytes that are allocated in this rank's heap."""
    dist.barrier()
    return int(_native.control("info")["heap"]["used"])


def many(dist: ModuleType, rank: int) -> list[Any]:
    """Tensors that lie apart, so many that their places need an index."""
    tensors = [dist.zeros(30 + i % 7) for i in range(MANY)]
    for i, tensor in enumerate(tensors):
        tensor += rank + i
    return tensors


def test_an_index(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    tensors = many(dist, rank)
    before = used(dist)
    for step in range(1, 4):
        for i, tensor in enumerate(tensors):
            tensor[...] = rank + i * step
        run(dist.all_reduce_coalesced, tensors)
        check_way(dist, size, 1 << 20, True)
        for i, tensor in enumerate(tensors):
            assert (tensor == sum(range(size)) + size * i * step).all()
    assert used(dist) == before, "the index was not given back"


def test_several_indexes_in_flight(dist: ModuleType, rank: int, size: int) -> None:
    before = used(dist)
    lists = [many(dist, rank) for _ in range(5)]
    works = [dist.all_reduce_coalesced(tensors, async_op=True) for tensors in lists]
    for work in reversed(works):
        work.wait()
    for tensors in lists:
        for i, tensor in enumerate(tensors):
            assert (tensor == sum(range(size)) + size * i).all()
    del lists, tensors, tensor, works, work
    assert used(dist) == before


@pytest.mark.mpi(min=2)
def test_an_index_of_a_call_that_fails(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    tensors = many(dist, rank)
    group = dist.new_group()
    for one in (None, group):
        run(dist.all_reduce_coalesced, many(dist, rank), ReduceOp.SUM, one)
    before = used(dist)  # with what a group takes once
    mine = tensors[:-1] if rank == 0 else tensors
    with pytest.raises(MismatchError):
        run(dist.all_reduce_coalesced, mine)
    assert used(dist) == before
    if rank == 0:  # the others never come
        set_timeout(group, 0.4)
        with pytest.raises(TimeoutError, match="never came"):
            run(dist.all_reduce_coalesced, tensors, ReduceOp.SUM, group)
    assert used(dist) == before
    dist.destroy_process_group(group)
    for i, tensor in enumerate(tensors):
        assert (tensor == rank + i).all(), "nothing was done"


@pytest.mark.mpi(min=2)
def test_lengths_that_do_not_match(dist: ModuleType, rank: int, size: int, run: Any) -> None:
    """The last rank expects more from rank 0 than that sends. All say so, and go on."""
    sends = [dist.zeros(9_000 + r) for r in range(size)]
    more = [1 if rank == size - 1 and r == 0 else 0 for r in range(size)]
    results = [dist.zeros(9_000 + rank + extra) for extra in more]
    with pytest.raises(MismatchError, match="nothing was sent and the group is usable") as error:
        run(dist.all_to_all, results, sends)
    check_way(dist, size, 72_000, True)
    assert error.value.ranks == (0, size - 1)
    if rank == size - 1:
        assert f"sends {9_000 + rank} elements to rank {rank}, which expects" in str(error.value)
    for result in results:
        assert (result == 0).all()
    dist.barrier()
