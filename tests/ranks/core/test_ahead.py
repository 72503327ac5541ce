"""Asynchronous collectives that a rank announces before their turn comes.

On one node the other ranks may do the work of a rank that computes. The collectives take place in
the order of the calls all the same, also where one reads what the one before it has written.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from paddlempi import errors
from ranks_tools import raises, skip_over_nodes, works

MANY = 20_000  # elements; a tensor in the heap is "mapped"
FEW = 100  # elements: "inline"


def filled(dist: ModuleType, count: int, value: float, heap: bool = True) -> Any:
    """Return a tensor of so many float32, in the heap or elsewhere."""
    tensor = dist.empty(count, "float32") if heap else np.empty(count, "float32")
    tensor[...] = value
    return tensor


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.mpi(min=2)
def test_the_others_do_the_work_of_a_stopped_rank(dist: ModuleType, rank: int, size: int) -> None:
    """The last rank stops when it has announced all. Rank 0 comes later, so no work has begun."""
    skip_over_nodes("ranks of other nodes have no memory in common")
    last = size - 1
    few, many = filled(dist, FEW, 1 + rank), [filled(dist, MANY, rank + i) for i in range(8)]
    pid = np.array([os.getpid()])
    dist.broadcast(pid, last)

    def submit() -> list[Any]:
        return [dist.all_reduce(tensor, async_op=True) for tensor in (*many, few)]

    if rank == last:
        operations = submit()
        os.kill(os.getpid(), signal.SIGSTOP)
    elif rank == 0:
        try:
            while not is_stopped(int(pid[0])):
                time.sleep(0.001)
            operations = submit()
            for operation in operations:
                operation.wait(timeout=20)
        finally:
            os.kill(int(pid[0]), signal.SIGCONT)
    else:
        operations = submit()
    for operation in operations:
        operation.wait()
    for i, tensor in enumerate(many):
        assert (tensor == sum(r + i for r in range(size))).all()
    assert (few == sum(range(1, size + 1))).all()


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("seed", range(12))
def test_in_order(dist: ModuleType, rank: int, size: int, seed: int) -> None:
    """Whatever way the collectives take, each finds what the one before it has left.

    They read and write parts of two tensors. Every rank waits, and does other things, at moments of
    its own.
    """
    common, own = np.random.default_rng(seed), np.random.default_rng(100 * seed + rank)
    heap, other = filled(dist, MANY, 0), filled(dist, MANY, 0, heap=False)
    heap[...], other[...] = rank, 2 * rank
    states = [np.array([[r], [2 * r]], "float32").repeat(MANY, 1) for r in range(size)]
    operations = []
    for _ in range(60):
        which = int(common.integers(4) == 0)  # 1: not in the heap, so long ones go by MPI
        length = int(common.choice([1, 7, FEW, 1000, 5000, MANY]))
        start = int(common.integers(MANY - length + 1))
        part = (heap, other)[which][start : start + length]
        code, root = int(common.integers(3)), int(common.integers(size))
        parts = [state[which, start : start + length] for state in states]
        if code == 0:
            operations.append(dist.all_reduce(part, dist.ReduceOp.AVG, async_op=True))
            result = np.add.reduce(parts) / np.float32(size)
        elif code == 1:
            operations.append(dist.broadcast(part, root, async_op=True))
            result = parts[root].copy()
        else:
            operations.append(dist.all_reduce(part, dist.ReduceOp.MAX, async_op=True))
            result = np.maximum.reduce(parts)
        for p in parts:
            p[...] = result
        match int(own.integers(12)):
            case 0:
                operations[int(own.integers(len(operations)))].wait()
            case 1:
                time.sleep(0.004)
            case 2:
                operations[-1].is_completed()
    for operation in operations:
        operation.wait()
    np.testing.assert_allclose(heap, states[rank][0], rtol=1e-5)
    np.testing.assert_allclose(other, states[rank][1], rtol=1e-5)


@pytest.mark.mpi(min=2)
@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("heap", [True, False])
def test_more_than_the_ring_holds(
    dist: ModuleType, rank: int, size: int, count: int, heap: bool
) -> None:
    tensors = [filled(dist, count, rank + i, heap) for i in range(100)]
    operations = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    if rank == 0:
        time.sleep(0.05)
    for operation in operations if rank % 2 else reversed(operations):
        operation.wait()
    for i, tensor in enumerate(tensors):
        assert (tensor == sum(r + i for r in range(size))).all()


@pytest.mark.mpi(min=2)
def test_wrong_calls_between_others(dist: ModuleType, rank: int, size: int) -> None:
    """A refusal and a mismatch fail their own collective, and none of those around it."""
    tensors = [filled(dist, MANY, rank) for _ in range(4)]
    operations = []
    for i, tensor in enumerate(tensors):
        operations.append(dist.all_reduce(tensor, async_op=True))
        if i == 1:
            if rank == 0:
                with raises(errors.ArgumentError):
                    dist.broadcast(np.zeros(3), size, async_op=True)
            else:
                operations.append(dist.broadcast(np.zeros(3), 0, async_op=True))
        elif i == 2:
            operations.append(dist.all_reduce(filled(dist, MANY + rank % 2, 0), async_op=True))
    wrong = 0
    for operation in operations:
        try:
            operation.wait()
        except (errors.RefusedError, errors.MismatchError):
            wrong += 1
    assert wrong == (1 if rank == 0 else 2)
    for tensor in tensors:
        assert (tensor == sum(range(size))).all()
    works()


@pytest.mark.mpi(min=2)
def test_a_rank_that_does_not_come(dist: ModuleType, rank: int) -> None:
    """The first collective names it, the others say that the group is broken."""
    group = dist.new_group()
    dist._native.control("set_timeout", group=group._id, timeout=0.5)
    tensors = [filled(dist, MANY, 7), filled(dist, FEW, 7), filled(dist, MANY, 7)]
    if rank > 0:
        operations = [dist.all_reduce(t, group=group, async_op=True) for t in tensors]
        with raises(errors.TimeoutError, ranks=[0], most=10.0):
            operations[0].wait()
        for operation in operations[1:]:
            with raises(errors.GroupBrokenError, most=10.0):
                operation.wait()
        for tensor in tensors:
            tensor[...] = 8
    dist.barrier()
    if rank == 0:
        with raises(errors.GroupBrokenError, "gave up waiting", "deadline"):
            dist.all_reduce(tensors[0], group=group)
    dist.barrier()
    for tensor in tensors:
        assert (tensor == (8 if rank else 7)).all()
    works()


@pytest.mark.mpi(ranks=2)
def test_a_deadline_when_all_have_come(dist: ModuleType, rank: int) -> None:
    """Rank 1 stops when it has announced two collectives. Rank 0 waits in the first, in MPI.

    The deadline of the second passes before its turn. All have announced it, so it cannot be
    refused; rank 1 may still work on it. So its tensor is rank 0's again only after it is closed.
    """
    skip_over_nodes("ranks of other nodes have no memory in common")
    group = dist.new_group()
    first, second = filled(dist, 4_000_000, 1, heap=False), filled(dist, MANY, 1)
    pid = np.array([os.getpid()])
    dist.broadcast(pid, 1)
    if rank == 1:
        operations = [dist.all_reduce(t, group=group, async_op=True) for t in (first, second)]
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        try:
            while not is_stopped(int(pid[0])):
                time.sleep(0.001)
            operations = [dist.all_reduce(first, group=group, async_op=True)]
            dist._native.control("set_timeout", group=group._id, timeout=0.3)
            operations.append(dist.all_reduce(second, group=group, async_op=True))
            with raises(errors.TimeoutError, "its turn did not come", "broken", most=10.0):
                operations[1].wait()
            second[...] = 5
        finally:
            os.kill(int(pid[0]), signal.SIGCONT)
    operations[0].wait()
    assert (first == 2).all()
    if rank == 1:
        with raises(errors.TimeoutError, "on rank(s) [0] first", ranks=[0], most=10.0):
            operations[1].wait()
    dist.barrier()
    assert (second == (1 if rank else 5)).all()
    works()


@pytest.mark.mpi(min=2)
def test_destroyed_with_operations_under_way(dist: ModuleType, rank: int, size: int) -> None:
    """They end first, as long as all ranks have called them."""
    group = dist.new_group()
    tensors = [filled(dist, count, rank) for count in (MANY, FEW, MANY)]
    operations = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    if rank == 0:
        time.sleep(0.02)
    dist.destroy_process_group(group)
    for operation in operations:
        operation.wait()
    for tensor in tensors:
        assert (tensor == sum(range(size))).all()
    works()
