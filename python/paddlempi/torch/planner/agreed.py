"""What the ranks agree on before they cut a model: that all ask for the same, or that none does it.

It uses ``torch.distributed`` alone, so that a plan can be applied over any backend.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ...errors import ArgumentError

__all__ = ["exchange", "pretended", "raise_alike", "same", "take_rank_0"]


def pretended() -> bool:
    """Whether the world is torch's fake one, whose collectives move nothing."""
    return bool(dist.get_backend() == "fake")


def exchange(value: Any) -> list[Any]:
    """Return the values of all ranks. Collective."""
    if pretended():
        return [value] * dist.get_world_size()
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def raise_alike(error: Exception | None) -> None:
    """Raise an error that some ranks have on all ranks. Collective.

    Raises:
        ArgumentError: this rank has none, and others have one.
        Exception: this rank's own error.
    """
    texts = exchange(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    failed = {rank: text for rank, text in enumerate(texts) if text is not None}
    for rank, text in failed.items():
        ranks = ", ".join(map(str, list(failed)[:8]))
        raise ArgumentError(f"apply: rank {rank} refused ({text}); ranks {ranks} did so")


def same(asked: dict[str, Any]) -> None:
    """Check that all ranks ask for the same. Collective.

    Raises:
        ArgumentError: they differ; on all ranks.
    """
    everyone = exchange(asked)
    for name in asked:
        for rank, theirs in enumerate(everyone):
            if theirs[name] != everyone[0][name]:
                raise ArgumentError(
                    f"apply: rank {rank} has another {name} than rank 0: "
                    f"{_differing(theirs[name], everyone[0][name])}: give all ranks the same"
                )


def _differing(theirs: Any, first: Any) -> str:
    if isinstance(theirs, tuple) and isinstance(first, tuple):
        for one, other in zip(theirs, first, strict=False):
            if one != other:
                return f"{one}, not {other}"
        return f"{len(theirs)} of them, not {len(first)}"
    return f"{theirs}, not {first}"


def take_rank_0(model: nn.Module) -> None:
    """Make parameters and buffers those of rank 0. Collective."""
    if pretended():
        return
    seen: set[int] = set()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if id(tensor) in seen:
                continue
            seen.add(id(tensor))
            values = tensor.detach()
            sent = values.contiguous()
            dist.broadcast(sent, 0)
            if sent.data_ptr() != values.data_ptr():
                values.copy_(sent)
