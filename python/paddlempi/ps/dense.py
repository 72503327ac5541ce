"""Dense parameters on servers: one vector in blocks, which are the rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _native, memory
from . import session
from .optimizers import Optimizer
from .remote import RemoteTable

__all__ = ["Blocks", "spread"]

_BLOCK = 8192
"""Elements of a block, the fewest that Fluid makes. It does not depend on the number of servers, so
that another number of servers can read a cut."""


class _BlockTable(RemoteTable):
    """A table whose id i lies on server i modulo the number of servers."""

    def __init__(self, name: str, elements: int, optimizer: Optimizer) -> None:
        self._elements = elements
        super().__init__(name, min(elements, _BLOCK), optimizer)

    def _declare(self) -> int:
        number: int = _native.control(
            "ps_declare",
            name=self._name,
            by="modulo",
            dims=[self._elements],
            **self._config.request(),
        )["table"]
        return number


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
        self.table = _BlockTable(name, elements, optimizer)
        shape = (-(-elements // self.table.dim), self.table.dim)
        self._ids = memory.empty(shape[0], "int64")
        self._ids[:] = range(shape[0])
        self._rows = memory.zeros(shape)
        self._gradients = memory.zeros(shape)
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
