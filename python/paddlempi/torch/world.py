"""The world under torch's groups: MPI is started here, and the real store made.

torch's global ranks are MPI's. Where the program called
``paddlempi.init_process_group`` itself, torch's groups join that world and leave it
running when they are destroyed.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .. import group, objects
from . import environment

__all__ = ["end", "joined", "new_store", "start"]

_ours = False


def joined() -> bool:
    """Whether MPI runs in this process."""
    return group.is_initialized()


def start(timeout: timedelta) -> group.ProcessGroup:
    """The group of all ranks; MPI is started if it does not run. Collective over the job.

    Raises:
        LauncherError: the launcher's or torchrun's number of ranks is not MPI's.
        ArgumentError: ``RANK`` or ``WORLD_SIZE`` contradicts MPI.
        StartError: as :func:`paddlempi.init_process_group`.
    """
    global _ours
    if not group.is_initialized():
        group.init_process_group("mpi", timeout=timeout)
        _ours = True
        try:
            environment.verify(group.get_rank(), group.get_world_size())
        except BaseException:
            end()
            raise
    world = group.WORLD
    assert world is not None
    return world


def end() -> None:
    """Leave MPI, if it was started here."""
    global _ours
    if _ours and group.is_initialized():
        group.destroy_process_group()
    _ours = False


def new_store(timeout: timedelta) -> tuple[Any, str, int]:
    """A TCPStore that all ranks share, served by rank 0. Collective over the world.

    Returns:
        The store, and the address and port it is served at.
    """
    rank, size = group.get_rank(), group.get_world_size()
    place: list[Any] = [None]
    store = None
    if rank == 0:
        host = "127.0.0.1" if group.get_local_size() == size else socket.gethostname()
        store = dist.TCPStore(host, 0, size, True, timeout, wait_for_workers=False)
        place = [(host, store.port)]
    objects.broadcast_object_list(place, 0)
    host, port = place[0]
    if store is None:
        store = dist.TCPStore(host, port, size, False, timeout, wait_for_workers=False)
    return store, host, port
