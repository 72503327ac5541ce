"""Dense parameters on servers: one vector in blocks, which are the rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _native, memory
from . import session
from .optimizers import Optimizer
from .remote import RemoteTable

__all__ = ["Blocks", "split", "spread"]

_LEAST = 8192
"""Elements of the smallest block, as in Fluid: less would cost more in requests than it spreads."""
_MOST = 65536  # the largest dim of a table


class _BlockTable(RemoteTable):
    """A table whose id i lies on server i modulo the number of servers."""

    def _declare(self) -> int:
        number: int = _native.control(
            "ps_declare", name=self._name, by="modulo", **self._config.request()
        )["table"]
        return number


def split(elements: int, servers: int) -> tuple[int, int]:
    """Return how many blocks a vector has, and the elements of each; the last may be padded.

    There are as many blocks on every server, if that does not make them smaller than 8192.
    """
    blocks = min(servers, max(1, elements // _LEAST))
    blocks *= -(-elements // (blocks * _MOST))
    return blocks, -(-elements // blocks)


class Blocks:
    """A vector of float32 on the servers, with an optimizer.

    Args:
        name: the name of its table.
        elements: how many the vector has, above 0.
        optimizer: what a push does. It treats all elements alike: it is not row-wise, and clips no
            norms.

    Attributes:
        values: the vector as it was last pulled, in this rank's heap, with its padding. [elements]
            and more.
        gradients: what the next push takes, of the same shape. The caller fills the first
            ``elements``.
    """

    def __init__(self, name: str, elements: int, optimizer: Optimizer) -> None:
        blocks, block = split(elements, len(session.pservers()))
        self.table = _BlockTable(name, block, optimizer)
        self._ids = memory.empty(blocks, "int64")
        self._ids[:] = range(blocks)
        self._rows = memory.zeros((blocks, block))
        self._gradients = memory.zeros((blocks, block))
        self.values = self._rows.reshape(-1)
        self.gradients = self._gradients.reshape(-1)

    def write(self) -> None:
        """Set the vector on the servers to ``values``. One trainer does so, before all pull."""
        self.table.write(self._ids, self._rows)

    def request(self) -> tuple[RemoteTable, Any, Any]:
        """Return what :func:`paddlempi.ps.push` or :func:`paddlempi.ps.note` takes."""
        return self.table, self._ids, self._gradients

    def pull(self) -> None:
        """Set ``values`` to the vector on the servers."""
        self.table.pull(self._ids, self._rows)


def spread(vectors: Sequence[Blocks]) -> None:
    """Set vectors on the servers to those of the first trainer. All trainers call it."""
    found = session.as_trainer("ps.DistributedOptimizer")
    if found.rank == found.trainers[0]:
        for vector in vectors:
            vector.write()
    session.barrier("dense parameters")
