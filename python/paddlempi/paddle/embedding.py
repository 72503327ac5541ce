"""A layer of Paddle whose rows lie on the servers of ``paddlempi.ps``.

It is like ``paddle.nn.Embedding`` and ``paddle.static.nn.sparse_embedding``, but has no ``weight``.
Forward pulls the rows of a batch. Backward notes their gradients, and ``ps.step()`` or the step of
a ``ps.DistributedOptimizer`` pushes them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from ..errors import DtypeError
from ..ps import Initializer, Optimizer, RemoteTable, note
from ..ps.layers import RemoteLayer

__all__ = ["SparseEmbedding"]

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


class SparseEmbedding(RemoteLayer, paddle.nn.Layer):  # type: ignore[misc]
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
        paddle.nn.Layer.__init__(self)
        self._attach(
            num_embeddings, embedding_dim, padding_idx, name, optimizer, initializer, settings
        )
        # Autograd calls the backward of a PyLayer only if one of its inputs needs a gradient.
        # In a tuple, so that it is no parameter or buffer of the layer.
        anchor = paddle.zeros([1])
        anchor.stop_gradient = False
        self._anchor = (anchor,)

    def forward(self, x: Any) -> Any:
        """Return the rows of the ids in ``x``, of shape [*x.shape, embedding_dim]."""
        kept, places, pulled = self._pulled(x)
        rows = paddle.to_tensor(pulled, place=x.place)
        if not self.frozen:
            rows = _Noted.apply(self._anchor[0], rows, self.table, kept)
        if places is not None:
            rows = paddle.gather(rows, paddle.to_tensor(places, place=x.place))
        return rows.reshape([*x.shape, self.embedding_dim])

    @staticmethod
    def _flat(ids: Any) -> _Array:
        if not isinstance(ids, paddle.Tensor) or ids.dtype not in (paddle.int64, paddle.int32):
            kind = ids.dtype if isinstance(ids, paddle.Tensor) else type(ids).__name__
            raise DtypeError(
                f"SparseEmbedding: ids are of {kind}; they must be a tensor of int64 or int32"
            )
        flat: _Array = ids.numpy().reshape(-1)  # a copy
        return flat
