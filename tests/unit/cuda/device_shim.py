"""Cases for test_device_tensors.py: device tensors go through the C shim, before any init.

Print one line for each case: its name, and what submit raised. A call with right arguments
reaches the core, which is not initialised.
"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import paddlempi._core as core  # type: ignore[import-not-found]
from paddlempi._ops import Op, ReduceCode
from paddlempi.errors import BY_CODE
from paddlempi.tensors.dlpack import _Tensor as DLTensor  # C reads it here

CUDA, PINNED, ROCM = 2, 3, 10


_FromObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
_CurrentStream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class ExchangeAPI(ctypes.Structure):
    _fields_: ClassVar = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("prev_api", ctypes.c_void_p),
        ("allocator", ctypes.c_void_p),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("view_from_object", _FromObject),
        ("current_stream", _CurrentStream),
    ]


_shape = (ctypes.c_int64 * 1)(3)


@_FromObject
def _view(tensor: Any, out: Any) -> int:
    out[0] = DLTensor(4096, tensor.device, tensor.index, 1, 2, 32, 1, _shape, None, 0)
    return 0


_streams = {0: 0, 1: 1, 2: 2, 3: 0x30, 4: 0x40}


@_CurrentStream
def _current(device: int, index: int, out: Any) -> int:
    assert device == CUDA, "host memory has no stream, so the shim must not ask for it"
    out[0] = _streams[index]
    return 0


_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_whole = ExchangeAPI(1, 3, None, None, None, None, _view, _current)
_mute = ExchangeAPI(1, 1, None, None, None, None, _view, _CurrentStream())


class Described:
    """A tensor on the stream that _streams has for the number of its device."""

    def __init__(self, index: int, device: int = CUDA) -> None:
        self.index, self.device = index, device

    def describe(self) -> tuple[Any, ...]:
        stream = _streams[self.index] if self.device == CUDA else 0
        return 4096, 12, (3,), None, self.device, self.index, False, stream


class Exchanged(Described):
    __dlpack_c_exchange_api__ = _new(ctypes.addressof(_whole), b"dlpack_exchange_api", None)

    def describe(self) -> tuple[Any, ...]:
        raise TypeError("describe was called")


class Mute(Exchanged):
    __dlpack_c_exchange_api__ = _new(ctypes.addressof(_mute), b"dlpack_exchange_api", None)


class Odd(Described):
    def __init__(self, *more: Any) -> None:
        self.more = more

    def describe(self) -> tuple[Any, ...]:
        return 4096, 12, (3,), None, CUDA, 0, False, *self.more


def attempt(name: str, send: Any, recv: Any) -> None:
    try:
        core.submit(int(Op.ALL_GATHER), 0, send, recv, int(ReduceCode.SUM))
    except Exception as error:
        print(f"{name}: {type(error).__name__} {error}")
    else:
        print(f"{name}: nothing")


core.set_errors(BY_CODE)
for kind in (Described, Exchanged, Mute, Odd):
    core.register(kind, kind.describe)

for way, made in (("describe", Described), ("exchange", Exchanged)):
    attempt(f"{way} same", made(3), [made(3), made(3)])
    attempt(f"{way} both names of the legacy one", made(0), [made(1), made(0)])
    attempt(f"{way} pinned and device", made(4, PINNED), [made(3, PINNED), made(3)])
    attempt(f"{way} differ in a list", None, [made(3), made(4)])
    attempt(f"{way} differ between send and recv", made(3), [made(1, PINNED), made(2)])
attempt("seven entries", None, Odd())
attempt("negative stream", None, Odd(-1))
attempt("no stream told", None, Mute(3))
attempt("ROCm", None, Exchanged(3, ROCM))
