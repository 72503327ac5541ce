"""A batch: cut into parts by its first dimension, and the loss that a model has on it.

A batch is a tensor, or a pair of inputs and target, or a mapping of keywords to tensors. The
tensors may lie in nested tuples, lists and mappings. ``kind`` is always the class of a framework's
tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any

from ..errors import ArgumentError, DtypeError

__all__ = ["cut", "loss_of", "pair", "rows", "scalar", "shapes"]


def tensors(batch: Any, kind: Any, name: str = "batch") -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a batch with the names that Python's code has for them."""
    if isinstance(batch, kind):
        yield name, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from tensors(value, kind, f"{name}[{key!r}]")
    elif isinstance(batch, (tuple, list)):
        for number, value in enumerate(batch):
            yield from tensors(value, kind, f"{name}[{number}]")


def shapes(batch: Any, kind: Any) -> tuple[Any, ...]:
    """Return what a batch looks like: equal for batches of equal tensors but for the values."""
    return tuple((name, tuple(t.shape), t.dtype) for name, t in tensors(batch, kind))


def rows(batch: Any, kind: Any, function: str) -> int:
    """Return how long the first dimension of a batch is: that of its first tensor.

    Raises:
        ArgumentError: it has no tensor with a dimension.
    """
    for _, tensor in tensors(batch, kind):
        if tensor.shape:
            return int(tensor.shape[0])
    raise ArgumentError(
        f"{function}: batch={type(batch).__name__} holds no tensor that could be cut: give a "
        "tensor, a pair (inputs, target) of tensors, or a mapping of them"
    )


def cut(batch: Any, kind: Any, index: int, count: int, why: str) -> Any:
    """Return part ``index`` of ``count`` equal parts of a batch: views of its tensors.

    Args:
        why: what cuts it, for the error.

    Raises:
        ArgumentError: a tensor's first dimension does not divide.
    """
    rows(batch, kind, "shard_batch")
    for name, tensor in tensors(batch, kind):
        if tensor.shape and tensor.shape[0] % count:
            raise ArgumentError(
                f"shard_batch: {name} of shape {tuple(tensor.shape)} has {tensor.shape[0]} rows, "
                f"which {why} cannot cut into {count} equal parts: give a batch whose rows are a "
                f"multiple of {count}, such as {tensor.shape[0] // count * count or count}"
            )
    return _cut(batch, kind, index, count) if count > 1 else batch


def _cut(value: Any, kind: Any, index: int, count: int) -> Any:
    if isinstance(value, kind):
        if not value.shape:
            return value
        length = value.shape[0] // count
        return value[index * length : (index + 1) * length]
    if isinstance(value, Mapping):
        return {key: _cut(item, kind, index, count) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_cut(item, kind, index, count) for item in value]
        if hasattr(value, "_fields"):
            return type(value)(*parts)
        return parts if isinstance(value, list) else tuple(parts)
    return value


def pair(batch: Any) -> tuple[Any, Any]:
    """Return inputs and target.

    Raises:
        ArgumentError: the batch has another number of members.
    """
    if len(batch) != 2:
        raise ArgumentError(
            f"step: batch has {len(batch)} members: give a pair (inputs, target), a tensor, or a "
            "mapping for a model that is called by keywords"
        )
    return batch[0], batch[1]


def loss_of(model: Any, batch: Any, kind: Any, loss: Callable[..., Any] | None) -> Any:
    """Run the model's forward on a batch and return its loss, a scalar.

    Raises:
        ArgumentError: there is no loss, or it is no scalar.
        DtypeError: the batch is none of the three forms, or the loss is no tensor.
    """
    if isinstance(batch, Mapping):
        output = model(**batch)
        value = getattr(output, "loss", None) if loss is None else loss(output, batch)
        if value is None:
            raise ArgumentError(
                f"step: the model called with {sorted(batch)} returned no loss: give it labels, "
                "or give apply a loss=function(output, batch)"
            )
    elif isinstance(batch, (tuple, list)):
        inputs, target = pair(batch)
        if loss is None:
            raise ArgumentError(
                "step: batch is a pair (inputs, target), and apply had no loss: give apply a "
                "loss=function(output, target)"
            )
        value = loss(model(inputs), target)
    elif isinstance(batch, kind):
        value = model(batch)
        if loss is not None:
            value = loss(value)
    else:
        raise DtypeError(
            f"step: batch is a {type(batch).__name__}: give a tensor, a pair (inputs, target), or "
            "a mapping for a model that is called by keywords"
        )
    return scalar(value, kind)


def scalar(value: Any, kind: Any) -> Any:
    """Return the value, which is a loss.

    Raises:
        ArgumentError: it has several elements.
        DtypeError: it is no tensor.
    """
    if not isinstance(value, kind):
        raise DtypeError(f"step: the loss is a {type(value).__name__}: it must be a tensor")
    if prod(value.shape) != 1:
        raise ArgumentError(
            f"step: the loss has shape {tuple(value.shape)}: give apply a loss=function whose "
            "result is one number, a mean over the batch"
        )
    return value.reshape([])
