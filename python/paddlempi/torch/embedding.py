"""Layers of torch whose rows lie on the servers of ``paddlempi.ps``.

They are like ``torch.nn.Embedding`` and ``torch.nn.EmbeddingBag``, but have no ``weight``. Forward
pulls the rows of a batch. Backward notes their gradients, and ``ps.step()`` or the step of a
``ps.DistributedOptimizer`` pushes them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from .. import memory
from ..errors import ArgumentError, DtypeError
from ..ps import Initializer, Normal, Optimizer, Prefetched, RemoteTable, note
from ..ps.prefetch import start

__all__ = ["Embedding", "EmbeddingBag"]

NORMAL = Normal(0.0, 1.0)  # torch's default
_AHEAD = 8  # prefetches that a layer remembers until forward asks for them


class _Noted(torch.autograd.Function):  # type: ignore[misc]
    """The identity of rows, whose backward notes their gradient for the next step."""

    @staticmethod
    def forward(
        ctx: Any, anchor: torch.Tensor, rows: torch.Tensor, table: RemoteTable, ids: torch.Tensor
    ) -> Any:
        ctx.table, ctx.ids = table, ids
        return rows.view_as(rows)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        here = gradient.to("cpu", torch.float32)[: len(ctx.ids)]
        note(ctx.table, ctx.ids, here.contiguous())
        return None, None, None, None


class _Layer(torch.nn.Module):  # type: ignore[misc]
    """What the two layers have in common."""

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None,
        name: str,
        optimizer: Optimizer | str,
        initializer: Initializer | str,
        settings: dict[str, Any],
    ) -> None:
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_idx = _padding(padding_idx, num_embeddings)
        self.table = RemoteTable(
            name, embedding_dim, optimizer, initializer, num_ids=num_embeddings, **settings
        )
        # Autograd calls the backward of a function only if one of its inputs needs a gradient.
        self._anchor = torch.zeros((), requires_grad=True)
        self._ahead: deque[Prefetched] = deque(maxlen=_AHEAD)

    def prefetch(self, ids: torch.Tensor) -> Prefetched:
        """Pull the rows of a batch in a thread; forward takes them when it gets the same tensor.

        :meth:`paddlempi.ps.RemoteTable.prefetch` says which steps the rows have seen.

        Args:
            ids: the tensor that forward will get as its first argument. Do not write to it.
        """
        flat = _flat(ids)
        pulled = start(ids, lambda: self._pull(flat))
        self._ahead.append(pulled)
        return pulled

    def _rows(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return rows, and which row each id has; None: they are in the order of the ids.

        With a padding there is one row more, the last, of zeros: ids that are the padding have it.
        """
        found = next((pulled for pulled in self._ahead if pulled.ids is ids), None)
        if found is None:
            kept, places, rows = self._pull(_flat(ids))
        else:
            self._ahead.remove(found)
            kept, places, rows = found.wait()
        rows = _Noted.apply(self._anchor, rows.to(ids.device), self.table, kept)
        return rows, None if places is None else places.to(ids.device)

    def _pull(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """Return the ids without the padding, the places for :meth:`_rows`, and the rows."""
        if self.padding_idx is None:
            return flat, None, self.table.pull(flat)
        keep = flat != self.padding_idx
        kept = flat[keep]
        rows = memory.empty((len(kept) + 1, self.embedding_dim), framework="torch")
        rows[-1] = 0
        self.table.pull(kept, rows[:-1])
        return kept, torch.where(keep, keep.cumsum(0) - 1, len(kept)), rows

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the layer has its table, and no prefetches under way.
        return {**self.__dict__, "_ahead": deque(maxlen=_AHEAD)}

    def extra_repr(self) -> str:
        """Return what ``repr`` shows of the layer."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}, name={self.table.name!r}"


class Embedding(_Layer):
    """``torch.nn.Embedding`` with its rows on servers.

    Args:
        num_embeddings: the number of ids, which are 0 to ``num_embeddings`` - 1. None: any int64 is
            an id, and a row is made when its id first appears.
        embedding_dim: the number of elements of a row.
        padding_idx: an id whose row is zeros and is not trained. None: none is.
        name: the name of the table, the same on all trainers. Layers of one name share a table.
        optimizer: what a push does to a row; see :class:`paddlempi.ps.RemoteTable`.
        initializer: what a new row holds; by default what torch's layers hold.
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
        initializer: Initializer | str = NORMAL,
        **settings: Any,
    ) -> None:
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, name, optimizer, initializer, settings
        )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the rows of the ids in ``input``, of shape [*input.shape, embedding_dim]."""
        rows, places = self._rows(input)
        if places is not None:
            rows = rows[places]
        return rows.view(*input.shape, self.embedding_dim)


class EmbeddingBag(_Layer):
    """``torch.nn.EmbeddingBag`` with its rows on servers.

    Args:
        num_embeddings, embedding_dim, padding_idx, name, optimizer, initializer, settings: as for
            :class:`Embedding`. The padding is no part of its bag.
        mode: "sum", "mean" or "max".
        include_last_offset: the offsets have one more element, the number of ids.

    Raises:
        ArgumentError: another mode.
        Error: as :class:`paddlempi.ps.RemoteTable`; forward raises what its ``pull`` does.
    """

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        name: str,
        optimizer: Optimizer | str = "sgd",
        initializer: Initializer | str = NORMAL,
        **settings: Any,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError(f"EmbeddingBag: mode={mode!r} is none of 'sum', 'mean', 'max'")
        super().__init__(
            num_embeddings, embedding_dim, padding_idx, name, optimizer, initializer, settings
        )
        self.mode = mode
        self.include_last_offset = include_last_offset

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the sum, mean or maximum of each bag's rows, [bags, embedding_dim].

        Args:
            input: ids: [bags, length], or [n] with ``offsets``.
            offsets: where each bag begins in ``input``.
            per_sample_weights: a factor for every id, of the shape of ``input``; for "sum" only.
        """
        rows, places = self._rows(input)
        padding = None if places is None else len(rows) - 1
        if places is None:
            places = torch.arange(len(rows), device=rows.device)
        return torch.nn.functional.embedding_bag(
            places.view(input.shape),
            rows,
            None if offsets is None else offsets.to(places.dtype),
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )

    def extra_repr(self) -> str:
        """Return what ``repr`` shows of the layer."""
        return f"{super().extra_repr()}, mode={self.mode!r}"


def _padding(padding_idx: int | None, num_embeddings: int | None) -> int | None:
    """Return the id of the padding; torch counts a negative one from the end."""
    if padding_idx is None or num_embeddings is None:
        return padding_idx
    if not -num_embeddings <= padding_idx < num_embeddings:
        raise ArgumentError(
            f"Embedding: padding_idx={padding_idx} is not within num_embeddings={num_embeddings}"
        )
    return padding_idx % num_embeddings


def _flat(ids: Any) -> torch.Tensor:
    """Return ids as a contiguous tensor [n] in host memory."""
    if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
        kind = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
        raise DtypeError(f"Embedding: ids are of {kind}; they must be a tensor of int64 or int32")
    return ids.detach().reshape(-1).to("cpu").contiguous()
