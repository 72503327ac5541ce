"""The world of torch's groups: begins it, and compares torch's and the user's ranks with its own.

torch's global ranks are the world's, which are MPI's under an MPI's launcher. If the program has
called ``paddlempi.init_process_group`` itself, torch's groups belong to that world, and destroying
them does not end it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from .. import _native, group, objects
from .._pages import PAGES
from ..errors import ArgumentError
from ..group_arguments import to_seconds
from ..startup import worlds
from . import environment
from .errors import LauncherError

__all__ = [
    "Asked",
    "agree",
    "default_group",
    "end",
    "expect",
    "joined",
    "reformed",
    "start",
    "trust",
]

_ours = False  # the world was started here
_checked: group.ProcessGroup | None = None  # the world that RANK and WORLD_SIZE were compared with


def joined() -> bool:
    """Whether there is a world in this process."""
    return group.is_initialized()


def trust() -> None:
    """Compare this world with no variables: an elastic job has other ranks than its launcher."""
    global _checked
    _checked = group.WORLD


class Asked(NamedTuple):
    """The arguments of an init that say which ranks there are and where they meet."""

    rank: int = -1
    size: int = -1
    method: str | None = None
    store: Any = None


def start(timeout: timedelta, asked: Asked = Asked()) -> group.ProcessGroup:  # noqa: B008
    """Return the group of all ranks. Begin the world if there is none. Collective over the job.

    Args:
        timeout: the deadline.
        asked: for ranks that no MPI's launcher has started; it does not count otherwise.

    Raises:
        LauncherError: the launcher belongs to another MPI.
        ArgumentError: ``RANK`` or ``WORLD_SIZE`` of some rank is not what MPI says; or as
            :func:`paddlempi.init_process_group`.
        StartError, TimeoutError: as :func:`paddlempi.init_process_group`.
    """
    global _ours, _checked
    if not group.is_initialized():
        meets = worlds.find(*asked).way == "store"
        if meets:
            group.init_process_group(
                "mpi",
                timeout=timeout,
                init_method=asked.method,
                rank=asked.rank,
                world_size=asked.size,
                store=asked.store,
            )
        else:
            group.init_process_group("mpi", timeout=timeout)
        _ours = True
        try:
            if meets:
                _checked = group.WORLD  # the ranks have told each other what they are
            else:
                _check()
        except BaseException:
            end()
            raise
    else:
        _check()
    assert group.WORLD is not None
    return group.WORLD


def default_group(timeout: timedelta) -> tuple[group.ProcessGroup, bool]:
    """Return the core's group for torch's default group, and whether the world ends with it.

    If the program started the world itself, this is a new group of all ranks, which has torch's
    deadline and which torch's operations may break without breaking the program's group.
    """
    all_ranks = start(timeout)
    if not _ours:
        return group.new_group(range(all_ranks.size()), timeout), False
    seconds = to_seconds(timeout, "init_process_group")
    _native.control("set_timeout", group=all_ranks._id, timeout=seconds)
    return all_ranks, True


def reformed(timeout: timedelta) -> group.ProcessGroup:
    """Return the core's group of all ranks for torch's default group, after a reform.

    Args:
        timeout: the deadline of its operations.
    """
    global _ours, _checked
    all_ranks = group.WORLD
    assert all_ranks is not None
    _ours, _checked = True, all_ranks
    seconds = to_seconds(timeout, "reconfigure")
    _native.control("set_timeout", group=all_ranks._id, timeout=seconds)
    return all_ranks


def end() -> None:
    """End the world if it was started here."""
    global _ours
    if _ours and group.is_initialized():
        group.destroy_process_group()
    _ours = False


def expect(rank: int, size: int) -> None:
    """Compare the ``rank`` and ``world_size`` of an init with MPI's. Collective over the world.

    If they are wrong, the world is ended if it was started here.

    Args:
        rank, size: what the caller gave; -1: nothing.

    Raises:
        LauncherError: ``size`` is above 1, and MPI knows of this process only.
        ArgumentError: on some rank they differ from MPI's; the message says where.
    """
    mpi_rank, mpi_size = group.get_rank(), group.get_world_size()
    if size > 1 and mpi_size == 1:
        end()
        raise _alone_error(f"world_size={size}", size)
    given = {"rank": (rank, mpi_rank), "world_size": (size, mpi_size)}
    wrong = [f"{name}={asked}" for name, (asked, is_) in given.items() if asked not in (-1, is_)]
    problem = f"{', '.join(wrong)} given to MPI's rank {mpi_rank} of {mpi_size}" if wrong else None
    advice = (
        "leave rank and world_size out, because MPI knows them, or give MPI's. A framework that "
        f"gives them reads them from variables: {PAGES}/torch.md says which"
    )
    try:
        _raise_together("init_process_group", problem, advice)
    except ArgumentError:
        end()
        raise


def agree(rank: int, size: int, what: str) -> None:
    """Compare torch's rank and size, which did not come from MPI, with MPI's.

    Collective over the world.

    Args:
        rank, size: torch's.
        what: the name of the function that asks, for error messages.

    Raises:
        LauncherError: ``size`` is above 1, and MPI knows of this process only.
        ArgumentError: on some rank they differ from MPI's; the message says where.
    """
    mpi = (group.get_rank(), group.get_world_size())
    if size > 1 and mpi[1] == 1:
        raise _alone_error(f"torch's group has {size} ranks", size, what)
    problem = None
    if (rank, size) != mpi:
        problem = f"torch's rank {rank} of {size} is MPI's rank {mpi[0]} of {mpi[1]}"
    _raise_together(what, problem, "give init_process_group the rank and world_size of MPI")


def _check() -> None:
    """Compare ``RANK`` and ``WORLD_SIZE`` with MPI's, once for each world. Collective."""
    global _checked
    if group.WORLD is _checked:
        return
    told = environment.told_size()
    if told > 1 and group.get_world_size() == 1:
        raise _alone_error(f"WORLD_SIZE={told}", told)
    problem = environment.contradiction(group.get_rank(), group.get_world_size())
    _raise_together(
        "init_process_group", problem, "unset it, or start the job with mpirun or srun alone"
    )
    _checked = group.WORLD


def _alone_error(why: str, size: int, what: str = "init_process_group") -> Exception:
    """Make the error of a process that is alone in MPI's world, although ``why`` names others."""
    error: Exception = LauncherError(
        f"{what}: {why}, but MPI knows of this process alone. Processes that "
        "torch.multiprocessing.spawn or another tool starts are unknown to MPI, and each becomes a "
        f"world of one rank: let MPI's launcher start them, mpirun -np {size} python train.py (or "
        "srun), and call the function directly where the program calls spawn; or use "
        'backend="gloo"'
    )
    return error


def _raise_together(what: str, problem: str | None, advice: str) -> None:
    """Raise ArgumentError on all ranks if some rank has a problem. Collective over the world."""
    of_ranks: list[Any] = [None] * group.get_world_size()
    objects.all_gather_object(of_ranks, problem)
    problems = [text for text in of_ranks if text]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ArgumentError(f"{what}: {'; '.join(problems[:3])}{more}: {advice}")
