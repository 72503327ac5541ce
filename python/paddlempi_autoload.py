"""The code that ``import torch`` runs through the entry-point group ``torch.backends``.

It registers the backends ``mpi`` and ``paddlempi`` with ``torch.distributed``
(``paddlempi_stubs``). Under an MPI's launcher it also sets the variables in which torchrun tells
frameworks their ranks (``paddlempi_place``). It does no more: the first use of one of the backends
imports paddlempi, and init starts MPI. This module is at the top level, so that importing it does
not import ``paddlempi``. An error here must not stop ``import torch``: it is kept in :data:`error`,
and ``python -m paddlempi info`` shows it.
"""

from __future__ import annotations

import os
from typing import Any

import paddlempi_place
import paddlempi_starts
import paddlempi_stubs
from paddlempi_launchers import BY_MPI
from paddlempi_place import Place
from paddlempi_stubs import SETTING, entered

__all__ = ["entered", "error", "torch"]

error: BaseException | None = None
"""Why ``import torch`` could not register the names; None if it could, or did not try."""


def torch() -> None:
    """The entry point. Never raises."""
    global error
    try:
        paddlempi_stubs.load = _load
        paddlempi_stubs.register(replace_native=False)
        if "mpi" in entered:
            place, start = paddlempi_starts.nearest()
            if start is None:
                paddlempi_place.fill(place, tell=place is not None and _to_be_told(place))
            else:
                paddlempi_place.forget()
    except Exception as reason:
        error = reason


def _load() -> Any:
    """Import the front for a stub."""
    paddlempi_stubs.lazily = True
    try:
        from paddlempi.torch import activation
    finally:
        paddlempi_stubs.lazily = False
    return activation


def _to_be_told(place: Place) -> bool:
    """Whether ``import torch`` shall set the variables in a program that may not expect them.

    It shall not if

    * the job has one rank;
    * ``srun`` has started the ranks without an MPI plugin;
    * another program has set ``RANK``, ``WORLD_SIZE`` or ``LOCAL_RANK`` to other values;
    * a rank sees some GPUs, but fewer than there are ranks on its node, because programs use
      ``LOCAL_RANK`` as the index of a GPU.
    """
    setting = os.environ.get(SETTING)
    if place.size < 2 or setting == "0":
        return False
    if setting == "1":
        return True
    ranks = {"RANK": place.rank, "WORLD_SIZE": place.size, "LOCAL_RANK": place.local_rank}
    others = any(os.environ.get(name) not in (None, str(value)) for name, value in ranks.items())
    plugins = BY_MPI[place.mpi].plugins
    by_mpi = not plugins or any(name in os.environ for name in plugins)
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    seen = 0 if devices in ("", "-1", "NoDevFiles") else devices.count(",") + 1
    return by_mpi and not others and (seen == 0 or place.local_size <= seen)
