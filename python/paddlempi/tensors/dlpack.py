"""Objects with ``__dlpack__``, which are described by the capsule that it returns.

This describer serves frameworks that have no other one (JAX, CuPy, ...), so reading the capsule
with ctypes is fast enough.

If the object is in CUDA memory, the operation is ordered after a stream of the producer:

* for CuPy its current stream;
* else the stream that ``__cuda_array_interface__`` names;
* else, and for JAX, the legacy default stream. ``__dlpack__(stream=1)`` asks the producer to order
  that stream after its work.

Sources: https://dmlc.github.io/dlpack/latest/c_api.html, python_spec.html.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from .._ops import DType
from ..errors import ArgumentError, DtypeError, UnsupportedError
from .cuda_array import stream_of
from .kind import (
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    LEGACY_STREAM,
    Description,
    Kind,
    cannot_make,
    name_of,
)

__all__ = ["describe", "kind"]


class _Tensor(ctypes.Structure):
    """DLTensor"""

    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned; a plain DLManagedTensor begins with its DLTensor."""

    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_NO_SYNC = -1  # as the stream of __dlpack__: the producer shall order nothing

_ELSEWHERE = {
    4: "OpenCL",
    7: "Vulkan",
    8: "Metal",
    9: "VPI",
    10: "ROCm",
    11: "pinned ROCm host",
    12: "an extension device's",
    14: "oneAPI",
    15: "WebGPU",
    16: "Hexagon",
    17: "MAIA",
    18: "Trainium",
}

_READ_ONLY, _IS_COPIED = 1, 2
_MAX_DIMS = 64

_DTYPES = {
    (0, 8): DType.INT8,
    (0, 16): DType.INT16,
    (0, 32): DType.INT32,
    (0, 64): DType.INT64,
    (1, 8): DType.UINT8,
    (1, 16): DType.UINT16,
    (1, 32): DType.UINT32,
    (1, 64): DType.UINT64,
    (2, 16): DType.FLOAT16,
    (2, 32): DType.FLOAT32,
    (2, 64): DType.FLOAT64,
    (4, 16): DType.BFLOAT16,
    (5, 64): DType.COMPLEX64,
    (5, 128): DType.COMPLEX128,
    (6, 8): DType.BOOL,
    (10, 8): DType.FLOAT8_E4M3FN,
    (11, 8): DType.FLOAT8_E4M3FNUZ,
    (12, 8): DType.FLOAT8_E5M2,
    (13, 8): DType.FLOAT8_E5M2FNUZ,
    (14, 8): DType.FLOAT8_E8M0FNU,
}

# New prototypes, because those of ctypes.pythonapi are shared by the whole process.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def describe(tensor: Any) -> Description:
    """Describe an object with ``__dlpack__`` and ``__dlpack_device__``.

    The capsule is dropped again. That is safe: it describes the memory of the object (a copy is an
    error), and the object is kept alive until the operation has ended.

    Raises:
        DtypeError: the object gives no capsule, or one of an unknown version, or no operation
            takes the dtype.
        ArgumentError: the capsule describes a copy, or has an impossible number of dimensions.
        UnsupportedError: the memory is neither the host's nor CUDA's.
    """
    name = name_of(type(tensor))
    is_deleted = getattr(tensor, "is_deleted", None)  # of JAX
    if is_deleted is not None and is_deleted():
        raise DtypeError(
            f"a {name} that was deleted has no memory: delete() or a function that it was donated "
            "to has given it away"
        )
    device_type, device_id = map(int, tensor.__dlpack_device__())
    if device_type in (CUDA, CUDA_MANAGED):
        wanted, stream = _streams(tensor, device_id)
        capsule = _capsule(tensor, stream=wanted)
    elif device_type in (CPU, CUDA_HOST):
        stream = 0
        capsule = _capsule(tensor)
    else:
        raise UnsupportedError(
            f"{name} is in {_ELSEWHERE.get(device_type, 'unknown')} memory (DLPack's "
            f"device type {device_type}): only host memory and CUDA's can be sent"
        )
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise DtypeError(f"DLPack {managed.major}.{managed.minor} is not understood, only 1.x")
        if managed.flags & _IS_COPIED:
            raise ArgumentError(f"{name} gives a copy of itself through __dlpack__")
        shown, readonly = managed.tensor, bool(managed.flags & _READ_ONLY)
    elif _is_valid(capsule, b"dltensor"):
        shown, readonly = _Tensor.from_address(_pointer(capsule, b"dltensor")), False
    else:
        raise DtypeError(f"{name}.__dlpack__() did not return a DLPack capsule")
    dtype = _DTYPES.get((shown.code, shown.bits)) if shown.lanes == 1 else None
    if dtype is None:
        raise DtypeError(
            f"{name} has DLPack dtype code {shown.code}, {shown.bits} bits, "
            f"{shown.lanes} lanes, which no operation takes"
        )
    if not 0 <= shown.ndim <= _MAX_DIMS:
        raise ArgumentError(f"{name} says it has {shown.ndim} dimensions")
    shape = tuple(shown.shape[: shown.ndim]) if shown.ndim else ()
    strides = tuple(shown.strides[: shown.ndim]) if shown.ndim and shown.strides else None
    # JAX's arrays are immutable, but DLPack 0.x has no flag for that.
    readonly = readonly or _is_of(type(tensor), "jax", "jaxlib")
    address = (shown.data or 0) + shown.byte_offset
    return address, int(dtype), shape, strides, device_type, device_id, readonly, stream


def kind(tensor_type: type) -> Kind:
    """Return the kind of a type of tensors with ``__dlpack__``."""
    if _is_of(tensor_type, "cupy"):
        cupy: Any = sys.modules["cupy"]
        return Kind(describe, None, cupy.empty_like, _consumer_of_cupy)
    return Kind(describe, None, cannot_make)


def _streams(tensor: Any, device_id: int) -> tuple[int, int]:
    """Return the stream to give to ``__dlpack__``, and the stream to order the operation after.

    The producer orders the first stream after its work.
    """
    if _is_of(type(tensor), "cupy"):
        return _NO_SYNC, _stream_of_cupy(device_id)
    # JAX's __cuda_array_interface__ waits on the host until the array is computed.
    stream = None if _is_of(type(tensor), "jax", "jaxlib") else stream_of(tensor)
    return (LEGACY_STREAM, LEGACY_STREAM) if stream is None else (_NO_SYNC, stream)


def _stream_of_cupy(device_id: int) -> int:
    cupy = sys.modules["cupy"]
    with cupy.cuda.Device(device_id):
        return int(cupy.cuda.get_current_stream().ptr)


def _consumer_of_cupy(array: Any) -> Callable[[], int] | None:
    device_type, device_id = map(int, array.__dlpack_device__())
    if device_type not in (CUDA, CUDA_MANAGED):
        return None
    return partial(_stream_of_cupy, device_id)


def _is_of(tensor_type: type, *packages: str) -> bool:
    return tensor_type.__module__.partition(".")[0] in packages


def _capsule(tensor: Any, **stream: int) -> object:
    try:
        try:
            return tensor.__dlpack__(max_version=(1, 1), copy=False, **stream)
        except TypeError:  # a producer older than DLPack 1.0 takes neither argument
            return tensor.__dlpack__(**stream)
    except BufferError as error:
        raise DtypeError(f"{name_of(type(tensor))} does not give its memory: {error}") from error
