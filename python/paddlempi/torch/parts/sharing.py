"""How all ranks take the state of one of them: nested dictionaries, lists and tensors.

Tensors of the same shape and dtype are filled in place, because a model, an optimizer and a program
refer to them. All of it is collective over torch's default group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ...elasticity.sharing import check_same, told

__all__ = ["broadcast", "broadcast_same", "shared"]


class _Leaf(NamedTuple):
    """Stands for a tensor in a tree that is sent as an object."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


def broadcast(tensors: Iterable[Any], root: int) -> None:
    """Fill tensors with those of the root."""
    with torch.no_grad():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), root)


def broadcast_same(what: str, tensors: Mapping[str, Any], root: int) -> None:
    """Fill named tensors with those of the root, which must have the same.

    Raises:
        ArgumentError: they differ from the root's in name, shape or dtype; on all ranks.
    """
    check_same(what, {n: (tuple(t.shape), str(t.dtype)) for n, t in tensors.items()}, root)
    broadcast(tensors.values(), root)


def shared(mine: Any, root: int) -> Any:
    """Return the root's tree. What is in ``mine`` at the same place and fits is filled and used."""
    is_root = dist.get_rank() == root
    skeleton = told(_skeleton(mine) if is_root else None, root)
    return _filled(skeleton, mine, root)


def _skeleton(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return _Leaf(tuple(tree.shape), tree.dtype, tree.device.type)
    if isinstance(tree, Mapping):
        return {key: _skeleton(value) for key, value in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_skeleton(value) for value in tree)
    return tree


def _filled(skeleton: Any, mine: Any, root: int) -> Any:
    if isinstance(skeleton, _Leaf):
        fits = (
            isinstance(mine, torch.Tensor)
            and tuple(mine.shape) == skeleton.shape
            and mine.dtype == skeleton.dtype
        )
        tensor = (
            mine
            if fits
            else torch.empty(skeleton.shape, dtype=skeleton.dtype, device=skeleton.device)
        )
        broadcast([tensor], root)
        return tensor
    if isinstance(skeleton, dict):
        named = mine if isinstance(mine, Mapping) else {}
        return {key: _filled(value, named.get(key), root) for key, value in skeleton.items()}
    if type(skeleton) in (list, tuple):
        there = mine if type(mine) is type(skeleton) else ()
        padded = [*there, *[None] * (len(skeleton) - len(there))]
        return type(skeleton)(
            _filled(value, old, root) for value, old in zip(skeleton, padded, strict=False)
        )
    return skeleton
