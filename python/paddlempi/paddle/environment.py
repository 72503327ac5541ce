"""The variables that Paddle reads instead of asking: who am I, how many, where are the others."""

from __future__ import annotations

import os

__all__ = ["fill"]


def fill(rank: int, size: int) -> None:
    """Set what ``paddle.distributed.launch`` would set, from MPI."""
    os.environ["PADDLE_TRAINER_ID"] = str(rank)
    os.environ["PADDLE_TRAINERS_NUM"] = str(size)
    endpoints = [f"127.0.0.1:{6170 + i}" for i in range(size)]
    os.environ.setdefault("PADDLE_TRAINER_ENDPOINTS", ",".join(endpoints))
    os.environ.setdefault("PADDLE_CURRENT_ENDPOINT", endpoints[rank])
