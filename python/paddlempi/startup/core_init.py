"""The beginning of a world: the core's ``init``, with a meeting before where MPI knows no ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .. import _log, _marks, _native, memory
from ..errors import ArgumentError, Error, MPINotFoundError
from . import way_tables, worlds
from .worlds import World

__all__ = ["Reform", "begin", "compare", "settings", "warn"]


class Reform(NamedTuple):
    """What a beginning is told that takes the place of a world."""

    generation: int
    """Of the world that this process had last; -1: it had none."""
    look: Callable[[], None]
    """Raises an error if the beginning has to end. It is called now and then."""
    members: Sequence[int] | None
    """The ranks of MPI's world that the new world is of; None: it is of one node."""


def settings(
    seconds: float, abort_on_death: bool | None, mpi: str | None = None, comm: int | None = None
) -> dict[str, Any]:
    """Return the arguments of the core's ``init`` that say nothing of the ranks."""
    return {
        "mpi": mpi,
        "comm": comm,
        "timeout": seconds,
        "sys_prefix": sys.prefix,
        "trial": _native.trial(),
        "abort_on_death": abort_on_death,
        "end_file": _marks.file(),
    }


def begin(
    world: World, store: Any, arguments: dict[str, Any], instead: Reform | None = None
) -> dict[str, Any]:
    """Start the core in a world, and return its answer to ``init``, or ``reform``.

    Args:
        world: what :func:`worlds.find` returned.
        store: the ``store`` of the init, or None.
        arguments: of the control method, but ``world``.
        instead: of a world that takes the place of another one.
    """
    _log.begin()
    _log.info("init_process_group: the world is by %s: %s", world.way, world.why)
    answer = _begin(world, store, {**arguments, "way_tables": way_tables.folders()}, instead)
    _log.set_rank(answer["rank"])
    if _log.wanted():
        _tell(answer)
    return answer


def _tell(answer: dict[str, Any]) -> None:
    """Log what the world is like."""
    told = _native.control("info", sys_prefix=sys.prefix, mpi=None)
    place = "rank {rank} of {size}, rank {local_rank} of {local_size} of its node".format(**answer)
    _log.info("%s, messages go by %s, core %s", place, answer["transport"], told["build_id"])
    mpi = told["mpi"]
    if mpi is None:
        _log.info("no MPI: %s", told["mpi_error"])
    else:
        _log.info("MPI %s of %s: %s", mpi["version"] or mpi["name"], mpi["path"], mpi["why"])
    for row in told["algorithms"] or ():
        _log.debug("%s of %s from %s bytes by %s", *(row[name] for name in _TABLE))
    if told["tuning"] is not None:
        _log.info("table of ways: %s", told["tuning"]["file"] or "none")


_TABLE = ("operation", "dtype", "from", "algorithm")


def _begin(
    world: World, store: Any, arguments: dict[str, Any], instead: Reform | None
) -> dict[str, Any]:
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
    within = arguments.get("within", arguments["timeout"])
    joining = Joining(world, store, within, _version(), named, *(instead or ())[:2])
    method, given = "init" if instead is None else "reform", joining.arguments
    if instead is not None and instead.members is not None:
        given |= {"members": list(instead.members), "transport": "mpi"}
    try:
        answer = _native.control(method, **arguments, world=given)
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
