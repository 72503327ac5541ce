"""What the process group's methods are given, brought into one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from ..errors import DtypeError

__all__ = ["by_dtype", "has_cuda", "options", "places", "resolved"]


def options(
    kind: Any, given: Any, timeout: timedelta | None, meaning: str = "", **fields: Any
) -> Any:
    """Options of a class of torch, from what a method was given in their place.

    Args:
        kind: the class.
        given: options; or, as the shorter forms of torch's C++ class have it, the value of the
            field ``meaning``, or a deadline, or None.
        timeout, fields: further fields, where they are not None.

    Raises:
        DtypeError: ``given``, or a field, is of no use here.
    """
    if isinstance(given, kind):
        return given
    made = kind()
    if isinstance(given, timedelta):
        timeout = given
    elif given is not None:
        fields[meaning] = given
    if timeout is not None:
        fields["timeout"] = timeout
    for name, value in fields.items():
        if value is None:
            continue
        try:
            setattr(made, name, value)
        except (AttributeError, TypeError) as reason:
            raise DtypeError(
                f"{name or 'opts'}={value!r}, of type {type(value).__name__}, is of no use where "
                f"{kind.__name__} are wanted"
            ) from reason
    return made


def _is_lazy(tensor: Any) -> bool:
    """Whether its memory has other bits than its elements: a conjugate or negative view."""
    return isinstance(tensor, torch.Tensor) and (tensor.is_neg() or tensor.is_conj())


def resolved(sent: Any) -> Any:
    """A tensor, or a list of tensors, to be sent: lazy conjugates and negatives carried out."""
    if sent.__class__ is torch.Tensor and not (sent.is_neg() or sent.is_conj()):
        return sent  # what nearly all are
    if isinstance(sent, list):
        return [resolved(tensor) for tensor in sent]
    return sent.detach().resolve_conj().resolve_neg() if _is_lazy(sent) else sent


def places(written: Any) -> tuple[Any, Callable[[], None] | None]:
    """Where the result for a tensor, or a list of tensors, can be written to.

    Returns:
        The same; with copies in the place of lazy conjugates and negatives, and then a function
        that copies back what was written to them.
    """
    if written.__class__ is torch.Tensor and not (written.is_neg() or written.is_conj()):
        return written, None  # what nearly all are, without the look at a list
    tensors = written if isinstance(written, list) else [written]
    if not any(_is_lazy(tensor) for tensor in tensors):
        return written, None
    stand_ins = resolved(tensors)

    def copy_back() -> None:
        with torch.no_grad():
            for tensor, stand_in in zip(tensors, stand_ins, strict=True):
                if tensor is not stand_in:
                    tensor.copy_(stand_in)

    return (stand_ins if isinstance(written, list) else stand_ins[0]), copy_back


def has_cuda() -> bool:
    """Whether there may be tensors in CUDA memory. torch for ROCm says cuda to its devices too."""
    return torch.cuda.is_available() and not torch.version.hip


def by_dtype(tensors: Sequence[Any]) -> list[list[Any]]:
    """Tensors in lists of one dtype each, in the order in which the dtypes come."""
    lists: dict[Any, list[Any]] = {}
    for tensor in tensors:
        lists.setdefault(tensor.dtype, []).append(tensor)
    return list(lists.values())
