"""Wrong use: every rank concerned raises an error of a class that torch's users know. No hangs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed.distributed_c10d as c10d
from paddlempi import errors


@pytest.fixture
def group(dist: ModuleType) -> Iterator[Any]:
    """A group of all ranks, for tests that may break it."""
    made = dist.new_group()
    yield made
    if made in c10d._world.pg_map:
        dist.destroy_process_group(made)


def usable(dist: ModuleType, group: Any) -> None:
    x = torch.ones(2)
    dist.all_reduce(x, group=group)
    assert x.tolist() == [float(dist.get_world_size(group))] * 2


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_a_tensor_without_memory(dist: ModuleType, group: Any, async_op: bool) -> None:
    x = torch.ones(3, device="meta")
    with pytest.raises((RuntimeError, TypeError), match=r"(?i)meta|device"):
        dist.all_reduce(x, group=group, async_op=async_op)
    usable(dist, group)


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_another_dtype_on_one_rank(
    dist: ModuleType, group: Any, rank: int, size: int, async_op: bool
) -> None:
    x = torch.ones(3, dtype=torch.float64 if rank == size - 1 else torch.float32)
    with pytest.raises(dist.DistBackendError, match="float64") as caught:
        work = dist.all_reduce(x, group=group, async_op=async_op)
        work.wait()
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, errors.MismatchError)
    assert x.tolist() == [1.0] * 3
    usable(dist, group)


def test_another_count_on_one_rank(dist: ModuleType, group: Any, rank: int) -> None:
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(torch.ones(3 + (rank == 0)), group=group)
    assert isinstance(caught.value, errors.MismatchError)
    usable(dist, group)


def test_another_operation_on_one_rank(dist: ModuleType, group: Any, rank: int) -> None:
    with pytest.raises(dist.DistBackendError) as caught:
        if rank:
            dist.barrier(group)
        else:
            dist.all_reduce(torch.ones(3), group=group)
    assert isinstance(caught.value, errors.MismatchError)
    usable(dist, group)


def test_refused_on_one_rank(dist: ModuleType, group: Any, rank: int) -> None:
    """MAX of rank 0's complex tensor: its own error there, RefusedError on the other ranks."""
    op = dist.ReduceOp.MAX
    x = torch.ones(2, dtype=torch.complex64 if rank == 0 else torch.float32)
    with pytest.raises(Exception) as caught:
        group.allreduce([x], _options(op))
    if rank == 0:
        assert isinstance(caught.value, (TypeError, ValueError, RuntimeError))
    else:
        assert isinstance(caught.value, dist.DistBackendError)
        assert isinstance(caught.value, errors.RefusedError)
        assert caught.value.ranks == (0,)
    usable(dist, group)


def _options(op: Any) -> Any:
    options = c10d.AllreduceOptions()
    options.reduceOp = op
    options.asyncOp = False
    return options


@pytest.mark.parametrize(
    ("call", "kinds"),
    [
        ("dist.all_gather_into_tensor(torch.ones(3), torch.ones(2))", (ValueError, RuntimeError)),
        ("dist.reduce_scatter_tensor(torch.ones(3), torch.ones(2))", (ValueError, RuntimeError)),
        ("dist.all_gather([torch.ones(2)] * (size + 1), torch.ones(2))", (ValueError,)),
        ("dist.all_to_all([torch.ones(2)], [torch.ones(2)] * (size + 1))", (ValueError,)),
        ("dist.all_to_all_single(torch.ones(2), torch.ones(2), [9] * size)", (ValueError,)),
        ("dist.broadcast(torch.ones(2), src=-1)", (ValueError,)),
        ("dist.broadcast(torch.ones(2), src=size)", (ValueError,)),
        ("dist.reduce(torch.ones(2), dst=-1)", (ValueError,)),
        ("dist.send(torch.ones(2), dst=-1)", (ValueError,)),
        ("dist.send(torch.ones(2), dst=size)", (ValueError,)),
        ("dist.recv(torch.ones(2), src=-1)", (ValueError,)),
        ("dist.send(torch.ones(2), dst=dist.get_rank())", (ValueError,)),
        ("dist.irecv(torch.ones(2), src=(dist.get_rank() + 1) % size, tag=-7)", (ValueError,)),
        ("dist.all_reduce([1.0, 2.0])", (TypeError,)),
        ("dist.new_group([size])", (ValueError,)),
        ("dist.new_group([-1])", (ValueError,)),
        ("dist.new_group(backend='no such')", (ValueError, AssertionError, RuntimeError)),
        ("dist.new_group(backend='cpu:no such,cuda:mpi')", (ValueError, AssertionError)),
    ],
)
def test_arguments(dist: ModuleType, size: int, call: str, kinds: tuple[Any, ...]) -> None:
    with pytest.raises(kinds), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it knows no devices for "no such"
        eval(call, {"dist": dist, "torch": torch, "size": size})
    usable(dist, None)


def test_by_a_rank_that_is_no_member(dist: ModuleType, rank: int, size: int) -> None:
    group = dist.new_group([0])
    x = torch.full((2,), 3.0)
    if rank == 0:
        dist.all_reduce(x, group=group)
        dist.destroy_process_group(group)
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert dist.all_reduce(x, group=group) is None
    assert any("does not belong to the given group" in str(w.message) for w in caught)
    assert x.tolist() == [3.0, 3.0]


def test_after_destroy(dist: ModuleType) -> None:
    group = dist.new_group()
    dist.destroy_process_group(group)
    for call in (
        lambda: dist.all_reduce(torch.ones(2), group=group),
        lambda: dist.all_reduce(torch.ones(2), group=group, async_op=True).wait(),
        lambda: dist.barrier(group),
        lambda: dist.get_backend(group),
    ):
        with pytest.raises((RuntimeError, ValueError)):
            call()
    with pytest.raises(dist.DistBackendError) as caught:
        group.allreduce([torch.ones(2)])
    assert isinstance(caught.value, errors.GroupDestroyedError)


def test_two_threads_on_two_groups(dist: ModuleType, size: int) -> None:
    groups = [dist.new_group() for _ in range(2)]
    sums: list[list[float]] = [[], []]
    failed: list[BaseException] = []

    def work(which: int) -> None:
        try:
            for i in range(50):
                x = torch.full((5,), float(i + which))
                dist.all_reduce(x, group=groups[which])
                sums[which].append(x.sum().item())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failed
    assert sums == [[5.0 * size * (i + which) for i in range(50)] for which in range(2)]
    for group in groups:
        dist.destroy_process_group(group)


def test_two_threads_on_one_group(dist: ModuleType, group: Any, size: int) -> None:
    """The threads' order may differ between ranks, because all call the same operation."""
    failed: list[BaseException] = []
    sums: list[float] = []

    def work() -> None:
        try:
            for _ in range(50):
                x = torch.ones(4)
                dist.all_reduce(x, group=group)
                sums.append(x.sum().item())
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failed
    assert sums == [4.0 * size] * 100
