"""Paddle's tensors, in host memory and CUDA's. Paddle has ``record_stream`` for its C++ alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import paddle

from ..errors import DtypeError, UnsupportedError
from .kind import CPU, CUDA, CUDA_HOST, KNOWN_DTYPES, Description, Kind, codes_of

__all__ = ["KINDS"]

_CODES = codes_of(paddle, "uint16")  # its name for bfloat16


def _describe(tensor: Any) -> Description:
    # In this order: a tensor of SelectedRows has no address and another shape.
    if not tensor.is_dense():
        raise DtypeError(
            "a Paddle tensor that is sparse or SelectedRows cannot be sent: make it dense"
        )
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise DtypeError(f"a Paddle tensor of dtype {tensor.dtype} cannot be sent: {KNOWN_DTYPES}")
    kind, index, now = _where(tensor.place)
    shape = tuple(tensor.shape)
    address = tensor.data_ptr() if tensor._is_initialized() else 0
    return address, code, shape, tuple(tensor.strides), kind, index, False, now


def _where(place: Any) -> tuple[int, int, int]:
    if place.is_cpu_place():
        return CPU, 0, 0
    if place.is_cuda_pinned_place():
        return CUDA_HOST, 0, 0
    if not _on_cuda(place):
        raise UnsupportedError(
            f"a Paddle tensor on {place}: only host memory and CUDA's can be sent; move it "
            "with .cpu()"
        )
    index = place.gpu_device_id()
    return CUDA, index, _current(index)


def _bump(tensor: Any) -> None:
    tensor._bump_inplace_version()


def _on_cuda(place: Any) -> bool:
    return place.is_gpu_place() and not paddle.is_compiled_with_rocm()


def _current(index: int) -> int:
    return int(paddle.base.core._get_current_stream(index).cuda_stream)


def _stream(tensor: Any) -> Callable[[], int] | None:
    place = tensor.place
    return partial(_current, place.gpu_device_id()) if _on_cuda(place) else None


KINDS = {paddle.Tensor: Kind(_describe, _bump, paddle.empty_like, _stream)}
