"""Layers of torch whose rows lie on the servers of ``paddlempi.ps``.

They are like ``torch.nn.Embedding`` and ``torch.nn.EmbeddingBag``, but have no ``weight``. Forward
pulls the rows of a batch. Backward notes their gradients, and ``ps.step()`` or the step of a
``ps.DistributedOptimizer`` pushes them.
"""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ArgumentError, DtypeError, UnsupportedError
from ..ps import Initializer, Normal, Optimizer, RemoteTable, note
from ..ps.layers import RemoteLayer
from ..ps.stepping import discard_tables

__all__ = ["Embedding", "EmbeddingBag"]

NORMAL = Normal(0.0, 1.0)  # torch's default


class _Noted(torch.autograd.Function):  # type: ignore[misc]
    """The identity of rows, whose backward notes their gradient for the next step."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        rows: torch.Tensor,
        table: RemoteTable,
        ids: torch.Tensor,
        copies: bool,
    ) -> Any:
        ctx.table, ctx.ids, ctx.copies = table, ids, copies
        ctx.mark_dirty(rows)  # not a view of them: the program may write to it, as to torch's
        return rows

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        here = gradient[: len(ctx.ids)].to(
            "cpu", torch.float32, copy=ctx.copies, memory_format=torch.contiguous_format
        )
        note(ctx.table, ctx.ids, here)
        return None, None, None, None, None


class _Layer(RemoteLayer, torch.nn.Module):  # type: ignore[misc]
    """What the two layers have in common."""

    def __init__(
        self,
        num_embeddings: int | None,
        embedding_dim: int,
        padding_idx: int | None,
        name: str,
        optimizer: Optimizer | str,
        initializer: Initializer | str,
        missing: str,
        settings: dict[str, Any],
    ) -> None:
        torch.nn.Module.__init__(self)
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
        # Autograd calls the backward of a function only if one of its inputs needs a gradient.
        self._anchor = torch.zeros((), requires_grad=True)

    def _rows(self, ids: torch.Tensor, *, shown: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return rows, and which row each id has; None: they are in the order of the ids.

        Args:
            shown: rows without places are what the program gets, so the gradient may be a tensor
                of the program, which writes to it before the step. Else torch makes it.
        """
        if torch.jit.is_tracing():
            raise UnsupportedError(
                f"{type(self).__name__} {self.table.name!r}: torch.jit.trace would keep the rows "
                "of this batch for all batches: trace a torch.nn layer with the rows of ps.load"
            )
        kept, places, rows = self._pulled(ids)
        rows = rows.to(ids.device)
        if not self.frozen:
            copies = shown and places is None
            rows = _Noted.apply(self._anchor, rows, self.table, kept, copies)
        return rows, None if places is None else places.to(ids.device)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients that were noted of the table. That of a plan's model does so, too."""
        discard_tables([self.table.name])

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Set whether backward notes gradients: ``frozen``. That of a model around it does not."""
        self.frozen = not requires_grad
        return super().requires_grad_(requires_grad)

    @staticmethod
    def _has_gradients() -> bool:
        return bool(torch.is_grad_enabled())  # not in inference_mode, either

    @staticmethod
    def _flat(ids: Any) -> torch.Tensor:
        if not isinstance(ids, torch.Tensor) or ids.dtype not in (torch.int64, torch.int32):
            kind = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
            raise DtypeError(
                f"Embedding: ids are of {kind}; they must be a tensor of int64 or int32"
            )
        return ids.detach().reshape(-1).to("cpu", copy=True, memory_format=torch.contiguous_format)


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
        missing: what an id without a row gives where forward makes no row (in ``eval()``, under
            ``no_grad`` or ``inference_mode``, and if the layer is frozen): "initial", what the row
            would begin with, or "zeros".
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
        initializer: Initializer | str = NORMAL,
        missing: str = "initial",
        **settings: Any,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            name,
            optimizer,
            initializer,
            missing,
            settings,
        )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the rows of the ids in ``input``, of shape [*input.shape, embedding_dim]."""
        rows, places = self._rows(input, shown=True)
        if places is not None:
            rows = rows[places]
        return rows.view(*input.shape, self.embedding_dim)


class EmbeddingBag(_Layer):
    """``torch.nn.EmbeddingBag`` with its rows on servers.

    Args:
        num_embeddings, embedding_dim, padding_idx, name, optimizer, initializer, missing, settings:
            as for :class:`Embedding`. The padding is no part of its bag.
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
        missing: str = "initial",
        **settings: Any,
    ) -> None:
        if mode not in ("sum", "mean", "max"):
            raise ArgumentError(f"EmbeddingBag: mode={mode!r} is none of 'sum', 'mean', 'max'")
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            name,
            optimizer,
            initializer,
            missing,
            settings,
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
        rows, places = self._rows(input, shown=False)
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
