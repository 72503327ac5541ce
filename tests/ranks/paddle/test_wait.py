"""paddle.distributed.wait: waits for operations whose task the caller did not keep."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

import paddle
import pytest
from paddlempi.errors import MismatchError

LONG = 1 << 16


def sum_of(size: int) -> float:
    return size * (size + 1) / 2


def late(rank: int) -> None:
    """Delay rank 1, so that the other ranks already wait for it."""
    if rank == 1:
        time.sleep(0.2)


def test_the_result_is_there(dist: ModuleType, rank: int, size: int) -> None:
    x = paddle.full([LONG], rank + 1.0)
    late(rank)
    dist.all_reduce(x, sync_op=False)
    dist.wait(x)
    assert x[0] == x[-1] == sum_of(size)


def test_outputs_and_parts(dist: ModuleType, rank: int, size: int) -> None:
    """wait finds the operation by memory: by one of the outputs, a view, or a column."""
    outputs: list[Any] = []
    late(rank)
    dist.all_gather(outputs, paddle.full([LONG], float(rank)), sync_op=False)
    dist.wait(outputs[-1])
    assert [float(one[-1]) for one in outputs] == list(range(size))
    whole = paddle.full([LONG, 2], rank + 1.0)
    late(rank)
    dist.all_reduce(whole, sync_op=False)
    dist.wait(whole[LONG // 2 :, 1])
    assert whole[0, 0] == whole[-1, -1] == sum_of(size)


@pytest.mark.parametrize("of", ["another tensor", "another group", "nothing"])
def test_others_are_not_waited_for(dist: ModuleType, rank: int, size: int, of: str) -> None:
    """If wait waited for another operation, rank 0 and rank 1 would wait for each other."""
    group = dist.new_group(list(range(size)))
    x, y = paddle.full([LONG], rank + 1.0), paddle.full([2], rank + 1.0)
    word = paddle.zeros([1])
    if rank == 1:
        dist.recv(word, src=0)
    dist.all_reduce(x, sync_op=False)
    if rank == 0:
        if of == "another tensor":
            dist.wait(y)
        elif of == "another group":
            dist.wait(x, group=group)
        else:
            dist.wait(x[:0])
        dist.send(word, dst=1)
    dist.wait(x)
    assert x[-1] == sum_of(size)


def test_what_went_wrong_is_raised(dist: ModuleType, rank: int) -> None:
    """wait raises the error once, even after later operations."""
    x = paddle.ones([3 if rank == 1 else 4])
    dist.all_reduce(x, sync_op=False)
    for _ in range(20):
        dist.all_reduce(paddle.ones([1]), sync_op=False)
    dist.barrier()
    for _ in range(20):
        dist.all_reduce(paddle.ones([1]), sync_op=False)
    with pytest.raises(MismatchError):
        dist.wait(x)
    dist.wait(x)


def test_tensors_are_let_go(dist: ModuleType, rank: int) -> None:
    """An operation that is over keeps no tensors, with its task waited for or dropped."""
    pg = dist.get_group().process_group
    for _ in range(100):
        dist.all_reduce(paddle.ones([1]), sync_op=False)
        dist.all_reduce(paddle.ones([1]), sync_op=False).wait()
    dist.barrier()
    dist.all_reduce(paddle.ones([1]), sync_op=False).wait()
    assert len(pg._under_way._started) < 20
