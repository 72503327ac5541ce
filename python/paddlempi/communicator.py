"""Names of RAF and Meta: ``Connector`` and ``Communicator``."""

from __future__ import annotations

from collections.abc import Sequence

from . import _native, collectives, group
from .group import ProcessGroup
from .rank_list import group_of, parse
from .tensor_types import Tensor

__all__ = ["Communicator", "Connector", "get_communicator"]


class Connector:
    """The ranks of the job: attributes are local, methods are collective over the world.

    Attributes and methods raise ``NotInitializedError`` before init and after destroy.

    Source: Meta's ``MPIConnector``.
    """

    __slots__ = ()

    @property
    def size(self) -> int:
        """The number of ranks in the job."""
        return group.get_world_size()

    @property
    def rank(self) -> int:
        """This process's rank in the job."""
        return group.get_rank()

    @property
    def local_size(self) -> int:
        """The number of ranks on this node."""
        return group.get_local_size()

    @property
    def local_rank(self) -> int:
        """This process's rank among the ranks of its node."""
        return group.get_local_rank()

    def Barrier(self) -> None:
        """Return when every rank has called it."""
        collectives.barrier()

    def Broadcast(self, x: Tensor, root: int = 0) -> None:
        """Copy the tensor of rank ``root`` into the tensor of every other rank, in place."""
        collectives.broadcast(x, root)


class Communicator:
    """All ranks of the job, or a subset of them. Returned by :func:`get_communicator`.

    Attributes:
        rank, size: this process's rank in the communicator, and the number of its ranks.
        local_rank, local_size: the same among the communicator's ranks on this node.
        world_rank, world_size: the same in the job.
        root_rank: 0, the rank that does what only one rank has to do.
        group_id, group_size: the index of this subset, and the number of subsets.
        group: the process group, for the argument ``group`` of collectives.

    The attributes are read when the communicator is made, and do not change.

    Source: RAF's ``Communicator``.
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
    """Return the communicator of all ranks or, with a ``rank_list``, of this rank's subset.

    With a ``rank_list``, all ranks of a subset call it.

    Args:
        rank_list: disjoint lists of global ranks, the subsets. Every rank that is in none of them
            becomes a subset of one rank; these subsets follow the given ones.

    Raises:
        ArgumentError: a rank is out of range or given twice.
        DtypeError: ``rank_list`` is no sequence of sequences of integers.
        TimeoutError: a rank of the subset never came.
        NotInitializedError: before init or after destroy.

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
