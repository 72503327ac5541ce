"""Objects with ``__cuda_array_interface__``: Numba's and PyCUDA's arrays, classes of users.

The describer :mod:`.dlpack` serves objects that also have ``__dlpack__``, because DLPack has more
dtypes and names the device. It takes only the stream from ``__cuda_array_interface__``.

Source: https://nvidia.github.io/numba-cuda/user/cuda_array_interface.html (versions 2 and 3).
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

from .._ops import DType
from ..errors import ArgumentError, DtypeError, UnsupportedError
from .kind import CUDA, LEGACY_STREAM, Description, Kind, cannot_make, name_of

__all__ = ["describe", "kind", "stream_of"]

_DTYPES = {
    "b1": DType.BOOL,
    "i1": DType.INT8,
    "i2": DType.INT16,
    "i4": DType.INT32,
    "i8": DType.INT64,
    "u1": DType.UINT8,
    "u2": DType.UINT16,
    "u4": DType.UINT32,
    "u8": DType.UINT64,
    "f2": DType.FLOAT16,
    "f4": DType.FLOAT32,
    "f8": DType.FLOAT64,
    "c8": DType.COMPLEX64,
    "c16": DType.COMPLEX128,
}


def describe(tensor: Any) -> Description:
    """Describe an object with ``__cuda_array_interface__``.

    The device id of the description is 0, because the interface does not name the device. The core
    asks the driver for it.

    Raises:
        DtypeError: the interface is invalid or not of version 2 or 3, or no operation takes the
            dtype. The interface has no code for bfloat16 and float8: some producers name them as
            raw bytes, others as another dtype.
        ArgumentError: the strides are no multiples of the itemsize, or the stream is invalid.
        UnsupportedError: the array has a mask.
    """
    shown = tensor.__cuda_array_interface__
    name = name_of(type(tensor))
    try:
        version, shape, typestr = shown["version"], tuple(shown["shape"]), shown["typestr"]
        address, readonly = shown["data"]
        address = index(address)
    except (KeyError, TypeError, ValueError) as error:
        raise DtypeError(
            f"{name}.__cuda_array_interface__ is no valid description: {error!r}"
        ) from error
    if version not in (2, 3):
        raise DtypeError(
            f"{name}.__cuda_array_interface__ is of version {version}, only 2 and 3 are understood"
        )
    dtype = _DTYPES.get(typestr[1:])
    if dtype is None or typestr[0] == ">":
        raise DtypeError(
            f"{name}.__cuda_array_interface__ has typestr {typestr!r}, which no operation takes: "
            "it must be of this machine's byte order; bfloat16 and float8 go by __dlpack__ only"
        )
    if shown.get("mask") is not None:
        raise UnsupportedError(f"{name} has a mask: send its data and its mask separately")
    size = int(typestr[2:])
    strides = shown.get("strides")
    if strides is not None:
        if any(step % size for step in strides):
            raise ArgumentError(
                f"{name} has strides {tuple(strides)} (bytes), no multiples of its itemsize {size}"
            )
        strides = tuple(step // size for step in strides)
    stream = _stream(shown, name) or LEGACY_STREAM
    return address, int(dtype), shape, strides, CUDA, 0, bool(readonly), stream


def kind(tensor_type: type) -> Kind:
    """Return the kind of a type of arrays with ``__cuda_array_interface__``."""
    return Kind(describe, None, cannot_make)


def stream_of(tensor: Any) -> int | None:
    """Return the stream that an object's interface names; None if it names none.

    Raises:
        ArgumentError: the entry is no stream.
    """
    shown = getattr(tensor, "__cuda_array_interface__", None)
    return None if shown is None else _stream(shown, name_of(type(tensor)))


def _stream(shown: Mapping[str, Any], name: str) -> int | None:
    """Return the stream of an interface; None if no stream works on the data any more."""
    stream = shown.get("stream")
    if stream is None:
        return None
    try:
        number = index(stream)
    except TypeError:
        number = 0
    if number < 1:
        raise ArgumentError(
            f"{name}.__cuda_array_interface__ has stream {stream!r}: it must be None, 1 (the "
            "legacy default stream), 2 (the calling thread's) or the handle of one"
        )
    return number
