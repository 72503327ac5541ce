"""The machine that a function of the planner is given: this job's, and the same on all ranks."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed as dist

from ...errors import ArgumentError
from ...planner import here
from ...planner.machine import Machine, read

__all__ = ["of_rank_0"]


def of_rank_0(machine: Machine | str | os.PathLike[str] | None, function: str) -> Machine | None:
    """Return the machine of rank 0. Collective over all ranks, if there is a default group.

    Args:
        machine: what was measured, or its file, which only rank 0 needs to have.
        function: for the errors.

    Raises:
        ArgumentError: the file cannot be read, or is of another machine than this job; on all
            ranks.
    """
    together = dist.is_initialized() and dist.get_backend() != "fake"
    told: list[Any] = [None]
    if not together or dist.get_rank() == 0:
        try:
            told = [_read(machine, function)]
        except ArgumentError as error:
            told = [str(error)]
    places = [here.place()]
    if together:
        dist.broadcast_object_list(told)
        places *= dist.get_world_size()
        dist.all_gather_object(places, places[0])
    found = told[0]
    if isinstance(found, str):
        raise ArgumentError(found)
    other = here.difference(found, places) if found is not None else ""
    if other:
        raise ArgumentError(
            f"{function}: machine: it was measured on another one: {other}; calibrate this one"
        )
    measured: Machine | None = found
    return measured


def _read(machine: Any, function: str) -> Machine | None:
    if machine is None or isinstance(machine, Machine):
        return machine
    if isinstance(machine, (str, os.PathLike)):
        return read(os.fspath(machine))
    raise ArgumentError(
        f"{function}: machine is a {type(machine).__name__}: it must be a Machine, or its file"
    )
