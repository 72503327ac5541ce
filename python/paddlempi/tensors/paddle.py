"""Paddle's tensors in host memory and in CUDA memory.

Its kind has no ``record``, because only Paddle's C++ has ``record_stream``.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import paddle

from ..errors import ArgumentError, DtypeError, UnsupportedError
from .kind import (
    CPU,
    CUDA,
    CUDA_HOST,
    KNOWN_DTYPES,
    Description,
    Kind,
    codes_of,
    lossy,
    out_of_range,
    takes,
    unlike,
)

__all__ = [
    "KINDS",
    "from_host",
    "joined",
    "new",
    "over",
    "rows_of",
    "shard_of",
    "spread",
    "to_host",
]

_CODES = codes_of(paddle, "uint16")  # Paddle's uint16 is bfloat16


def _describe(tensor: Any) -> Description:
    # Checked first: a SelectedRows tensor has no address, and its shape is not that of its memory.
    if not tensor.is_dense():
        raise DtypeError(
            "a Paddle tensor that is sparse or SelectedRows cannot be sent: make it dense"
        )
    code = _CODES.get(tensor.dtype)
    if code is None:
        raise DtypeError(f"a Paddle tensor of dtype {tensor.dtype} cannot be sent: {KNOWN_DTYPES}")
    kind, index, stream = _device_and_stream(tensor.place)
    shape = tuple(tensor.shape)
    address = tensor.data_ptr() if tensor._is_initialized() else 0
    return address, code, shape, tuple(tensor.strides), kind, index, False, stream


def _device_and_stream(place: Any) -> tuple[int, int, int]:
    """Return the DLPack device type and the device id of a place, and its current stream."""
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


_ARRAYS = {"bool": "uint8", "bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""The dtypes of NumPy with the bits of those dtypes of Paddle that DLPack does not carry over."""


def over(memory: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a tensor over memory with the buffer protocol, which it keeps alive.

    Raises:
        DtypeError: this Paddle does not have the dtype.
    """
    kind = getattr(paddle, dtype, None)
    if kind is None or dtype == "uint16":  # paddle.uint16 is bfloat16
        raise DtypeError(f"Paddle {paddle.__version__} has no dtype {dtype}")
    if len(memory) == 0:
        return paddle.empty(shape, dtype)
    array = np.frombuffer(memory, _ARRAYS.get(dtype, dtype))
    tensor = paddle.utils.dlpack.from_dlpack(array)
    return (tensor if tensor.dtype == kind else tensor.view(kind)).reshape_(shape)


def new(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a new tensor in ordinary host memory. Its elements are undefined."""
    return paddle.empty(shape, dtype).cpu()


def to_host(tensor: Any, index: tuple[slice, ...]) -> Any:
    """Return a contiguous copy of a part of a tensor in host memory."""
    return tensor.detach()[index].cpu().contiguous()


def from_host(tensor: Any, index: tuple[slice, ...], values: Any) -> None:
    """Write a tensor in host memory into a part of a tensor; returns when it is there."""
    tensor.detach()[index] = values.to(tensor.place)
    paddle.device.synchronize()


def shard_of(tensor: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]] | None:
    """Return what this rank holds of a distributed tensor; None if the tensor is an ordinary one.

    Returns:
        The local tensor, the shape of the whole, and where in the whole the local one begins.

    Raises:
        ArgumentError: the ranks do not hold boxes of the whole.
    """
    if not tensor.is_dist():
        return None
    import paddle.distributed as dist

    mesh, shape = tensor.process_mesh, tuple(tensor.shape)
    for number, place in enumerate(tensor.placements):
        if place.is_partial():
            raise ArgumentError(
                f"it is Partial on dimension {number} of its mesh: the ranks hold addends of it; "
                "reshard it first"
            )
    here = np.argwhere(np.array(mesh.process_ids).reshape(mesh.shape) == dist.get_rank())
    if not len(here):  # this rank is not in the mesh
        if not shape:
            raise ArgumentError("it is a scalar, and this rank is not in its mesh")
        return paddle.empty((0,) * len(shape), tensor.dtype), shape, (0,) * len(shape)
    local = tensor._local_value()
    # Paddle cuts a length that cannot be divided in one of two ways. The lengths tell which.
    for even in (False, True):
        begins, lengths = _box(tensor, here[0].tolist(), even)
        if lengths == tuple(local.shape):
            return local, shape, begins
    raise ArgumentError(
        f"this rank holds a tensor of shape {tuple(local.shape)}, and by its placements "
        f"{tensor.placements} it would be {lengths}"
    )


