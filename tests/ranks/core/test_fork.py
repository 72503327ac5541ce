"""fork(): in the child every call raises ForkError; the parent works on."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from ranks_tools import works


def _calls(dist: ModuleType) -> list[Any]:
    return [
        lambda: dist.all_reduce(np.zeros(3)),
        lambda: dist.all_reduce(np.zeros(3), async_op=True),
        lambda: dist.barrier(),
        lambda: dist.send(np.zeros(3), 0),
        lambda: dist.irecv(np.zeros(3), 0),
        lambda: dist.new_group([dist.get_rank()]),
        lambda: dist.all_gather_object([None] * dist.get_world_size(), 1),
        lambda: dist.destroy_process_group(),
    ]


def _child(dist: ModuleType, pipe: Any) -> None:
    seen = []
    for call in _calls(dist):
        try:
            call()
            seen.append("nothing")
        except Exception as error:  # the parent checks the name
            seen.append(type(error).__name__)
    pipe.send(seen)


def test_multiprocessing(dist: ModuleType, size: int) -> None:
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_child, args=(dist, there))
    child.start()
    assert here.poll(30)
    seen = here.recv()
    child.join(30)
    assert child.exitcode == 0
    assert seen == ["ForkError"] * len(seen)
    tensor = np.ones(1)
    dist.all_reduce(tensor)
    assert tensor[0] == size


def test_what_python_calls_by_itself(dist: ModuleType, size: int) -> None:
    """The child frees a live Work; another child runs Python's exit handlers."""
    work: Any = dist.all_reduce(np.ones(1000), async_op=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            del work
            gc.collect()
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    work.wait()

    context = multiprocessing.get_context("fork")
    child_process = context.Process(target=sys.exit, args=(7,))
    child_process.start()
    child_process.join(30)
    assert child_process.exitcode == 7
    tensor = np.ones(1)
    dist.all_reduce(tensor)
    assert tensor[0] == size


@pytest.mark.mpi(ranks=2)
def test_pools(dist: ModuleType, rank: int) -> None:
    """multiprocessing with fork: before, between and during operations."""
    fork = multiprocessing.get_context("fork")
    with fork.Pool(2) as before:
        x = np.full(1000, rank + 1.0)
        y = np.zeros(3)
        work = dist.irecv(y, 1 - rank)
        total = dist.all_reduce(x, async_op=True)
        with fork.Pool(2) as pool:
            assert pool.map(abs, range(-50, 0)) == list(range(50, 0, -1))
        assert before.map(abs, [-1, -2]) == [1, 2]
        total.wait()
        assert (x == 3).all()
        works()
        assert subprocess.run([sys.executable, "-c", "print(1)"], check=True).returncode == 0
        dist.send(np.full(3, 1.0), 1 - rank)
        work.wait()
    works()
