"""A layer of Paddle whose rows lie on the servers of ``paddlempi.ps``.

It is like ``paddle.nn.Embedding`` and ``paddle.static.nn.sparse_embedding``, but has no ``weight``.
Forward pulls the rows of a batch. Backward notes their gradients, and ``ps.step()`` or the step of
a ``ps.DistributedOptimizer`` pushes them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import paddle

from .. import memory
from ..errors import ArgumentError, DtypeError
from ..ps import Initializer, Optimizer, Prefetched, RemoteTable, note
from ..ps.prefetch import start

__all__ = ["SparseEmbedding"]

_AHEAD = 8  # prefetches that a layer remembers until forward asks for them
_Array = np.ndarray[Any, Any]


class _Noted(paddle.autograd.PyLayer):  # type: ignore[misc]
    """Rows, whose backward notes their gradient for the next step."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, rows: Any, table: RemoteTable, ids: _Array) -> Any:
        ctx.table, ctx.ids, ctx.anchor = table, ids, anchor
        return rows.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        # NumPy's copy, because Paddle may use the gradient's memory again.
        here = np.array(gradient.astype("float32").numpy()[: len(ctx.ids)])
        note(ctx.table, ctx.ids, here)
        return paddle.zeros_like(ctx.anchor), None


class SparseEmbedding(paddle.nn.Layer):  # type: ignore[misc]
    """``paddle.nn.Embedding`` with its rows on servers.

    Args:
        num_embeddings: the number of ids, which are 0 to ``num_embeddings`` - 1. None: any int64 is
            an id, and a row is made when its id first appears.
        embedding_dim: the number of elements of a row.
        padding_idx: an id whose row is zeros and is not trained. None: none is.
        name: the name of the table, the same on all trainers. Layers of one name share a table.
        optimizer: what a push does to a row; see :class:`paddlempi.ps.RemoteTable`.
        initializer: what a new row holds.
        settings: ``dtype``, ``seed``, ``memory_limit`` and ``non_finite`` of the table.

    Raises:
        Error: as :class:`paddlempi.ps.RemoteTable`; forward raises what its ``pull`` does.
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        name: str,
        optimizer: Optimizer | str = "sgd",
        initializer: Initializer | str = "normal",
        **settings: Any,
    ) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        if padding_idx is not None and num_embeddings is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ArgumentError(
                    f"SparseEmbedding: padding_idx={padding_idx} is not within "
                    f"num_embeddings={num_embeddings}"
                )
            padding_idx %= num_embeddings
        self.padding_idx = padding_idx
        self.table = RemoteTable(
            name, embedding_dim, optimizer, initializer, num_ids=num_embeddings, **settings
        )
        # Autograd calls the backward of a PyLayer only if one of its inputs needs a gradient.
        # In a tuple, so that it is no parameter or buffer of the layer.
        anchor = paddle.zeros([1])
        anchor.stop_gradient = False
        self._anchor = (anchor,)
        self._ahead: deque[Prefetched] = deque(maxlen=_AHEAD)

    def prefetch(self, ids: Any) -> Prefetched:
        """Pull the rows of a batch in a thread; forward takes them when it gets the same tensor.

        :meth:`paddlempi.ps.RemoteTable.prefetch` says which steps the rows have seen.

        Args:
            ids: the tensor that forward will get. Do not write to it.
        """
        flat = _flat(ids)
        pulled = start(ids, lambda: self._pull(flat))
        self._ahead.append(pulled)
        return pulled

    def forward(self, x: Any) -> Any:
        """Return the rows of the ids in ``x``, of shape [*x.shape, embedding_dim]."""
        found = next((pulled for pulled in self._ahead if pulled.ids is x), None)
        if found is None:
            kept, places, pulled = self._pull(_flat(x))
        else:
            self._ahead.remove(found)
            kept, places, pulled = found.wait()
        rows = _Noted.apply(
            self._anchor[0], paddle.to_tensor(pulled, place=x.place), self.table, kept
        )
        if places is not None:
            rows = paddle.gather(rows, paddle.to_tensor(places, place=x.place))
        return rows.reshape([*x.shape, self.embedding_dim])

    def _pull(self, flat: _Array) -> tuple[_Array, _Array | None, _Array]:
        """Return the ids without the padding, the place of each id's row, and the rows.

        Without a padding, the rows are in the order of the ids and there are no places. With one,
        there is one row more, of zeros, for the padding.
        """
        if self.padding_idx is None:
            return flat, None, self.table.pull(flat)
        keep = flat != self.padding_idx
        kept = flat[keep]
        rows = memory.empty((len(kept) + 1, self.embedding_dim))
        rows[-1] = 0
        self.table.pull(kept, rows[:-1])
        return kept, np.where(keep, np.cumsum(keep) - 1, len(kept)), rows

    def extra_repr(self) -> str:
        """Return what ``repr`` shows of the layer."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, name={self.table.name!r}"


def _flat(ids: Any) -> _Array:
    """Return ids as a contiguous array [n] in host memory, which nobody writes to."""
    if not isinstance(ids, paddle.Tensor) or ids.dtype not in (paddle.int64, paddle.int32):
        kind = ids.dtype if isinstance(ids, paddle.Tensor) else type(ids).__name__
        raise DtypeError(
            f"SparseEmbedding: ids are of {kind}; they must be a tensor of int64 or int32"
        )
    return np.ascontiguousarray(ids.numpy()).reshape(-1)
