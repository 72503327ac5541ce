"""What the layers of torch and of Paddle have in common: a table, a padding, and rows pulled ahead.

Forward pulls the rows of a batch. Backward notes their gradients, which the next step pushes.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from .. import memory
from ..errors import ArgumentError
from .config import whole
from .initializers import Initializer
from .optimizers import Optimizer
from .prefetch import Prefetched, start
from .remote import RemoteTable

__all__ = ["RemoteLayer"]

_AHEAD = 8  # prefetches that a layer remembers until forward asks for them


class RemoteLayer:
    """The part of a layer that needs no framework. A front's class has it as a base.

    Attributes:
        num_embeddings: the number of ids; None: any int64 is one.
        embedding_dim: the number of elements of a row.
        padding_idx: the id whose row is zeros, not negative if ``num_embeddings`` is given; None:
            none is.
        table: the table on the servers.
    """

    num_embeddings: int | None
    embedding_dim: int
    padding_idx: int | None
    table: RemoteTable
    _ahead: deque[Prefetched]

    def _attach(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None,
        name: str,
        optimizer: Optimizer | str,
        initializer: Initializer | str,
        settings: dict[str, Any],
    ) -> None:
        """Take the arguments of a layer, and make its table."""
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = _padding(padding_idx, num_embeddings)
        self.table = RemoteTable(
            name, embedding_dim, optimizer, initializer, num_ids=num_embeddings, **settings
        )
        self._ahead = deque(maxlen=_AHEAD)

    @staticmethod
    def _flat(ids: Any) -> Any:
        """Return a copy of ids in host memory, [n]: they are kept until the step.

        Raises:
            DtypeError: they are no tensor of the framework, of int64 or int32.
        """
        raise NotImplementedError

    def prefetch(self, ids: Any) -> Prefetched:
        """Pull the rows of a batch in a thread; forward takes them when it gets the same tensor.

        :meth:`paddlempi.ps.RemoteTable.prefetch` says which steps the rows have seen.

        Args:
            ids: the tensor that forward will get as its first argument. Do not write to it.
        """
        flat = self._flat(ids)
        pulled = start(ids, lambda: self._pull(flat))
        self._ahead.append(pulled)
        return pulled

    def _pulled(self, ids: Any) -> tuple[Any, Any, Any]:
        """Return what :meth:`_pull` does, from a prefetch if there is one of this tensor."""
        found = next((pulled for pulled in self._ahead if pulled.ids is ids), None)
        if found is None:
            return self._pull(self._flat(ids))
        self._ahead.remove(found)
        kept, places, rows = found.wait()
        return kept, places, rows

    def _pull(self, flat: Any) -> tuple[Any, Any, Any]:
        """Return the ids without the padding, the place of each id's row, and the rows.

        Without a padding the rows are in the order of the ids, and the places are None. With one
        there is one row more, the last, of zeros: ids that are the padding have it.
        """
        if self.padding_idx is None:
            return flat, None, self.table.pull(flat)
        keep = flat != self.padding_idx
        kept = flat[keep]
        shape = (len(kept) + 1, self.embedding_dim)
        rows = memory.empty(shape, framework=memory.framework_of(flat))
        rows[-1] = 0
        self.table.pull(kept, rows[:-1])
        places = keep.cumsum(0) - 1
        places[~keep] = len(kept)
        return kept, places, rows

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the layer has its table, and no prefetches under way.
        return {**self.__dict__, "_ahead": deque(maxlen=_AHEAD)}

    def extra_repr(self) -> str:
        """Return what ``repr`` shows of the layer."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, name={self.table.name!r}"


def _padding(padding_idx: int | None, num_embeddings: int | None) -> int | None:
    """Return the id of the padding; a negative one counts from the end, as in torch and Paddle."""
    if padding_idx is None:
        return None
    padding = whole("Embedding", "padding_idx", padding_idx)
    if num_embeddings is None:
        return padding
    count = whole("Embedding", "num_embeddings", num_embeddings)
    if not -count <= padding < count:
        raise ArgumentError(
            f"Embedding: padding_idx={padding_idx} is not within num_embeddings={num_embeddings}"
        )
    return padding % count
