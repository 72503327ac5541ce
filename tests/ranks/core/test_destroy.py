"""Groups and worlds that are destroyed while operations are under way in them."""

from __future__ import annotations

import time
from types import ModuleType

import numpy as np
import pytest
from paddlempi import errors
from ranks_tools import raises, works

pytestmark = pytest.mark.mpi(ranks=2)


def test_a_message_that_its_peer_takes(dist: ModuleType, rank: int) -> None:
    """destroy waits for a message that the other rank still takes."""
    for everything in (False, True):
        group = None if everything else dist.new_group([0, 1])
        x = np.full(4 << 20, float(rank))
        if rank == 0:
            work = dist.isend(x, 1, group=group)
        else:
            time.sleep(0.5)
            dist.recv(x, 0, group=group)
            assert (x == 0).all()
        dist.destroy_process_group(group)
        if rank == 0 and not everything:
            work.wait()
    dist.init_process_group("mpi")
    works()


def test_groups_of_an_earlier_life(dist: ModuleType, rank: int) -> None:
    """Numbers of groups are never used twice, so the groups of an earlier world stay destroyed."""
    world, pair, alone = dist.group.WORLD, dist.new_group([1, 0]), dist.new_group([rank])
    dist.destroy_process_group()
    dist.init_process_group("mpi")
    others = [dist.new_group([1, 0]), dist.new_group([rank]), dist.new_group([0, 1])]
    for old in (world, pair, alone):
        with raises(errors.GroupDestroyedError, "init_process_group was called again"):
            dist.barrier(old)
        with raises(errors.GroupDestroyedError, "destroyed"):
            dist.isend(np.ones(1), 1 - rank if old.size() == 2 else rank, group=old)
    works()
    for group in others:
        works(group)
        dist.destroy_process_group(group)
