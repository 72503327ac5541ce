"""The private names of torch, all of them: how its groups come to be ours.

``paddlempi_autoload`` has put stubs in their places, which come here. Read on torch 2.8
to 2.15; what each does stands with it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any

import torch.distributed.distributed_c10d as c10d

from .. import group
from . import environment, world
from .process_group import ProcessGroupMPI

__all__ = [
    "activate",
    "create",
    "create_native",
    "env_rendezvous",
    "monitored_barrier",
    "new_group_with_tag",
    "split_group",
    "store",
]

_NAMES = ("mpi", "paddlempi")


def activate() -> None:
    """What ``import paddlempi.torch`` does beside entering the names."""
    environment.fill()


def _original(name: str) -> Any:
    return c10d._paddlempi[name]


def _caller(function: str) -> FrameType | None:
    """The innermost frame of a function of torch; some of what it knows is not passed on."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame


def _local(function: str, name: str, absent: Any) -> Any:
    frame = _caller(function)
    return absent if frame is None else frame.f_locals.get(name, absent)


def store(*arguments: Any) -> Any:
    """``c10d.Store``, called by init for the MPI backend: a real store instead of a placeholder."""
    if arguments:
        return _original("Store")(*arguments)
    timeout = _local("init_process_group", "timeout", c10d.default_pg_timeout)
    world.start(timeout)
    made, _, _ = world.new_store(timeout)
    return made


def env_rendezvous(url: str, timeout: timedelta, **options: Any) -> Iterator[Any]:
    """``env://`` where MPI knows better: used by strings with a colon, such as ``"cpu:mpi"``."""
    if not environment.rendezvous_is_ours():
        yield from _original("env")(url, timeout=timeout, **options)
        return
    members = world.start(timeout)
    made, _, _ = world.new_store(timeout)
    yield made, members.rank(), members.size()


def create_native(ranks: list[int]) -> Any:
    """``ProcessGroupMPI.create``: up to torch 2.12 the only way in for the name ``mpi``."""
    timeout = _local("_new_process_group_helper", "timeout", c10d.default_pg_timeout)
    return _make(ranks, timeout)


def create(options: Any, pg_options: Any) -> Any:
    """The creator that plugins register; non-members never come here."""
    return _make(options.global_ranks_in_group, options.timeout)


def _make(ranks: Sequence[int], timeout: timedelta) -> Any:
    everyone = world.start(timeout)
    if not ranks:
        return ProcessGroupMPI(everyone, timeout, is_world=True)
    members = group.new_group(list(ranks), timeout)
    if members.rank() < 0:
        return None
    return ProcessGroupMPI(members, timeout)


def new_group_with_tag(*arguments: Any, **named: Any) -> Any:
    """``new_group``: as torch's."""
    return _original("_new_group_with_tag")(*arguments, **named)


def split_group(*arguments: Any, **named: Any) -> Any:
    """``split_group``: as torch's."""
    return _original("split_group")(*arguments, **named)


def monitored_barrier(*arguments: Any, **named: Any) -> Any:
    """``monitored_barrier``: as torch's."""
    return _original("monitored_barrier")(*arguments, **named)
