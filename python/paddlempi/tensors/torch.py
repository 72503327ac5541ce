"""torch's tensors in host memory and in CUDA memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ..errors import ArgumentError, DtypeError, UnsupportedError
from .kind import CPU, CUDA, KNOWN_DTYPES, Description, Kind, codes_of

__all__ = ["KINDS", "joined", "over", "rows_of"]

_CODES = codes_of(torch)
_STRIDED = torch.strided


def _describe(tensor: Any) -> Description:
    code, on_host = _CODES.get(tensor.dtype), tensor.is_cpu
    if code is None or tensor.layout is not _STRIDED or (not on_host and tensor.is_meta):
        raise DtypeError(
            f"a torch tensor of dtype {tensor.dtype}, layout {tensor.layout} on device "
            f"'{tensor.device}' cannot be sent: it must be dense, have memory, and {KNOWN_DTYPES}"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise DtypeError(
            "a torch tensor that is a lazy conjugate or negative has other bits in memory: "
            "call resolve_conj() and resolve_neg() on it first"
        )
    strides = None if tensor.is_contiguous() else tensor.stride()
    if on_host:  # also if it is pinned
        return tensor.data_ptr(), code, tensor.shape, strides, CPU, 0, False, 0
    index = _cuda_index(tensor)
    if index is None:
        raise UnsupportedError(
            f"a torch tensor on device '{tensor.device}': only host memory and CUDA's can be "
            "sent; move it with .cpu()"
        )
    stream = _current(index)
    return tensor.data_ptr(), code, tensor.shape, strides, CUDA, index, False, stream


def _bump(tensor: Any) -> None:
    if not tensor.is_inference():  # inference tensors have no version counter
        torch.autograd.graph.increment_version(tensor)


def over(memory: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a tensor over memory with the buffer protocol, which it keeps alive.

    Raises:
        DtypeError: this torch does not have the dtype.
    """
    kind = getattr(torch, dtype, None)
    if kind is None:
        raise DtypeError(f"torch {torch.__version__} has no dtype {dtype}")
    if len(memory) == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(memory, dtype=kind).reshape(shape)


def joined(tensors: Sequence[Any]) -> Any:
    """Return a tensor with the rows of all tensors, in order."""
    return torch.cat(list(tensors))


def rows_of(gradient: Any) -> tuple[Any, Any]:
    """Return the row numbers and the rows of a sparse gradient, without a copy.

    A row number may occur several times.

    Raises:
        DtypeError: the gradient is no COO tensor with one sparse dimension.
    """
    if gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != 1:
        raise DtypeError(
            f"a torch tensor of layout {gradient.layout} is no gradient of rows: it must be "
            "torch.sparse_coo with one sparse dimension"
        )
    return gradient._indices()[0], gradient._values()


def _like(tensor: Any) -> Any:
    return torch.empty_like(tensor.detach())


def _cuda_index(tensor: Any) -> int | None:
    # torch for ROCm calls its devices cuda too.
    return tensor.get_device() if tensor.is_cuda and not torch.version.hip else None


def _current(index: int) -> int:
    # torch's compiler calls this too. It takes a tenth of the time of torch.cuda.current_stream.
    return int(torch._C._cuda_getCurrentRawStream(index))


def _stream(tensor: Any) -> Callable[[], int] | None:
    index = _cuda_index(tensor)
    return None if index is None else partial(_current, index)


def _record(tensor: Any) -> bool:
    index = _cuda_index(tensor)
    if index is None:
        return False
    tensor.record_stream(torch.cuda.current_stream(index))
    return True


class _InPlace(torch.autograd.Function):  # type: ignore[misc]
    """A function that writes to its tensor."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Any, run: Callable[[Any], None], turn: Callable[[Any], None]
    ) -> Any:
        run(tensor)
        ctx.mark_dirty(tensor)
        ctx.turn = turn
        return tensor

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> Any:
        gradient = gradient.clone(memory_format=torch.contiguous_format)
        ctx.turn(gradient)
        return gradient, None, None


def _in_place(tensor: Any, forward: Callable[[Any], None], backward: Callable[[Any], None]) -> bool:
    if not (torch.is_grad_enabled() and tensor.requires_grad):
        return False
    if tensor.is_leaf:
        raise ArgumentError(
            "a tensor that needs a gradient and is a leaf must not be written to: pass a result, "
            "such as that of torch.nn.functional.pad, or call it under torch.no_grad()"
        )
    _InPlace.apply(tensor, forward, backward)
    return True


KINDS = {torch.Tensor: Kind(_describe, _bump, _like, _stream, _record, _in_place)}
