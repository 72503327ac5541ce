"""Collectives over sparse tensors in COO layout: indices and values are gathered."""

from __future__ import annotations

from typing import Any

from .work import Work

__all__ = ["Steps", "allgather", "allreduce", "broadcast"]


class Steps:
    """The operations of the core that one collective over sparse tensors is made of."""

    def settle(self) -> None:
        """Drive it until nothing is left to submit."""


def allreduce(group: Any, tensor: Any, code: int, scale: float) -> Work:
    raise NotImplementedError


def broadcast(group: Any, tensor: Any, root: int) -> Work:
    raise NotImplementedError


def allgather(group: Any, outputs: list[Any], tensor: Any) -> Work:
    raise NotImplementedError