def _box(tensor: Any, here: list[int], even: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where the part of a rank begins, and its lengths, by the tensor's placements.

    Args:
        tensor: a distributed tensor.
        here: the rank's place in the mesh.
        even: whether the lengths of parts differ by 1 at most; else all but the last are the same.
    """
    begins, ends = [0] * tensor.ndim, list(tensor.shape)
    for number, place in enumerate(tensor.placements):
        if place.is_shard():
            dim = place.get_dim()
            length, at = ends[dim] - begins[dim], here[number]
            parts = tensor.process_mesh.shape[number]
            if even:
                each, more = divmod(length, parts)
                first, last = (r * each + min(r, more) for r in (at, at + 1))
            else:
                each = -(-length // parts)
                first, last = (min(r * each, length) for r in (at, at + 1))
            begins[dim], ends[dim] = begins[dim] + first, begins[dim] + last
    return tuple(begins), tuple(e - b for b, e in zip(begins, ends, strict=True))


def spread(values: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a tensor of some shape with values, broadcast as NumPy's assignment does.

    Args:
        values: a tensor of any dtype; or numbers, which are converted to ``dtype``.
        dtype: the name of a dtype.
        shape: the shape.

    Raises:
        ArgumentError: the shapes do not fit, or a number is out of the dtype's range.
        DtypeError: the values are no numbers, or would lose a fraction or an imaginary part.
    """
    tensor = values if isinstance(values, paddle.Tensor) else _numbers(values, dtype)
    given, extra = tuple(tensor.shape), tensor.ndim - len(shape)
    if extra > 0 and given[:extra] == (1,) * extra:
        tensor = tensor.reshape(given[extra:])
    try:
        return tensor if tuple(tensor.shape) == shape else tensor.expand(shape)
    except ValueError:
        raise unlike(given, shape) from None


def _numbers(values: Any, dtype: str) -> Any:
    try:
        found = np.asarray(values)
    except ValueError:  # lists of different lengths
        raise lossy(values, dtype) from None
    if not takes(dtype, found.dtype.kind):
        raise lossy(values, dtype)
    given = paddle.to_tensor(found, place=paddle.CPUPlace())
    converted = given.astype(dtype)
    if "int" in dtype and not bool((converted.astype(given.dtype) == given).all()):
        raise out_of_range(values, dtype)
    if "float" in dtype and (paddle.isinf(converted).numpy() & ~np.isinf(found)).any():
        raise out_of_range(values, dtype)
    return converted


def joined(tensors: Sequence[Any]) -> Any:
    """Return a tensor with the rows of all tensors, in order."""
    return paddle.concat(list(tensors))


def rows_of(gradient: Any) -> tuple[Any, Any]:
    """Return the row numbers and the rows of a SelectedRows gradient in host memory, as NumPy
    arrays.

    The rows are the gradient's memory, which they keep alive. A row number may occur several times.

    Raises:
        DtypeError: the gradient is no SelectedRows of float32.
        UnsupportedError: it is in device memory.
    """
    if not gradient.is_selected_rows() or gradient.dtype != paddle.float32:
        raise DtypeError(
            f"a Paddle tensor of dtype {gradient.dtype} is no gradient of rows: it must be "
            "SelectedRows of float32"
        )
    rows = np.array(gradient.rows(), np.int64)
    width = tuple(gradient.shape)[1:]
    if not len(rows):
        return rows, np.zeros((0, *width), np.float32)
    if not gradient.place.is_cpu_place():
        raise UnsupportedError(f"SelectedRows on {gradient.place}: move them with .cpu()")
    inside = gradient.get_selected_rows().get_tensor()
    shape = tuple(inside.shape())
    data = (ctypes.c_float * math.prod(shape)).from_address(inside._ptr())
    data.gradient = gradient  # keeps it alive
    return rows, np.frombuffer(data, np.float32).reshape(shape)


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
