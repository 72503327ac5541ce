"""Long collectives on several threads of a rank: the bits are those of one thread.

Ranks have different numbers of threads, also more than CPUs.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import ReduceOp, _native
from tensors import noise, numbers, numpy_dtype, reducible

LONG = 300_000  # bytes: above the length from which on threads help, and no whole windows

OPS = [
    ReduceOp.SUM,
    ReduceOp.PRODUCT,
    ReduceOp.MIN,
    ReduceOp.MAX,
    ReduceOp.AVG,
    ReduceOp.BAND,
    ReduceOp.BOR,
    ReduceOp.BXOR,
    ReduceOp.PREMUL_SUM(0.3),
]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let so many threads of this rank work on a collective."""
    before = _native.control("threads", count=count)["before"]
    try:
        yield
    finally:
        _native.control("threads", count=before)


def helpers() -> list[Path]:
    """Return the folders in which the kernel tells of this rank's helpers."""
    tasks = Path("/proc/self/task").iterdir()
    return [task for task in tasks if (task / "comm").read_text().strip() == "paddlempi-sum"]


@pytest.fixture(params=[True, False], ids=["mapped", "ordinary"])
def copied(dist: ModuleType, request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Return what copies an array to memory that the ranks map, or to ordinary memory."""

    def copy(values: Any) -> Any:
        tensor = dist.empty(values.shape, values.dtype) if request.param else np.empty_like(values)
        tensor[...] = values
        return tensor

    return copy


def assert_same(rank: int, call: Callable[[], bytes]) -> None:
    """Check that a call gives with several threads what it gives with one."""
    with threads(1):
        alone = call()
    with threads(2 + rank):
        assert call() == alone


@pytest.mark.parametrize("op", OPS, ids=str)
def test_reductions(dist: ModuleType, rank: int, copied: Callable[[Any], Any], op: Any) -> None:
    for dtype in reducible(op):
        values = numbers(dtype, LONG // numpy_dtype(dtype).itemsize, "helpers", rank)

        def all_reduce(values: Any = values) -> bytes:
            tensor = copied(values)
            dist.all_reduce(tensor, op)
            return bytes(tensor.tobytes())

        assert_same(rank, all_reduce)


def test_sums_that_depend_on_the_order(
    dist: ModuleType, rank: int, size: int, copied: Callable[[Any], Any]
) -> None:
    random = np.random.default_rng(rank)
    values = random.normal(0, 1, 1_000_003) * 10.0 ** random.integers(-6, 6, 1_000_003)
    parts = values[: 300_000 * size].reshape(size, -1)

    def sums() -> bytes:
        found = b""
        for dtype in ("float32", "bfloat16"):
            whole, own = copied(values.astype(numpy_dtype(dtype))), copied(parts[0])
            dist.all_reduce(whole)
            dist.reduce_scatter_tensor(own, copied(parts))
            found += whole.tobytes() + own.tobytes()
            dist.reduce(whole, size - 1)
            found += whole.tobytes()
        return found

    assert_same(rank, sums)


@pytest.mark.parametrize("each", [LONG, 3_000_001])
def test_moves(
    dist: ModuleType, rank: int, size: int, copied: Callable[[Any], Any], each: int
) -> None:
    parts = [noise("uint8", each, "helpers", r) for r in range(size)]
    whole = np.concatenate(parts)

    def zeros(count: int) -> Any:
        return copied(np.zeros(count, np.uint8))

    with threads(2 + rank):
        for root in {0, size - 1}:
            tensor = copied(parts[rank])
            dist.broadcast(tensor, root)
            np.testing.assert_array_equal(tensor, parts[root])
        result = zeros(size * each)
        dist.all_gather_into_tensor(result, copied(parts[rank]))
        np.testing.assert_array_equal(result, whole)
        share = each // size * size
        given = [part[:share] for part in parts]
        result = zeros(share)
        dist.all_to_all_single(result, copied(given[rank]))
        mine = slice(rank * share // size, (rank + 1) * share // size)
        np.testing.assert_array_equal(result, np.concatenate([part[mine] for part in given]))
        results = [zeros(each) for _ in range(size)] if rank == 0 else None
        dist.gather(copied(parts[rank]), results, 0)
        if results:
            np.testing.assert_array_equal(results, parts)
        result = zeros(each)
        dist.scatter(result, [copied(part) for part in parts] if rank == 0 else None, 0)
        np.testing.assert_array_equal(result, parts[rank])


@pytest.mark.mpi(min=2)
def test_short_calls_wake_nobody(dist: ModuleType, copied: Callable[[Any], Any]) -> None:
    """The kernel counts how often a helper has gone to sleep."""

    def sleeps() -> list[str]:
        """Return the counts, once all sleep."""
        while True:
            told = [(helper / "status").read_text() for helper in helpers()]
            if all("State:\tS" in one for one in told):
                return [re.findall(r"^voluntary.*", one, re.M)[0] for one in told]
            time.sleep(0.01)

    short = copied(np.ones(60_000, np.float32))
    with threads(3):
        dist.all_reduce(np.ones(1 << 20, np.float32))
        before = sleeps()
        for _ in range(20):
            dist.all_reduce(short)
        assert len(before) >= 2
        assert sleeps() == before


@pytest.mark.mpi(min=2)
def test_a_helper_follows_its_rank(dist: ModuleType) -> None:
    cpus = os.sched_getaffinity(0)
    tensor = np.zeros(1 << 20, np.float32)  # of mapped ones another rank may do all the work
    try:
        with threads(3):
            for where in ({min(cpus)}, cpus):
                os.sched_setaffinity(0, where)
                dist.all_reduce(tensor)
                found = [os.sched_getaffinity(int(helper.name)) for helper in helpers()]
                assert len(found) >= 2 and all(one == where for one in found)
    finally:
        os.sched_setaffinity(0, cpus)


def test_wrong_numbers(dist: ModuleType) -> None:
    for count in (0, 65):
        with pytest.raises(dist.errors.ArgumentError, match=f"count={count} is no number"):
            _native.control("threads", count=count)
