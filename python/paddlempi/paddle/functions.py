"""Replacements for the functions of ``paddle.distributed`` that make, end or know groups."""

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
from paddlempi_bootstrap import starters

from .. import group as core_group
from .. import objects
from ..errors import ArgumentError, LauncherError
from . import patches, world
from .process_group import ProcessGroupMPI

__all__ = ["make_default", "replacements"]

# Modules that cannot be imported by their names, because functions have the same names.
_SPAWN = sys.modules["paddle.distributed.spawn"]
_SCATTER = sys.modules["paddle.distributed.communication.scatter"]


def make_default(timeout: timedelta | float) -> Any:
    """Return Paddle's default group of all ranks. If there is none, start MPI and make it."""
    group = world.default_group()
    if group is None:
        core = world.start(timeout)
        group = world.enter(core, core._ranks, ProcessGroupMPI(core), 0)
    return group


def new_group(
    ranks: Sequence[int] | None = None,
    backend: str | None = None,
    timeout: timedelta | None = None,
    nccl_comm_init_option: int = 0,
    nccl_config: Any = None,
) -> Any:
    default = world.default_group()
    if default is None:
        raise RuntimeError("new_group: call paddle.distributed.init_parallel_env() first")
    if backend is not None and backend.lower() != world.MPI:
        raise ArgumentError(
            f"new_group: backend={backend!r}: under paddlempi the only one is 'mpi'; leave it out"
        )
    members = sorted(default.ranks if ranks is None else ranks)
    # Taken even if core_group.new_group fails on some ranks: later groups must have the same ids on
    # all ranks.
    number = world.next_id()
    core = core_group.new_group(members, timeout)
    return world.enter(core, members, ProcessGroupMPI(core) if core.rank() >= 0 else None, number)


def destroy_process_group(group: Any = None) -> None:
    if group is None or group is world.default_group():
        if core_group.is_initialized():
            core_group.destroy_process_group()  # it calls world.forget
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
    for known in world.known_groups() if group is None else [group]:
        if known.process_group is not None:
            known.process_group.wait_for(tensor)


def scatter_object_list(
    out_object_list: list[Any],
    in_object_list: list[Any] | None = None,
    src: int = 0,
    group: Any = None,
) -> None:
    """As Paddle's, which tells the length of the objects to the world, not to the group."""
    group = world.default_group() if group is None else group
    if group is None:
        raise RuntimeError("scatter_object_list: call init_parallel_env() first")
    if groups._warn_cur_rank_not_in_group(group):
        return
    out = [None]
    objects.scatter_object_list(out, in_object_list, src, group.process_group.core)
    out_object_list[:] = out


def spawn(
    func: Any,
    args: Any = (),
    nprocs: int = -1,
    join: bool = True,
    daemon: bool = False,
    **options: Any,
) -> Any:
    found, _ = starters.nearest()
    if found is not None and found.size > 1:
        raise LauncherError(
            f"spawn: {found.path or found.name} has started {found.size} processes, each "
            "of which would start others that MPI does not connect: call "
            f"{getattr(func, '__name__', 'func')}(...) itself, without spawn"
        )
    return patches.original(_SPAWN, "spawn")(func, args, nprocs, join, daemon, **options)


def replacements() -> list[patches.Replacement]:
    """Return the replacements of these functions, and one that lets reductions take AVG."""
    rows = [
        *patches.replacements_for(new_group, collective, dist),
        *patches.replacements_for(destroy_process_group, groups, dist, dist.communication),
        *patches.replacements_for(wait, groups, dist, dist.communication),
        *patches.replacements_for(scatter_object_list, _SCATTER, dist, dist.communication),
        *patches.replacements_for(spawn, _SPAWN, dist),
    ]
    if not hasattr(paddle_core, "nccl_version"):
        # For AVG, Paddle's all_reduce, reduce and reduce_scatter ask for the version of NCCL, also
        # on the CPU, where the wheel has no such function. If NCCL is new enough, they pass AVG to
        # the process group.
        rows.append((paddle_core, "nccl_version", lambda: 99999))
    return rows
