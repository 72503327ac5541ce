"""The default group of ``init_process_group("mpi", enable_reconfigure=True)``.

Init meets nobody: the caller says rank and size. The group's members come by ``reconfigure`` with
handles, again and again, and the object stays the same. Collectives before the first one raise
``NotInitializedError``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import ErrorType

from .. import group
from ..errors import AlreadyInitializedError, ArgumentError, NotInitializedError
from ..startup import handles, reform
from . import world
from .process_group import ProcessGroupMPI
from .work import DONE, Work

__all__ = ["ReconfigurableMPI", "shrink_members"]


class ReconfigurableMPI(ProcessGroupMPI):
    """A default group whose members change.

    Args:
        rank, size: what the caller of init gave.
        timeout: how long operations wait for other members, and a reconfigure.
    """

    supports_reconfigure = True
    supports_shrinking = True

    def __init__(self, rank: int, size: int, timeout: timedelta) -> None:
        # 0 stands for the first world, which there is not yet.
        super().__init__(group.ProcessGroup(0, rank, range(size)), timeout, is_world=True)
        self._uuids: set[int] = set()
        self._uuid = 0  # of these, the members'
        self._members: list[str] = []  # their handles

    # What torch asks of a group whose members change

    def get_reconfigure_handle(self) -> str:
        """Return what others know this process by."""
        return handles.my_handle()

    def reconfigure(self, opts: Any) -> Work:
        """Take other members. All of them call it with the same options.

        Args:
            opts: ``ReconfigureOptions``: a uuid that was not used, and the handles of the members:
                a list in the order of their ranks, or a set.

        Raises:
            RuntimeError: the uuid was used.
            ArgumentError, UnsupportedError, TimeoutError: as ``handles.reform_by_handles``.
        """
        if opts.uuid in self._uuids:
            raise AlreadyInitializedError(
                f"reconfigure: uuid={opts.uuid} was already used by this group: give another one"
            )
        given = opts.handles
        members = list(given) if isinstance(given, (list, tuple)) else sorted(given)
        limit = self._timeout if opts.timeout is None else opts.timeout
        self._meet(opts.uuid, members, limit)
        return DONE

    def _meet(self, uuid: int, members: Sequence[str], limit: timedelta) -> None:
        """Become the group of a new world. Groups of the old one raise errors from now on."""
        self._uuids.add(uuid)
        handles.reform_by_handles(uuid, members, limit.total_seconds())
        self._uuid, self._members = uuid, list(members)
        self.renew(world.reformed(self._timeout))

    def abort(self) -> None:
        """End every wait of the group, on all members. ``reconfigure`` may follow."""
        reform.revoke(f"rank {self.getRank()} has aborted the group")

    def get_error(self) -> Any:
        """Return ``ErrorType.SUCCESS``: errors come from the calls, and an abort was asked for."""
        return ErrorType.SUCCESS

    def shrink(self, excluded: Sequence[int]) -> None:
        """Go on without some members, which do not call it. All others do, with the same ranks."""
        if not self._members:
            raise NotInitializedError(
                "shrink_group: the group has no members yet: call reconfigure first"
            )
        left = [one for rank, one in enumerate(self._members) if rank not in excluded]
        text = "\n".join((str(self._uuid), *left))
        uuid = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
        self._meet(uuid, left, self._timeout)


def shrink_members(asked: ReconfigurableMPI, excluded: Sequence[int]) -> ReconfigurableMPI:
    """Shrink the default group, and destroy all others. Return the group.

    Args:
        asked: the group.
        excluded: the ranks that do not go on.
    """
    size = asked.size()
    wrong = [rank for rank in excluded if not isinstance(rank, int) or not 0 <= rank < size]
    if not excluded or wrong or len(set(excluded)) < len(excluded) or asked.rank() in excluded:
        raise ArgumentError(
            f"shrink_group: ranks_to_exclude={list(excluded)} on rank {asked.rank()} of {size}: "
            "give some ranks of the group, each once, and not this one"
        )
    asked.shrink(excluded)
    for other in list(c10d._world.pg_map):
        if other is not asked:
            torch.distributed.destroy_process_group(other)
    return asked
