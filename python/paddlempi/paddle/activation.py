"""How ``paddle.distributed`` comes to be ours.

Paddle has no way to register a backend, but everything it does in dynamic mode goes through
a ``Group`` with a process group that it only calls. So the default group is made here, and
the functions that would make C++ ones are replaced: read on Paddle 3.3.1.

Everything replaced is put back by :func:`uninstall`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.base import core as paddle_core
from paddle.distributed import collective, parallel, parallel_helper
from paddle.distributed.communication import group as groups
from paddle.distributed.fleet.base.role_maker import PaddleCloudRoleMaker

from .. import group as core_group
from .. import launcher
from ..errors import ArgumentError, LauncherError
from . import environment, private
from .fleet import Workers
from .process_group import ProcessGroupMPI

__all__ = ["default_group", "init", "install", "installed", "replace", "uninstall"]

_MPI = "mpi"

# Where each name that is replaced stands; the first is the one whose original is called.
_PLACES: dict[str, tuple[Any, ...]] = {
    "init_parallel_env": (parallel, dist),
    "new_group": (collective, dist),
    "destroy_process_group": (groups, dist, dist.communication),
    "wait": (groups, dist, dist.communication),
    "spawn": (sys.modules["paddle.distributed.spawn"], dist),
}

_originals: list[tuple[Any, str, Any]] = []


def installed() -> bool:
    """Whether ``paddle.distributed`` is ours."""
    return bool(_originals)


def install() -> None:
    """Put our functions in the places of Paddle's. Starts no MPI; may be called again.

    Raises:
        UnsupportedError: a private name of Paddle has moved.
    """
    if _originals:
        return
    private.check()
    generate = PaddleCloudRoleMaker._generate_role

    def generate_role(self: Any) -> Any:
        """Paddle's, which reads the environment: it must say by then what MPI says."""
        if self._is_collective and not self._role_is_generated:
            _start(core_group.DEFAULT_TIMEOUT)
            self._gloo = Workers()
        return generate(self)

    replace(PaddleCloudRoleMaker, "_generate_role", generate_role)
    replacements = {
        "init_parallel_env": init_parallel_env,
        "new_group": new_group,
        "destroy_process_group": destroy_process_group,
        "wait": wait,
        "spawn": spawn,
    }
    for name, places in _PLACES.items():
        replacements[name].__doc__ = getattr(places[0], name).__doc__
        for place in places:
            replace(place, name, replacements[name])
    # Imported now: they call into this module.
    from . import checkpoint, data_parallel, optimizers

    for module in (checkpoint, data_parallel, optimizers):
        for place, name, value in module.replacements():
            replace(place, name, value)
    if not hasattr(paddle_core, "nccl_version"):
        # AVG asks for it on the CPU too, where the wheel has none: with a new one Paddle hands
        # AVG to the process group.
        replace(paddle_core, "nccl_version", lambda: 99999)
    if not core_group.is_initialized():
        environment.announce()
        _reread()


def uninstall() -> None:
    """Put Paddle's own back. The world is left as it is, and its environment until its end."""
    if not core_group.is_initialized():
        environment.clear()
        _reread()
    while _originals:
        place, name, original = _originals.pop()
        if original is _ABSENT:
            delattr(place, name)
        else:
            setattr(place, name, original)


class _Absent:
    pass


_ABSENT = _Absent()


def replace(place: Any, name: str, value: Any) -> None:
    """Put ``value`` in a place of Paddle's, until :func:`uninstall`."""
    _originals.append((place, name, getattr(place, name, _ABSENT)))
    setattr(place, name, value)


class Group(groups.Group):  # type: ignore[misc]
    """Paddle's, but that a group of one rank has a member too, whose collectives work."""

    def is_member(self) -> bool:
        return bool(self.rank >= 0)


def default_group() -> Any:
    """Paddle's default group, None before init."""
    return collective._group_map_by_name.get(collective._default_group_name)


