"""DLPack's structs, and capsules of them, for the tensors of :mod:`device`.

Source: https://dmlc.github.io/dlpack/latest/python_spec.html.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from device import DeviceTensor


class _DLTensor(ctypes.Structure):
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


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_: ClassVar = [
        ("tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
    ]


class _Versioned(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", _Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_NAMED_CODES = {
    "bfloat16": 4,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}

_given: dict[int, tuple[object, ...]] = {}
"""What a capsule shows, by its address, until its deleter is called."""


@_Deleter
def _delete(address: int) -> None:
    _given.pop(address, None)


_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_NAMES = (b"dltensor", b"dltensor_versioned")


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule: int) -> None:
    for name in _NAMES:  # a consumer has renamed the capsule
        if _is_valid(capsule, name):
            _given.pop(_pointer(capsule, name), None)


def of(tensor: DeviceTensor, *, versioned: bool) -> object:
    """Return a capsule that shows the tensor and keeps it alive."""
    n = len(tensor.shape)
    shape = (ctypes.c_int64 * n)(*tensor.shape)
    strides = (ctypes.c_int64 * n)(*tensor.strides)
    device_type, device_id = tensor.__dlpack_device__()
    code = _NAMED_CODES.get(tensor.dtype)
    shown = _DLTensor(
        tensor.data_ptr,
        device_type,
        device_id,
        n,
        _CODES[tensor.numpy_dtype.kind] if code is None else code,
        tensor.numpy_dtype.itemsize * 8,
        1,
        shape,
        strides,
        0,
    )
    managed: ctypes.Structure
    if versioned:
        managed = _Versioned(1, 0, None, _delete, 0, shown)
    else:
        managed = _Managed(shown, None, _delete)
    address = ctypes.addressof(managed)
    _given[address] = (managed, tensor, shape, strides)
    destructor = ctypes.cast(_destroy, ctypes.c_void_p)
    return _new(address, _NAMES[versioned], destructor)
