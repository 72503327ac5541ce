"""The send side and the receive side may share memory, as in NCCL and in gradient buckets."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import _native
from paddlempi._ops import Op
from tensors import noise, numbers, numpy_dtype, reduced

DTYPES = ["float32", "bfloat16", "uint8"]
EACH = [3, 20_000]

pytestmark = [pytest.mark.parametrize("dtype", DTYPES), pytest.mark.parametrize("each", EACH)]


def test_all_to_all_in_place(
    dist: ModuleType, rank: int, size: int, dtype: str, each: int, run: Any
) -> None:
    given = [noise(dtype, each * size, r).reshape(size, each) for r in range(size)]
    tensor = given[rank].copy()
    run(dist.all_to_all_single, tensor, tensor)
    assert tensor.tobytes() == b"".join(part[rank].tobytes() for part in given)
    # The same with split sizes, although they are even.
    tensor = given[rank].copy()
    run(dist.all_to_all_single, tensor, tensor, [1] * size, [1] * size)
    assert tensor.tobytes() == b"".join(part[rank].tobytes() for part in given)


def test_all_gather_from_its_own_place_and_from_another(
    dist: ModuleType, rank: int, size: int, dtype: str, each: int, run: Any
) -> None:
    for place in (rank, size - 1 - rank):
        whole = np.zeros((size, each), numpy_dtype(dtype))
        whole[place] = noise(dtype, each, rank)
        run(dist.all_gather_into_tensor, whole, whole[place])
        assert whole.tobytes() == b"".join(noise(dtype, each, r).tobytes() for r in range(size))


def test_reduce_scatter_into_its_own_place(
    dist: ModuleType, rank: int, size: int, dtype: str, each: int, run: Any
) -> None:
    parts = [numbers(dtype, each * size, r).reshape(size, each) for r in range(size)]
    whole = parts[rank].copy()
    run(dist.reduce_scatter_tensor, whole[rank], whole)
    assert (whole[rank] == reduced(dist.ReduceOp.SUM, [part[rank] for part in parts])).all()


def test_sendrecv_in_place(dist: ModuleType, rank: int, size: int, dtype: str, each: int) -> None:
    tensor = noise(dtype, each, rank).copy()
    dist.sendrecv(tensor, (rank + 1) % size, tensor, (rank - 1) % size)
    assert tensor.tobytes() == noise(dtype, each, (rank - 1) % size).tobytes()


@pytest.mark.parametrize("shift", [1, -1])
def test_reductions_whose_sides_overlap_in_part(
    dist: ModuleType, rank: int, size: int, dtype: str, each: int, shift: int
) -> None:
    """The C interface takes two sides. MPI wants them to be separate or the same."""
    gid, op = dist.group.WORLD._id, dist.ReduceOp.SUM
    parts = [numbers(dtype, each, r) for r in range(size)]
    before = {Op.SCAN: rank + 1, Op.EXSCAN: rank, Op.ALL_REDUCE: size}
    for code, count in before.items():
        memory = np.zeros(each + 1, numpy_dtype(dtype))
        send, recv = (memory[1:], memory[:-1]) if shift > 0 else (memory[:-1], memory[1:])
        send[:] = parts[rank]
        kept = recv.copy()
        _native.submit(code, gid, send, recv, op)
        wanted = reduced(op, parts[:count]) if count else kept
        np.testing.assert_array_equal(recv, wanted)
    memory = np.zeros(each + 1, numpy_dtype(dtype))
    send, recv = memory[1:], memory[:-1]
    send[:] = parts[rank]
    _native.submit(Op.REDUCE, gid, send, recv if rank == 0 else None, op, root=0)
    np.testing.assert_array_equal(
        recv if rank == 0 else send, reduced(op, parts) if rank == 0 else parts[rank]
    )