def init(timeout: timedelta | float = core_group.DEFAULT_TIMEOUT) -> Any:
    """Start MPI if it does not run and make Paddle's default group of all ranks."""
    install()
    made = default_group()
    if made is not None:
        return made
    world = _start(timeout)
    group = Group(
        world.rank(), 0, list(world._ranks), ProcessGroupMPI(world), collective._default_group_name
    )
    collective._set_default_backend(_MPI)
    collective._set_group_map_by_name(collective._default_group_name, group)
    collective._set_group_map(0, group)
    collective._set_group_map_backend(group, _MPI)
    groups._add_new_group(group)
    parallel_helper._set_parallel_ctx(True)
    return group


def _start(timeout: timedelta | float) -> core_group.ProcessGroup:
    """The world, and the environment as Paddle expects it. Collective over the job."""
    if not core_group.is_initialized():
        environment.check_process()
        core_group.init_process_group(_MPI, timeout=timeout)
    world = core_group.WORLD
    assert world is not None
    environment.fill(world.rank(), world.size())
    _reread()
    return world


def _reread() -> None:
    """Let Paddle read the environment again: it may have done so before it was filled."""
    parallel._global_parallel_env = None
    collective._global_env = None


def _forget() -> None:
    """Paddle knows of no group any more: the world was destroyed, by whomever.

    What the launcher says stays true: a script may ask, and start again.
    """
    if installed():
        environment.announce()
    else:
        environment.clear()
    _reread()
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


core_group.at_destroy(_forget)


# What stands in the places of Paddle's functions


def init_parallel_env(nccl_config: Any = None) -> Any:
    return init()


def new_group(
    ranks: Sequence[int] | None = None,
    backend: str | None = None,
    timeout: timedelta | None = None,
    nccl_comm_init_option: int = 0,
    nccl_config: Any = None,
) -> Any:
    world = default_group()
    if world is None:
        raise RuntimeError("new_group: call paddle.distributed.init_parallel_env() first")
    if backend is not None and backend.lower() != _MPI:
        raise ArgumentError(
            f"new_group: backend={backend!r}: under paddlempi the only one is 'mpi'; leave it out"
        )
    members = sorted(world.ranks if ranks is None else ranks)
    number = collective._custom_gid or collective._new_ring_id()
    made = core_group.new_group(members, timeout)
    process_group = ProcessGroupMPI(made) if made.rank() >= 0 else None
    name = collective._default_group_name + str(number)
    group = Group(made.rank(), number, members, process_group, name)
    collective._group_map_by_name[name] = group
    collective._group_map[number] = group
    collective._group_map_backend[group] = _MPI
    groups._add_new_group(group)
    return group


def destroy_process_group(group: Any = None) -> None:
    if group is None or group is default_group():
        if core_group.is_initialized():
            core_group.destroy_process_group()  # which comes to _forget
        else:
            _forget()
        return
    known = groups._GroupManager.group_map_by_id
    if group.id not in known:
        raise ArgumentError(f"destroy_process_group: group {group.id} was destroyed before")
    del known[group.id]
    collective._group_map.pop(group.id, None)
    collective._group_map_by_name.pop(group.name, None)
    collective._group_map_backend.pop(group, None)
    if group.process_group is not None:
        core_group.destroy_process_group(group.process_group.core)


def wait(tensor: Any, group: Any = None, use_calc_stream: bool = True) -> None:
    if not paddle.in_dynamic_mode():
        return
    known = groups._GroupManager.group_map_by_id.values() if group is None else (group,)
    for one in list(known):
        if one.process_group is not None:
            one.process_group.wait_for(tensor)


def spawn(
    func: Any,
    args: Any = (),
    nprocs: int = -1,
    join: bool = True,
    daemon: bool = False,
    **options: Any,
) -> Any:
    found = launcher.find()
    if found is not None and found["size"] > 1:
        raise LauncherError(
            f"spawn: {found['path'] or found['name']} has started {found['size']} processes, each "
            "of which would start others that MPI does not connect: call "
            f"{getattr(func, '__name__', 'func')}(...) itself, without spawn"
        )
    return _original("spawn")(func, args, nprocs, join, daemon, **options)


def _original(name: str) -> Any:
    """Paddle's own of a function that :data:`_PLACES` names."""
    place = _PLACES[name][0]
    return next(value for at, what, value in _originals if at is place and what == name)
