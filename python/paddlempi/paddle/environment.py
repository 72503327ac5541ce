"""The variables that Paddle reads instead of asking: who am I, how many, where are the others."""

from __future__ import annotations

import os
import socket

from .. import group, objects
from ..errors import LauncherError

__all__ = ["clear", "fill"]

_ours: set[str] = set()


def fill(rank: int, size: int) -> None:
    """Set what ``paddle.distributed.launch`` would set, from MPI, unless that was done.

    Collective over the world.

    Raises:
        LauncherError: ``paddle.distributed.launch`` started more processes than MPI knows of.
    """
    if _ours:
        return
    launched = os.environ.get("PADDLE_TRAINERS_NUM")
    if launched not in (None, str(size)):
        raise LauncherError(
            f"PADDLE_TRAINERS_NUM={launched}, but MPI has {size} rank(s): where "
            "paddle.distributed.launch starts the processes MPI does not connect them; "
            f"start the job with mpirun -np {launched} python train.py, or with srun"
        )
    endpoints: list[str] = [""] * size
    objects.all_gather_object(endpoints, _endpoint(size))
    for name, value in (
        ("PADDLE_TRAINER_ID", str(rank)),
        ("PADDLE_TRAINERS_NUM", str(size)),
        ("PADDLE_LOCAL_RANK", str(group.get_local_rank())),
        ("PADDLE_LOCAL_SIZE", str(group.get_local_size())),
        ("PADDLE_TRAINER_ENDPOINTS", ",".join(endpoints)),
        ("PADDLE_CURRENT_ENDPOINT", endpoints[rank]),
    ):
        if name not in os.environ:
            os.environ[name] = value
            _ours.add(name)


def clear() -> None:
    """Take back what :func:`fill` has set."""
    for name in _ours:
        os.environ.pop(name, None)
    _ours.clear()


def _endpoint(size: int) -> str:
    """An address of this rank, with a port that is free now: Paddle counts and compares them."""
    host = "127.0.0.1" if group.get_local_size() == size else socket.gethostname()
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{host}:{probe.getsockname()[1]}"
