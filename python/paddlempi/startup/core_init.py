"""The beginning of a world: the core's ``init``, with a meeting before where MPI knows no ranks."""

from __future__ import annotations

import os
import sys
from typing import Any

from .. import _native, memory
from ..errors import ArgumentError, Error, MPINotFoundError
from . import way_tables, worlds
from .worlds import World

__all__ = ["begin", "compare", "warn"]


def begin(world: World, store: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Start the core in a world, and return its answer to ``init``.

    Args:
        world: what :func:`worlds.find` returned.
        store: the ``store`` of the init, or None.
        arguments: of the control method ``init``, but ``world``.
    """
    arguments = {**arguments, "way_tables": way_tables.folders()}
    if world.way == "mpi":
        try:
            return _native.control("init", **arguments)
        except MPINotFoundError:
            told = arguments["mpi"] is not None or os.environ.get("PADDLEMPI_MPI")
            if told or world.size > 1 or worlds.transport() == "mpi":
                raise
            # A process alone needs no MPI.
            world = world._replace(way="alone")
    from .rendezvous.joining import Joining  # only where no launcher's MPI knows the ranks

    named = arguments["mpi"] is not None
    joining = Joining(world, store, arguments["timeout"], _version(), named)
    try:
        answer = _native.control("init", **arguments, world=joining.arguments)
    except BaseException as error:
        failed = joining.end(failed=True)
        if isinstance(failed, Error) and isinstance(error, Exception) and str(failed) in str(error):
            raise failed from None  # the core has it as a text, if it has no other reason
        raise
    joining.end()
    return answer


def _version() -> str:
    return str(sys.modules[__package__.partition(".")[0]].__version__)


def compare(answer: dict[str, Any], rank: int, size: int) -> None:
    """Compare the ``rank`` and ``world_size`` of an init with those of the world that it began."""
    if rank in (-1, answer["rank"]) and size in (-1, answer["size"]):
        return
    _native.control("destroy")
    raise ArgumentError(
        f"init_process_group: rank={rank}, world_size={size} given to rank {answer['rank']} of "
        f"{answer['size']}: leave them out, because the launcher knows them, or give the same"
    )


def warn(answer: dict[str, Any], *, stacklevel: int) -> None:
    """Warn of what an init has found that is no error, each thing on one rank."""
    if answer["no_heaps"] and answer["local_rank"] == 0:  # one warning for a node
        memory.warn("init_process_group", answer["no_heaps"], stacklevel=stacklevel + 1)
    if answer["tuning_problem"]:  # of rank 0
        way_tables.warn(answer["tuning_problem"], stacklevel=stacklevel + 1)
