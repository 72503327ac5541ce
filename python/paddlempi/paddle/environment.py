"""The environment variables that tell Paddle the rank, the number of ranks and the addresses."""

from __future__ import annotations

import os
import socket
from typing import Any

from paddlempi_bootstrap import starters

from .. import _processes, group, objects
from ..errors import LauncherError
from ..startup import unused_rank
from ..startup.paddle_variables import PADDLE

__all__ = ["check_process", "clear", "fill_from_launcher", "fill_from_mpi"]

_ENDPOINTS = ("PADDLE_TRAINER_ENDPOINTS", "PADDLE_CURRENT_ENDPOINT")

_filled = False
"""Whether :func:`fill_from_mpi` has set the variables of the world that exists."""


def fill_from_launcher() -> None:
    """Set the variables whose values the launcher knows, and no others.

    If this process is one of several ranks, it warns when it ends without having started MPI.
    """
    global _filled
    _filled = False
    found, _ = starters.nearest()
    if PADDLE.fill(found):
        unused_rank.watch(found)


def check_process() -> None:
    """Check that MPI knows this process. Called before MPI starts in it.

    Raises:
        LauncherError: a rank that runs MPI started this process, or ``paddle.distributed.spawn``
            started it and gave it another rank.
    """
    found, _ = starters.nearest()
    if found is not None and _processes.is_worker():
        problem = _contradiction(found.rank, found.size)
        if problem:  # several workers of one rank: MPI would crash
            raise LauncherError(problem)
    above = PADDLE.rank_above(found)
    if above:
        raise LauncherError(
            f"init_parallel_env: process {above}, which started this one, is the rank that MPI "
            "knows: call it there, or start this program as a job of its own, with mpirun and "
            "without its parent's environment"
        )


def fill_from_mpi(rank: int, size: int, compare: bool = True) -> None:
    """Set from MPI what ``paddle.distributed.launch`` would set, unless that was done.

    Collective over the world.

    Args:
        rank, size: of this world.
        compare: False: the ranks are those of an elastic job, whatever a launcher has set.

    Raises:
        LauncherError: on all ranks. On some rank a variable that paddlempi did not set contradicts
            MPI.
    """
    global _filled
    if _filled and compare:
        return
    if not compare:
        for name in (*PADDLE.table, *_ENDPOINTS):
            os.environ.pop(name, None)
    endpoint = _endpoint(size)
    gathered: list[Any] = [None] * size
    problem = _contradiction(rank, size) if compare else None
    objects.all_gather_object(gathered, (endpoint, problem))
    wrong = [problem for _, problem in gathered if problem]
    if wrong:
        more = f" (and on {len(wrong) - 1} other rank(s))" if len(wrong) > 1 else ""
        raise LauncherError(f"{wrong[0]}{more}")
    PADDLE.set_from_mpi(
        {
            "rank": rank,
            "size": size,
            "local_rank": group.get_local_rank(),
            "local_size": group.get_local_size(),
        },
        dict(zip(_ENDPOINTS, (",".join(found for found, _ in gathered), endpoint), strict=True)),
    )
    _filled = True


def clear() -> None:
    """Unset the variables that paddlempi has set, and do not warn of an end without MPI."""
    global _filled
    _filled = False
    PADDLE.clear()
    unused_rank.unwatch()


def _contradiction(rank: int, size: int) -> str | None:
    """Describe a contradiction between MPI and a variable that paddlempi did not set, or None."""

    def differs(name: str, value: int) -> bool:
        return not PADDLE.is_ours(name) and os.environ.get(name, str(value)) != str(value)

    launched = os.environ.get("PADDLE_TRAINERS_NUM")
    if differs("PADDLE_TRAINERS_NUM", size):
        advice = (
            f"start the job with mpirun -np {launched} python train.py, or with srun"
            if size == 1
            else "unset it, and let mpirun or srun start the script itself"
        )
        return (
            f"PADDLE_TRAINERS_NUM={launched}, but MPI has {size} rank(s): MPI does not connect "
            f"processes that paddle.distributed.launch or spawn has started; {advice}"
        )
    if differs("PADDLE_TRAINER_ID", rank):
        return (
            f"PADDLE_TRAINER_ID={os.environ['PADDLE_TRAINER_ID']} in the environment of MPI's "
            f"rank {rank}: MPI does not connect processes that paddle.distributed.launch or spawn "
            "has started; unset it, and let mpirun or srun start the script itself"
        )
    return None


def _endpoint(size: int) -> str:
    """Return an address for this rank, with a free port. Paddle counts and compares addresses."""
    host = "127.0.0.1" if group.get_local_size() == size else socket.gethostname()
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{host}:{probe.getsockname()[1]}"
