"""Groups that torch does not know of: programs call the backend's creator, and no ``new_group``.

::

    options = _DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, rank, size
    group = Backend._plugins["MPI"].creator_fn(options, None)

vLLM calls them stateless. Their members meet in the store of the options. Ranks in operations are
those of the group; functions of ``torch.distributed`` that take global ranks do not know it.
Operators find it by its ``group_name``, in torch's registry.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from .. import group
from ..errors import ArgumentError
from ..group_arguments import to_seconds
from . import group_names, world
from .arguments import has_cuda
from .errors import TimeoutError
from .process_group import ProcessGroupMPI

__all__ = ["StatelessGroup", "create"]

_PREFIX = "paddlempi/"


class StatelessGroup(ProcessGroupMPI):
    """A group by itself. ``shutdown`` frees it, and the world goes on until the process ends."""

    def __init__(self, core: group.ProcessGroup, timeout: timedelta, store: Any) -> None:
        super().__init__(core, timeout)
        self._store = store
        name = group_names.new("stateless", core._ranks)
        self._set_group_name(name)
        c10d._register_process_group(name, self)

    @property
    def _device_types(self) -> list[Any]:
        return [torch.device(name) for name in ("cpu", "cuda")[: 2 if has_cuda() else 1]]

    def _set_group_name(self, name: str) -> None:
        """Change the name. Who gives another one registers it, as with torch's own groups."""
        self._forget_name()
        super()._set_group_name(name)

    setGroupName = _set_group_name

    def _forget_name(self) -> None:
        group_names.forget(self._name)
        with contextlib.suppress(RuntimeError):  # no group has it any more
            if c10d._resolve_process_group(self._name) is self:
                c10d._unregister_process_group(self._name)

    def shutdown(self) -> None:
        """Free the group."""
        self._forget_name()
        super().shutdown()

    def get_group_store(self) -> Any:
        """Return the store that the members have met in."""
        return self._store


def create(options: Any) -> StatelessGroup:
    """Make the group of a call of the creator outside of torch's helper. Its members call it.

    If none of them is in a world, they become one, in their order. Otherwise they have to be ranks
    of one world.

    Args:
        options: a ``_DistributedBackendOptions``. If it has ``global_ranks_in_group``, these ranks
            of the world are the members, and it needs no store. No timeout: torch's default.

    Raises:
        ArgumentError: the options name no store or a wrong rank; or members are in different worlds
            or in none.
        TimeoutError: some members did not come; ``ranks`` are those.
    """
    timeout = options.timeout
    if timeout <= timedelta(0):
        timeout = dist.distributed_c10d._get_default_timeout("mpi")
    named = [int(rank) for rank in options.global_ranks_in_group]
    if named:
        return StatelessGroup(group.new_group(named, timeout), timeout, options.store)
    rank, size, store = options.group_rank, options.group_size, options.store
    if store is None or not 0 <= rank < size:
        raise ArgumentError(
            f"creator_fn: group_rank={rank}, group_size={size}, store={store}: a group that torch "
            "does not make needs a store in which its members meet, and group_rank from 0 to "
            "group_size - 1"
        )
    met = dist.PrefixStore(_PREFIX, store)
    places = _places(met, rank, size, timeout)
    if any(place["size"] for place in places):
        ranks = _ranks_in_a_world(places)
    else:
        world.start(timeout, world.Asked(rank, size, None, met))
        world.agree(rank, size, "creator_fn")
        ranks = list(range(size))
    return StatelessGroup(group.new_group(ranks, timeout), timeout, store)


def _places(store: Any, rank: int, size: int, timeout: timedelta) -> list[dict[str, Any]]:
    """Tell the others where this process is in a world, and return the places of all members."""
    inside = group.is_initialized()
    mine = {
        "size": group.get_world_size() if inside else 0,
        "rank": group.get_rank() if inside else -1,
        "process": f"process {os.getpid()} on {socket.gethostname()}",
    }
    store.set(f"place/{rank}", json.dumps(mine))
    keys = [f"place/{member}" for member in range(size)]
    try:
        store.wait(keys, timeout)
    except RuntimeError as error:
        late = [member for member in range(size) if not store.check([keys[member]])]
        seconds = to_seconds(timeout, "creator_fn")
        failed: Exception = TimeoutError(
            f"creator_fn: rank {rank} of {size}: after {seconds:g} s ranks {late} of the group had "
            "not come to its store"
        )
        failed.ranks = tuple(late)  # type: ignore[attr-defined]
        raise failed from error
    return [json.loads(store.get(key)) for key in keys]


def _ranks_in_a_world(places: Sequence[dict[str, Any]]) -> list[int]:
    """Return the members' ranks in the world that all of them are in.

    Raises:
        ArgumentError: they are not in one world, as far as its size and their ranks tell.
    """
    ranks = [int(place["rank"]) for place in places]
    if len({place["size"] for place in places}) > 1 or len(set(ranks)) < len(ranks):
        told = "; ".join(
            f"member {member} ({place['process']}) is "
            + (f"rank {place['rank']} of {place['size']}" if place["size"] else "in no world")
            for member, place in enumerate(places)
        )
        raise ArgumentError(
            f"creator_fn: the members are not ranks of one world: {told}: begin one world in all "
            "of them first, or in none"
        )
    return ranks
