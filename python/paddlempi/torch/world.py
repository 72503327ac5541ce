"""The world under torch's groups: MPI is started here.

torch's global ranks are MPI's. Where the program called
``paddlempi.init_process_group`` itself, torch's groups join that world and leave it
running when they are destroyed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from .. import _native, group, objects
from ..errors import ArgumentError
from ..group import to_seconds
from . import environment
from .errors import LauncherError

__all__ = ["agree", "default_group", "end", "expect", "joined", "start"]

_ours = False
_checked: group.ProcessGroup | None = None  # the world that the environment was held against


def joined() -> bool:
    """Whether MPI runs in this process."""
    return group.is_initialized()


def start(timeout: timedelta) -> group.ProcessGroup:
    """The group of all ranks; MPI is started if it does not run. Collective over the job.

    Raises:
        LauncherError: the launcher belongs to another MPI, or is torchrun.
        ArgumentError: ``RANK`` or ``WORLD_SIZE``, on some rank, is not what MPI says.
        StartError: as :func:`paddlempi.init_process_group`.
    """
    global _ours
    if not group.is_initialized():
        _refuse_torchrun()
        group.init_process_group("mpi", timeout=timeout)
        _ours = True
        try:
            _check()
        except BaseException:
            end()
            raise
    else:
        _check()
    assert group.WORLD is not None
    return group.WORLD


def default_group(timeout: timedelta) -> tuple[group.ProcessGroup, bool]:
    """The group of the core for torch's default group, and whether its end is MPI's.

    In a world that the program started itself it is a group of its own: torch's deadline,
    and what may break it, are not the program's.
    """
    everyone = start(timeout)
    if not _ours:
        return group.new_group(range(everyone.size()), timeout), False
    seconds = to_seconds(timeout, "init_process_group")
    _native.control("set_timeout", group=everyone._id, timeout=seconds)
    return everyone, True


def end() -> None:
    """Leave MPI, if it was started here."""
    global _ours
    if _ours and group.is_initialized():
        group.destroy_process_group()
    _ours = False


def expect(rank: int, size: int) -> None:
    """Hold what the caller of init gave it against MPI; -1: nothing. Collective over the world.

    Raises:
        LauncherError: ``size`` is above 1, and MPI knows of this process only.
        ArgumentError: on some rank they differ; the message tells which.
    """
    mine, everyone = group.get_rank(), group.get_world_size()
    if size > 1 and everyone == 1:
        end()
        raise _alone(f"world_size={size}", size)
    given = {"rank": (rank, mine), "world_size": (size, everyone)}
    wrong = [f"{name}={asked}" for name, (asked, is_) in given.items() if asked not in (-1, is_)]
    problem = f"{', '.join(wrong)} given to MPI's rank {mine} of {everyone}" if wrong else None
    advice = (
        "leave rank and world_size out, for MPI knows them, or give MPI's. A framework that gives "
        "them reads them from variables: docs/torch.md tells which"
    )
    try:
        _raise_together("init_process_group", problem, advice)
    except ArgumentError:
        end()
        raise


def agree(rank: int, size: int, what: str) -> None:
    """Hold torch's rank and size, which did not come from MPI, against MPI's. Collective.

    Raises:
        LauncherError: ``size`` is above 1, and MPI knows of this process only.
        ArgumentError: on some rank they differ; the message tells which.
    """
    mpi = (group.get_rank(), group.get_world_size())
    if size > 1 and mpi[1] == 1:
        raise _alone(f"torch's group has {size} ranks", size, what)
    problem = None
    if (rank, size) != mpi:
        problem = f"torch's rank {rank} of {size} is MPI's rank {mpi[0]} of {mpi[1]}"
    _raise_together(what, problem, "give init_process_group the rank and world_size of MPI")


def _check() -> None:
    global _checked
    if group.WORLD is _checked:
        return
    told = environment.told_size()
    if told > 1 and group.get_world_size() == 1:
        raise _alone(f"WORLD_SIZE={told}", told)
    problem = environment.contradiction(group.get_rank(), group.get_world_size())
    _raise_together(
        "init_process_group", problem, "unset it, or start the job with mpirun or srun alone"
    )
    _checked = group.WORLD


def _alone(why: str, size: int, what: str = "init_process_group") -> Exception:
    """The error of a process that MPI did not start, where ``why`` speaks of others."""
    error: Exception = LauncherError(
        f"{what}: {why}, but MPI knows of this process alone. Processes that "
        "torch.multiprocessing.spawn or another tool starts are strangers to MPI, each a world of "
        f"its own: let MPI's launcher start them, mpirun -np {size} python train.py (or srun), and "
        'call the function where the program calls spawn; or take backend="gloo"'
    )
    return error


def _raise_together(what: str, problem: str | None, advice: str) -> None:
    everyone: list[Any] = [None] * group.get_world_size()
    objects.all_gather_object(everyone, problem)
    problems = [text for text in everyone if text]
    if problems:
        more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
        raise ArgumentError(f"{what}: {'; '.join(problems[:3])}{more}: {advice}")


def _refuse_torchrun() -> None:
    size = environment.torchrun_size()
    if size > 1:
        raise LauncherError(
            f"init_process_group: torchrun started this process as one of {size}, but tells MPI "
            "nothing of the others: each would be a world of its own. Use MPI's launcher: "
            f"mpirun -np {size} python train.py (or srun), without torchrun; or keep torchrun and "
            'take backend="gloo"'
        )
