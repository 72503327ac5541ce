"""A default process group of any size in one process, whose collectives move nothing.

A model that is wrapped in it computes what one rank computes, with values that mean nothing, and
shows which collectives it calls.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch.distributed as calls
import torch.distributed.distributed_c10d as c10d

__all__ = ["fake_world"]


@contextlib.contextmanager
def fake_world(size: int) -> Iterator[None]:
    """Be rank 0 of so many, by torch's backend "fake", until the context ends.

    A default group that is there comes back then. Its groups stay as they are, but nobody may call
    collectives of them meanwhile. Not thread-safe.
    """
    # The module registers the backend when it is imported.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    before = c10d.GroupMember.WORLD
    groups = set(c10d._world.pg_map)
    hook = sys.excepthook  # torch puts one around it with every default group
    c10d._update_default_pg(None)
    try:
        calls.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        yield
    finally:
        # Not as a default group: that would end all groups there are.
        c10d._update_default_pg(before)
        sys.excepthook = hook
        for made in set(c10d._world.pg_map) - groups:
            if before is None:
                c10d._update_default_pg(made)
                calls.destroy_process_group()
                break
            calls.destroy_process_group(made)
