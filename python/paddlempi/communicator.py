"""RAF's and Meta's Connector and Communicator: who takes part, in objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _native, collectives, group
from .group import ProcessGroup
from .rank_list import group_of, parse

__all__ = ["Communicator", "Connector", "get_communicator"]


class Connector:
    """What connects the ranks of the job. Source: Meta's ``MPIConnector``.

    Its attributes say where this process stands, its methods are collective over the world.
    Everything raises ``NotInitializedError`` before init and after destroy.
    """

    __slots__ = ()

    @property
    def size(self) -> int:
        """The number of ranks in the job."""
        return group.get_world_size()

    @property
    def rank(self) -> int:
        """This process's rank."""
        return group.get_rank()

    @property
    def local_size(self) -> int:
        """The number of ranks on this node."""
        return group.get_local_size()

    @property
    def local_rank(self) -> int:
        """This process's rank among those of its node."""
        return group.get_local_rank()

    def Barrier(self) -> None:
        """Return when every rank has called it."""
        collectives.barrier()

    def Broadcast(self, x: Any, root: int = 0) -> None:
        """Copy the tensor of ``root`` into that of every rank, in place."""
        collectives.broadcast(x, root)


class Communicator:
    """The ranks that a collective runs over: all of them, or a subset. Made by
    :func:`get_communicator`.

    Attributes:
        rank, size: this process's rank in the communicator, and the number of its ranks.
        local_rank, local_size: the same among its ranks on this node.
        world_rank, world_size: in the job.
        root_rank: the rank that does what one does for all, 0.
        group_id, group_size: which of the subsets this is, and how many there are.
        group: the process group, for ``group=`` of the collectives.

    Source: RAF's ``Communicator``; the attributes are read once.
    """

    def __init__(self, members: ProcessGroup, group_id: int, group_size: int) -> None:
        self.group = members
        self.group_id = group_id
        self.group_size = group_size
        self.rank = members.rank()
        self.size = members.size()
        self.world_rank = group.get_rank()
        self.world_size = group.get_world_size()
        self.root_rank = 0
        node = _native.control("info")["node"]
        here = [rank for rank in members._ranks if node[rank] == node[self.world_rank]]
        self.local_rank = here.index(self.world_rank)
        self.local_size = len(here)

    def __repr__(self) -> str:
        return (
            f"Communicator(rank={self.rank}, size={self.size}, group_id={self.group_id}, "
            f"group_size={self.group_size}, ranks={list(self.group._ranks)})"
        )


def get_communicator(rank_list: Sequence[Sequence[int]] | None = None) -> Communicator:
    """The communicator of all ranks or, with a ``rank_list``, of this rank's subset.

    Ranks that no subset has are alone, each in a group of its own behind those given.

    Raises:
        ArgumentError, DtypeError: a wrong ``rank_list``.

    Source: RAF's ``raf.distributed.get_communicator``.
    """
    world = group.members(None)
    if rank_list is None:
        return Communicator(world, 0, 1)
    subsets = parse(rank_list, "get_communicator")
    named = {rank for subset in subsets for rank in subset}
    subsets += [(rank,) for rank in world._ranks if rank not in named]
    number = next(i for i, subset in enumerate(subsets) if world._rank in subset)
    return Communicator(group_of(subsets, "get_communicator"), number, len(subsets))
