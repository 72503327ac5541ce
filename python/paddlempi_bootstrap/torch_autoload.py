"""The code that ``import torch`` runs through the entry-point group ``torch.backends``.

It registers the backends ``mpi`` and ``paddlempi`` with ``torch.distributed``
(:mod:`.torch_stubs`). Under an MPI's launcher it also sets the variables in which torchrun tells
frameworks their ranks (:mod:`.torchrun_variables`). It does no more: the first use of one of the
backends imports paddlempi, and init starts MPI. An error here must not stop ``import torch``: it is
kept in :data:`error`, and ``python -m paddlempi info`` shows it.
"""

from __future__ import annotations

import os
from typing import Any

from . import starters, torch_stubs, torchrun_variables
from .known_launchers import BY_MPI
from .mpi_launcher import Place
from .torch_stubs import SETTING, entered

__all__ = ["autoload", "entered", "error"]

error: BaseException | None = None
"""Why ``import torch`` could not register the names; None if it could, or did not try."""


def autoload() -> None:
    """The entry point. Never raises."""
    global error
    try:
        torch_stubs.load = _load
        torch_stubs.register(replace_native=False)
        if "mpi" in entered:
            place, starter = starters.nearest()
            if starter is None:
                torchrun_variables.fill(place, tell=place is not None and _to_be_told(place))
            else:
                torchrun_variables.forget()
    except Exception as reason:
        error = reason


def _load() -> Any:
    """Import the front for a stub."""
    torch_stubs.lazily = True
    try:
        from paddlempi.torch import activation
    finally:
        torch_stubs.lazily = False
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
