"""Tasks of a master, on several trainers: those that are slow, leave early, or fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import paddlempi as dist
import pytest
from paddlempi import ps
from ps_roles import begin

__all__ = ["begin"]

pytestmark = pytest.mark.mpi(ranks=[2, 3])

Begin = Callable[..., bool]

ALL_TRAIN = "trainer+pserver+master:1,trainer:*"
"""The first rank is server and master, too."""
LEASE = 0.15


def of_all(mine: list[Any]) -> list[Any]:
    """What all trainers have in their lists, in order."""
    told: list[Any] = [None] * len(ps.trainers())
    dist.all_gather_object(told, mine, ps.trainer_group())
    return sorted(one for each in told for one in each)


@pytest.mark.parametrize("roles", [ALL_TRAIN, "trainer:*,pserver+master:1"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_trainer_that_is_slow_loses_no_record(
    begin: Begin, rank: int, roles: str, mode: str
) -> None:
    """The first one sleeps for three leases; in sync mode the others wait in a push meanwhile."""
    if not begin(roles, mode=mode):
        return
    table = ps.RemoteTable("t", 1, ps.SGD(1.0))
    shards = ps.tasks(range(10 * len(ps.trainers())), size=5, lease=LEASE, retries=100)
    given, done = [], []
    for task in shards:
        for record in task:
            if not given and rank == 0:
                time.sleep(3 * LEASE)
            given.append(record)
            if mode == "sync":
                table.push(np.array([record]), -np.ones((1, 1), np.float32))
        done.append((task.number, task.done()))
    given, done = of_all(given), of_all(done)
    assert shards.failed() == []
    assert [number for number, counts in done if counts] == list(range(len(shards)))
    assert sorted(set(given)) == list(range(10 * len(ps.trainers())))
    if mode == "sync" or len(ps.trainers()) == 1:  # no other one could have a shard meanwhile
        assert len(given) == 10 * len(ps.trainers())


def test_what_a_trainer_leaves_goes_to_who_waits(begin: Begin, rank: int) -> None:
    """In sync mode the others wait for the next epoch when the first one leaves this one."""
    begin(ALL_TRAIN, mode="sync")
    size = dist.get_world_size()
    shards = ps.tasks(3 * size)
    mine = []
    if rank == 0:
        for task in shards:
            mine.append((task.epoch, task.value))
            task.done()
            break
        dist.barrier()
        time.sleep(0.1)
        ps.complete()
    else:
        mine += [(task.epoch, task.value) for task in shards]
        dist.barrier()
        mine += [(task.epoch, task.value) for task in shards]
        assert shards.epoch == 2
    told: list[Any] = [None] * size
    dist.all_gather_object(told, mine)
    everything = sorted(one for each in told for one in each)
    assert everything == [(epoch, value) for epoch in (0, 1) for value in range(3 * size)]


def test_a_failure_changes_nobodys_steps(begin: Begin, rank: int) -> None:
    """In sync mode a shard that fails is not given to its trainer again, which would step alone."""
    begin(ALL_TRAIN, mode="sync", timeout=10)
    size = dist.get_world_size()
    table = ps.RemoteTable("t", 1, ps.SGD(1.0))
    shards = ps.tasks(2 * size, retries=3)
    for epoch in range(2):
        tried = []
        for task in shards:
            tried.append(task.number)
            table.push(np.array([task.value]), -np.ones((1, 1), np.float32))
            if epoch == 0 and task.number == 0:
                assert task.fail("a bad record")
        assert tried == [rank, rank + size]
        ps.barrier()
        told = [(one.epoch, one.number, one.rank, one.reason) for one in shards.failed()]
        assert told == [(0, 0, 0, "a bad record")]
    assert (table.pull(np.arange(2 * size)) == 2).all()
