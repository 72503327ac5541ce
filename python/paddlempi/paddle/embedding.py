"""A layer of Paddle whose rows lie on the servers of ``paddlempi.ps``.

It is like ``paddle.nn.Embedding`` and ``paddle.static.nn.sparse_embedding``, but has no ``weight``.
Forward pulls the rows of a batch. Backward notes their gradients, and ``ps.step()`` or the step of
a ``ps.DistributedOptimizer`` pushes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle

from ..errors import DtypeError, UnsupportedError
from ..ps import Initializer, Optimizer, RemoteTable, note
from ..ps.layers import RemoteLayer
from ..ps.stepping import discard_tables

__all__ = ["SparseEmbedding"]

_Array = np.ndarray[Any, Any]


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
        missing: what an id without a row gives where forward makes no row (in ``eval()``, under
            ``paddle.no_grad``, and if the layer is frozen): "initial", what the row would begin
            with, or "zeros".
        settings: ``dtype``, ``seed``, ``memory_limit``, ``non_finite``, ``admit_after``,
            ``expire_after`` and ``max_rows`` of the table.

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
        missing: str = "initial",
        **settings: Any,
    ) -> None:
        paddle.nn.Layer.__init__(self)
        self._attach(
            num_embeddings,
            embedding_dim,
            padding_idx,
            name,
            optimizer,
            initializer,
            missing,
            settings,
        )

    @paddle.jit.not_to_static  # type: ignore[untyped-decorator]  # so that its errors are its own
    def forward(self, x: Any) -> Any:
        """Return the rows of the ids in ``x``, of shape [*x.shape, embedding_dim].

        Raises:
            DtypeError: ``x`` is no tensor of int64 or int32.
            UnsupportedError: in a static program, such as that of ``paddle.jit.save``.
            Error: as :meth:`paddlempi.ps.RemoteTable.pull`.
        """
        if not paddle.in_dynamic_mode():
            raise UnsupportedError(
                f"SparseEmbedding: the rows of {self.table.name!r} are on servers, which a static "
                "program does not ask: for inference, put rows of ps.load() or ps.export() into a "
                "paddle.nn.Embedding"
            )
        kept, places, pulled = self._pulled(x)
        rows = paddle.to_tensor(pulled, place=x.place)
        if not self.frozen:
            # A leaf with a hook, and no PyLayer: Paddle 3.3 crashes in the second backward of one.
            rows.stop_gradient = False
            rows.register_hook(_hook(self.table, kept))
        if places is not None:
            rows = paddle.gather(rows, paddle.to_tensor(places, place=x.place))
        elif not self.frozen:
            rows = rows.clone()  # a leaf could not be changed in place
        return rows.reshape([*x.shape, self.embedding_dim])

    def clear_gradients(self, set_to_zero: bool = True) -> None:
        """Drop the gradients that were noted of the table. That of a plan's model does so, too."""
        discard_tables([self.table.name])

    @staticmethod
    def _has_gradients() -> bool:
        return bool(paddle.is_grad_enabled())

    @staticmethod
    def _flat(ids: Any) -> _Array:
        if not isinstance(ids, paddle.Tensor) or ids.dtype not in (paddle.int64, paddle.int32):
            kind = ids.dtype if isinstance(ids, paddle.Tensor) else type(ids).__name__
            raise DtypeError(
                f"SparseEmbedding: ids are of {kind}; they must be a tensor of int64 or int32"
            )
        # A copy. That of a view has the view's strides.
        flat: _Array = np.ascontiguousarray(ids.numpy()).reshape(-1)
        return flat


def _hook(table: RemoteTable, ids: _Array) -> Callable[[Any], None]:
    """Return a hook that notes the gradient of rows. It gets one gradient for each backward."""

    def hook(gradient: Any) -> None:
        # NumPy's copy, because Paddle may use the gradient's memory again. The padding is behind.
        note(table, ids, np.array(gradient.astype("float32").numpy()[: len(ids)], order="C"))

    return hook
