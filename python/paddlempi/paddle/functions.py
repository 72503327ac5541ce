"""What stands in the places of the functions of ``paddle.distributed`` that know of groups."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.base import core as paddle_core
from paddle.distributed import collective
from paddle.distributed.communication import group as groups

from .. import group as core_group
from .. import launcher
from ..errors import ArgumentError, LauncherError
from . import patches, world
from .process_group import ProcessGroupMPI

__all__ = ["make_default", "replacements"]

# A module, hidden behind the function of its name.
_SPAWN = sys.modules["paddle.distributed.spawn"]


def make_default(timeout: timedelta | float) -> Any:
    """Paddle's default group of all ranks, made with MPI's start if there is none."""
    made = world.default_group()
    if made is None:
        core = world.start(timeout)
        made = world.enter(core, core._ranks, ProcessGroupMPI(core), 0)
    return made


def new_group(
    ranks: Sequence[int] | None = None,
    backend: str | None = None,
    timeout: timedelta | None = None,
    nccl_comm_init_option: int = 0,
    nccl_config: Any = None,
) -> Any:
    everyone = world.default_group()
    if everyone is None:
        raise RuntimeError("new_group: call paddle.distributed.init_parallel_env() first")
    if backend is not None and backend.lower() != world.MPI:
        raise ArgumentError(
            f"new_group: backend={backend!r}: under paddlempi the only one is 'mpi'; leave it out"
        )
    members = sorted(everyone.ranks if ranks is None else ranks)
    number = world.next_id()  # used up even if this fails, on whichever ranks it does
    made = core_group.new_group(members, timeout)
    return world.enter(made, members, ProcessGroupMPI(made) if made.rank() >= 0 else None, number)


def destroy_process_group(group: Any = None) -> None:
    if group is None or group is world.default_group():
        if core_group.is_initialized():
            core_group.destroy_process_group()  # which comes to world.forget
        else:
            world.forget()
        return
    if not world.remove(group):
        raise ArgumentError(f"destroy_process_group: group {group.id} was destroyed before")
    if group.process_group is not None:
        core_group.destroy_process_group(group.process_group.core)


def wait(tensor: Any, group: Any = None, use_calc_stream: bool = True) -> None:
    if not paddle.in_dynamic_mode():
        return
    for one in world.known_groups() if group is None else [group]:
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
    return patches.original(_SPAWN, "spawn")(func, args, nprocs, join, daemon, **options)


def replacements() -> list[patches.Replacement]:
    """The functions, and what ``all_reduce`` asks of Paddle's core before it comes to ours."""
    rows = [
        *patches.in_the_places_of(new_group, collective, dist),
        *patches.in_the_places_of(destroy_process_group, groups, dist, dist.communication),
        *patches.in_the_places_of(wait, groups, dist, dist.communication),
        *patches.in_the_places_of(spawn, _SPAWN, dist),
    ]
    if not hasattr(paddle_core, "nccl_version"):
        # AVG asks for it on the CPU too, where the wheel has none: with a new one Paddle hands
        # AVG to the process group.
        rows.append((paddle_core, "nccl_version", lambda: 99999))
    return rows
