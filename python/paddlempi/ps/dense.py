"""Dense parameters on servers: one vector in blocks, which are the rows of a table."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from .. import _native, memory
from .._ops import TableCall
from . import session
from .optimizers import Optimizer
from .remote import RemoteTable

__all__ = ["BLOCK", "PLACEMENTS", "Blocks", "pull", "spread"]

BLOCK = 8192
"""Elements of a block, the fewest that Fluid makes. It does not depend on the number of servers, so
that another number of servers can read a cut."""

_MOST_LAYOUT = 1000  # characters

PLACEMENTS = ("round_robin", "hash_name")
"""How blocks are dealt to the servers, with Fluid's names."""


class _BlockTable(RemoteTable):
    """A table whose rows are blocks, each on the server that the placement says."""

    def __init__(
        self,
        name: str,
        elements: int,
        optimizer: Optimizer,
        placement: str,
        shapes: Sequence[Sequence[int]],
    ) -> None:
        self._elements, self._placement, self._shapes = elements, placement, shapes
        dim = min(elements, BLOCK)
        super().__init__(name, dim, optimizer, num_ids=-(-elements // dim))

    def _declare(self) -> int:
        self.first: int | None = None
        if self._placement == "round_robin":
            found = session.as_trainer("ps.RemoteTable")
            self.first = found.deal(self._name, -(-self._elements // self.dim))
            by, offset = "modulo", self.first
        else:
            digest = hashlib.blake2b(self._name.encode(), digest_size=6).digest()
            by, offset = "hash", int.from_bytes(digest, "little")
        number: int = _native.control(
            "ps_declare",
            name=self._name,
            by=by,
            offset=offset,
            dims=list(self._shapes[0]) if len(self._shapes) == 1 else [self._elements],
            layout=layout(self._shapes),
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
        placement: which server has a block. Both need not be those of a cut that is restored.

            * "round_robin": the servers have blocks in turn, all vectors in the order in which they
              are made, which is the same on all trainers. So no server has more than one block
              more than another.
            * "hash_name": a hash of the name and the block's number says it, whatever other
              vectors there are.
        shapes: those of the parameters that lie in the vector, one behind the other. A cut notes
            them, and is restored into the same ones only. None: it is one of ``elements``.

    Raises:
        Error: as :class:`paddlempi.ps.RemoteTable`.

    Attributes:
        values: the vector as it was last pulled, in this rank's heap, with its padding. [elements]
            and more.
        gradients: what the next push takes, of the same shape. The caller fills the first
            ``elements``.
        count: how many blocks there are.
        first: which of all blocks of the program is the first, with "round_robin"; else None.
    """

    def __init__(
        self,
        name: str,
        elements: int,
        optimizer: Optimizer,
        placement: str = "round_robin",
        shapes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.table = _BlockTable(name, elements, optimizer, placement, shapes or [[elements]])
        self.count, self.first = -(-elements // self.table.dim), self.table.first
        shape = (self.count, self.table.dim)
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

    def entry(self) -> tuple[int, Any, Any, None]:
        """Return what the core takes to set ``values``."""
        return self.table._number, self._ids, self._rows, None


def layout(shapes: Sequence[Sequence[int]]) -> str:
    """Return shapes as a text, which is short also where there are many."""
    words = ["x".join(map(str, shape)) or "scalar" for shape in shapes]
    text = ", ".join(words)
    if len(text) <= _MOST_LAYOUT:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{', '.join(words[:3])} and {len(words) - 3} more (digest {digest})"


def pull(vectors: Sequence[Blocks]) -> None:
    """Set ``values`` of vectors to those on the servers, in one request."""
    if vectors:
        _native.load().tables(TableCall.PULL, tuple(vector.entry() for vector in vectors))


def spread(vectors: Sequence[Blocks]) -> None:
    """Set vectors on the servers to those of the first trainer. All trainers call it."""
    found = session.as_trainer("ps.DistributedOptimizer")
    if found.rank == found.trainers[0]:
        for vector in vectors:
            vector.write()
    session.barrier("dense parameters")
