"""What Paddle is told of the ranks: the variables it reads, its default group, its groups' ids.

Paddle has no way to register a backend, but everything it does in dynamic mode goes through
a ``Group`` with a process group that it only calls. So the groups are made here and entered in
Paddle's tables: read on Paddle 3.3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from paddle.distributed import collective, parallel, parallel_helper
from paddle.distributed.communication import group as groups

from .. import group as core_group
from . import environment

__all__ = [
    "MPI",
    "Group",
    "announce",
    "default_group",
    "enter",
    "forget",
    "known_groups",
    "next_id",
    "remove",
    "start",
]

MPI = "mpi"
"""The backend's name."""

_announces = False


def announce(on: bool) -> None:
    """Whether Paddle is told what the launcher says, as long as there is no world.

    While there is one, its own variables stay; then what was asked for last counts.
    """
    global _announces
    _announces = on
    if not core_group.is_initialized():
        _tell()


def _tell() -> None:
    if _announces:
        environment.announce()
    else:
        environment.clear()
    _reread()


def _reread() -> None:
    """Let Paddle read the environment again: it may have done so before it was filled."""
    parallel._global_parallel_env = None
    collective._global_env = None


def start(timeout: timedelta | float) -> core_group.ProcessGroup:
    """The world, and the environment as Paddle expects it. Collective over the job.

    Raises:
        LauncherError: MPI does not know this process, or the environment contradicts MPI.
        StartError: as :func:`paddlempi.init_process_group`.
    """
    if not core_group.is_initialized():
        environment.check_process()
        core_group.init_process_group(MPI, timeout=timeout)
    world = core_group.WORLD
    assert world is not None
    environment.fill(world.rank(), world.size())
    _reread()
    return world


def forget() -> None:
    """Paddle knows of no group any more: the world was destroyed, by whomever.

    What the launcher says stays true: a script may ask, and start again.
    """
    _tell()
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


core_group.at_destroy(forget)


# The groups


class Group(groups.Group):  # type: ignore[misc]
    """Paddle's, but that a group of one rank has a member too, whose collectives work."""

    def is_member(self) -> bool:
        return bool(self.rank >= 0)


def default_group() -> Any:
    """Paddle's default group, None before init."""
    return collective._group_map_by_name.get(collective._default_group_name)


def known_groups() -> list[Any]:
    """All groups that were made and not destroyed."""
    return list(groups._GroupManager.group_map_by_id.values())


def next_id() -> int:
    """The id of the next group that is made, the same on all ranks."""
    return int(collective._custom_gid or collective._new_ring_id())


def enter(
    core: core_group.ProcessGroup, members: Sequence[int], process_group: Any, number: int
) -> Group:
    """Make a group of Paddle, known to it from here on.

    Args:
        core: the core's group; no member's where this rank is none.
        members: their ranks.
        process_group: what carries its collectives; None where this rank is no member.
        number: its id; 0 is the default group's.
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
    """Take a group out of Paddle's tables. False: it is not in them."""
    known = groups._GroupManager.group_map_by_id
    if group.id not in known:
        return False
    del known[group.id]
    collective._group_map.pop(group.id, None)
    collective._group_map_by_name.pop(group.name, None)
    collective._group_map_backend.pop(group, None)
    return True
