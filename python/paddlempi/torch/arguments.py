"""Arguments of the process group's methods: options, and tensors that are lazy views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from ..errors import DtypeError

__all__ = ["by_dtype", "has_cuda", "options", "resolved", "writable"]


def options(
    kind: Any, given: Any, timeout: timedelta | None, meaning: str = "", **fields: Any
) -> Any:
    """Return the options of a call, made from the arguments of torch's shorter forms if need be.

    Args:
        kind: torch's class of options.
        given: options of this class; or, in the shorter forms, a deadline, the value of the field
            ``meaning``, or None.
        timeout: the options' deadline, unless it is None.
        meaning: the name of a field.
        fields: more fields of the options; None leaves a field as it is.

    Raises:
        DtypeError: ``given`` or a field has a wrong type.
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
                f"{name or 'opts'}={value!r} is a {type(value).__name__}, which {kind.__name__} "
                "do not take"
            ) from reason
    return made


def _is_lazy(tensor: Any) -> bool:
    """Whether a tensor is a conjugate or negative view, whose memory has other values."""
    return isinstance(tensor, torch.Tensor) and (tensor.is_neg() or tensor.is_conj())


def resolved(sent: Any) -> Any:
    """Return a tensor to send, or a list of them, with copies in place of lazy views."""
    if sent.__class__ is torch.Tensor and not (sent.is_neg() or sent.is_conj()):
        return sent  # the usual case
    if isinstance(sent, list):
        return [resolved(tensor) for tensor in sent]
    return sent.detach().resolve_conj().resolve_neg() if _is_lazy(sent) else sent


def writable(output: Any) -> tuple[Any, Callable[[], None] | None]:
    """Return tensors that an operation can write to instead of an output tensor, or list of them.

    Returns:
        The same tensors, with copies in place of lazy views; and a function that copies the
        results from the copies to the views, None if there are no copies.
    """
    if output.__class__ is torch.Tensor and not (output.is_neg() or output.is_conj()):
        return output, None  # the usual case
    tensors = output if isinstance(output, list) else [output]
    if not any(_is_lazy(tensor) for tensor in tensors):
        return output, None
    targets = resolved(tensors)

    def copy_back() -> None:
        with torch.no_grad():
            for tensor, target in zip(tensors, targets, strict=True):
                if tensor is not target:
                    tensor.copy_(target)

    return (targets if isinstance(output, list) else targets[0]), copy_back


def has_cuda() -> bool:
    """Whether there may be tensors in CUDA memory. torch for ROCm calls its devices cuda too."""
    return torch.cuda.is_available() and not torch.version.hip


def by_dtype(tensors: Sequence[Any]) -> list[list[Any]]:
    """Divide tensors into lists of one dtype, in the order in which the dtypes first appear."""
    lists: dict[Any, list[Any]] = {}
    for tensor in tensors:
        lists.setdefault(tensor.dtype, []).append(tensor)
    return list(lists.values())
