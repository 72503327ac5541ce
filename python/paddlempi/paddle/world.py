"""What Paddle knows of the ranks: the variables it reads, its default group, its groups' ids.

Paddle has no way to register a backend. But in dynamic mode all its collectives go through
a ``Group``, and call methods of the process group in it. So the groups are made here and entered
into Paddle's tables, as they are in Paddle 3.3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from paddle.distributed import collective, parallel, parallel_helper
from paddle.distributed.communication import group as groups
from paddle.distributed.fleet.base import topology

from .. import group as core_group
from ..startup.rendezvous.stores import MemoryStore
from . import environment

__all__ = [
    "MPI",
    "Group",
    "default_group",
    "enter",
    "export_environment",
    "forget",
    "is_alone_for_now",
    "known_groups",
    "next_id",
    "reformed",
    "remove",
    "start",
    "start_alone",
]

MPI = "mpi"
"""The backend's name."""

_exports = False
_alone = False


def export_environment(on: bool) -> None:
    """Choose whether the variables that Paddle reads are set from the launcher's.

    This holds while there is no world. A world has variables of its own; when it is destroyed,
    the last choice counts.
    """
    global _exports
    _exports = on
    if not core_group.is_initialized():
        _update_environment()


def _update_environment() -> None:
    if _exports:
        environment.fill_from_launcher()
    else:
        environment.clear()
    _reread()


def _reread() -> None:
    """Let Paddle read the environment again, because it keeps what it has read before."""
    parallel._global_parallel_env = None
    collective._global_env = None


def start(timeout: timedelta | float) -> core_group.ProcessGroup:
    """Start the world if there is none, and set the environment. Collective over the job.

    Raises:
        LauncherError: MPI does not know this process, or the environment contradicts MPI.
        StartError: as :func:`paddlempi.init_process_group`.
    """
    if not core_group.is_initialized():
        environment.check_process()
        core_group.init_process_group(MPI, timeout=timeout)
    world = core_group.WORLD
    assert world is not None
    environment.fill_from_mpi(world.rank(), world.size())
    _reread()
    return world


def forget() -> None:
    """Remove all groups from Paddle's tables. Called whenever the world has been destroyed.

    The variables are those of the launcher again, because a script may read them and start again.
    """
    _update_environment()
    if default_group() is None:
        return
    groups._GroupManager.group_map_by_id.clear()
    for table in (
        collective._group_map,
        collective._group_map_by_name,
        collective._group_map_backend,
    ):
        table.clear()
    parallel_helper.__parallel_ctx__clz__ = None
    topology._HYBRID_PARALLEL_GROUP = None  # fleet's groups


core_group.at_destroy(forget)


def start_alone(timeout: timedelta | float) -> None:
    """Start a world of this process alone, for the set-up of an elastic job."""
    global _alone
    core_group.init_process_group(MPI, timeout=timeout, rank=0, world_size=1, store=MemoryStore())
    _alone = True
    environment.fill_from_mpi(0, 1, compare=False)
    _reread()


def reformed() -> None:
    """Take note that the world has other ranks: those of an elastic job."""
    global _alone
    world, _alone = core_group.WORLD, False
    assert world is not None
    topology._HYBRID_PARALLEL_GROUP = None  # fleet's groups, of the world before
    environment.fill_from_mpi(world.rank(), world.size(), compare=False)
    _reread()


def is_alone_for_now() -> bool:
    """Whether this process is alone only until the steps of an elastic job begin."""
    return _alone


# The groups


class Group(groups.Group):  # type: ignore[misc]
    """Paddle's group, but the only rank of a group of one is a member, so its collectives work."""

    def is_member(self) -> bool:
        return bool(self.rank >= 0)


def default_group() -> Any:
    """Return Paddle's default group; None before init."""
    return collective._group_map_by_name.get(collective._default_group_name)


def known_groups() -> list[Any]:
    """Return all groups that were made and not destroyed."""
    return list(groups._GroupManager.group_map_by_id.values())


def next_id() -> int:
    """Take an id for a new group. It is the same on all ranks."""
    return int(collective._custom_gid or collective._new_ring_id())


def enter(
    core: core_group.ProcessGroup, members: Sequence[int], process_group: Any, number: int
) -> Group:
    """Make a group of Paddle and enter it into Paddle's tables.

    Args:
        core: the core's group; its rank is negative if this rank is no member.
        members: the global ranks of the members.
        process_group: carries out the collectives; None if this rank is no member.
        number: the id of the group; that of the default group is 0.
    """
    name = f"{collective._default_group_name}{number or ''}"
    group = Group(core.rank(), number, list(members), process_group, name)
    collective._group_map_by_name[name] = group
    collective._group_map[number] = group
    collective._group_map_backend[group] = MPI
    groups._add_new_group(group)
    if number == 0:
        collective._set_default_backend(MPI)
        parallel_helper._set_parallel_ctx(True)
    return group


def remove(group: Any) -> bool:
    """Remove a group from Paddle's tables. Return False if it is not in them."""
    known = groups._GroupManager.group_map_by_id
    if group.id not in known:
        return False
    del known[group.id]
    collective._group_map.pop(group.id, None)
    collective._group_map_by_name.pop(group.name, None)
    collective._group_map_backend.pop(group, None)
    return True
