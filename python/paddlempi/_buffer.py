"""Any tensor to a description of its memory: a registry by type.

The core itself reads what has the buffer protocol (NumPy, bytearray, memoryview,
array) or DLPack's C exchange API. For every other type this module, asked once
for each type, registers a function ``describe(x)``. A framework is found through
``sys.modules``, never imported: a tensor of it can only exist where it is there.

Each type has a :class:`Kind`:

describe
    memory, dtype, shape and strides of a tensor, or None where the core reads it
bump
    tells autograd that the tensor was written to, or None where there is none
empty_like
    a new tensor of the same shape, dtype and type, its content undefined
stream
    of a tensor in device memory, a function that tells the stream which is current on that
    device when it is called, and does not hold the tensor; None for one in host memory. Where
    the type has no such function the stream in its description is taken
record
    tells the caching allocator that the stream which is current on its device uses the tensor,
    which may be freed then before that stream has come so far. False: there is nothing to tell
    (host memory), so the tensor is kept until the operation has ended on the device too

Thread-safety: all functions may be called from any thread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

from . import _native
from ._ops import DTYPE_BY_NAME
from .errors import ArgumentError, DtypeError, UnsupportedError

__all__ = [
    "CPU",
    "CUDA",
    "CUDA_HOST",
    "CUDA_MANAGED",
    "LEGACY_STREAM",
    "Description",
    "Kind",
    "consumer",
    "empty_like",
    "record",
    "register",
    "type_name",
]

CPU = 1
CUDA = 2
CUDA_HOST = 3
CUDA_MANAGED = 13
"""DLPack's device types; CUDA_HOST is pinned host memory."""

LEGACY_STREAM = 1
"""CUDA's handle of the legacy default stream, which 0 names too."""

Description = tuple[int, int, tuple[int, ...], tuple[int, ...] | None, int, int, bool, int]
"""Address, dtype, shape, strides in elements or None, device type, device id, read-only, and
of CUDA memory the stream whose work on the tensor comes before the operation's (else 0)."""


class Kind(NamedTuple):
    """What one needs to know of a type of tensors; see the module."""

    describe: Callable[[Any], Description] | None
    bump: Callable[[Any], None] | None
    empty_like: Callable[[Any], Any]
    stream: Callable[[Any], Callable[[], int] | None] | None = None
    record: Callable[[Any], bool] | None = None


_kinds: dict[type, Kind] = {}


def register(tensor_type: type, kind: Kind) -> None:
    """Teach the library a type of tensors, and its subclasses unless they are registered too."""
    _kinds[tensor_type] = kind


def empty_like(tensor: Any) -> Any:
    """A new tensor of the same type, shape and dtype, its content undefined.

    Raises:
        DtypeError: ``tensor`` is no tensor, or of a type that cannot be made here.
    """
    return _kind_of(tensor.__class__).empty_like(tensor)


def type_name(tensor: object) -> str:
    """The type of an object as messages name it."""
    return f"{type(tensor).__module__}.{type(tensor).__qualname__}"


def _leaves(tensors: object) -> Iterator[Any]:
    if isinstance(tensors, (list, tuple)):
        for tensor in tensors:
            yield from _leaves(tensor)
    elif tensors is not None:
        yield tensors


def consumer(tensors: object) -> Callable[[], int]:
    """What tells the stream that uses a result, as the framework of the device tensors has it.

    Args:
        tensors: a tensor, None, or sequences of them in any depth.

    Returns:
        A function without arguments, which does not hold the tensors. Where none of them knows
        of a stream it tells CUDA's legacy default stream.
    """
    for tensor in _leaves(tensors):
        kind = _kind_of(tensor.__class__)
        if kind.stream is not None:
            found = kind.stream(tensor)
            if found is not None:
                return found
        elif kind.describe is not None:
            description = kind.describe(tensor)
            if description[4] in (CUDA, CUDA_MANAGED):
                return partial(int, description[7])
    return partial(int, LEGACY_STREAM)


def record(tensors: object) -> bool:
    """Tell the caching allocators that the current streams use tensors; see :class:`Kind`.

    Returns:
        Whether all of them may be let go now.
    """
    told = [
        kind.record is not None and kind.record(tensor)
        for tensor in _leaves(tensors)
        for kind in (_kind_of(tensor.__class__),)
    ]
    return all(told)


def _kind_of(tensor_type: type) -> Kind:
    for base in tensor_type.__mro__:
        kind = _kinds.get(base)
        if kind is not None:
            return kind
    for find in (_torch, _paddle, _numpy):
        found = find(tensor_type)
        if found is not None:
            register(*found)
            return found[1]
    if hasattr(tensor_type, "__dlpack__"):
        from . import _dlpack

        return _registered(tensor_type, _dlpack.kind(tensor_type, _cannot_make))
    if hasattr(tensor_type, "__cuda_array_interface__"):
        from . import _cuda_array

        return _registered(tensor_type, Kind(_cuda_array.describe, None, _cannot_make))
    return _PLAIN


def _registered(tensor_type: type, kind: Kind) -> Kind:
    register(tensor_type, kind)
    return kind


def _resolve(tensor: object) -> None:
    """Register the type of a tensor that the core cannot read by itself."""
    tensor_type = tensor.__class__
    kind = _kind_of(tensor_type)
    if kind.describe is None and hasattr(tensor, "__cuda_array_interface__"):  # its own attribute
        from . import _cuda_array

        kind = _registered(tensor_type, Kind(_cuda_array.describe, None, _cannot_make))
    if kind.describe is None:
        raise DtypeError(
            f"an object of type {type_name(tensor)} is no tensor: "
            "give one of NumPy, Paddle or PyTorch, or what has the buffer protocol, __dlpack__ or "
            "__cuda_array_interface__"
        )
    _native.core().register(tensor_type, kind.describe, kind.bump)


def _install(core: ModuleType) -> None:
    core.set_resolver(_resolve)


_native.on_load(_install)


def _cannot_make(tensor: Any) -> Any:
    raise DtypeError(
        f"cannot make a new tensor like one of type {type(tensor).__qualname__}: "
        "use all_reduce(), which works in place, or give a NumPy, Paddle or PyTorch tensor"
    )


# Plain memory: whatever has the buffer protocol.


def _plain_like(tensor: Any) -> Any:
    if isinstance(tensor, (bytes, bytearray)):
        return bytearray(len(tensor))
    try:
        view = memoryview(tensor)
    except TypeError:
        return _cannot_make(tensor)
    array = sys.modules.get("array")
    if array is not None and isinstance(tensor, array.array):
        return array.array(tensor.typecode, bytes(view.nbytes))
    flat: Any = memoryview(bytearray(view.nbytes))
    # A memoryview casts to a shape without zeros only; one without elements stays flat.
    return flat.cast(view.format, view.shape) if view.nbytes else flat.cast(view.format)


_PLAIN = Kind(None, None, _plain_like)


# NumPy: its own dtypes go by the buffer protocol; those of ml_dtypes (bfloat16,
# float8) have neither that nor DLPack and are known by name.


def _numpy(tensor_type: type) -> tuple[type, Kind] | None:
    np = sys.modules.get("numpy")
    if np is None or not hasattr(np, "ndarray"):
        return None
    if issubclass(tensor_type, np.ndarray):
        return np.ndarray, Kind(_describe_numpy, None, lambda x: np.empty_like(x, subok=False))
    if issubclass(tensor_type, np.generic):
        return np.generic, Kind(None, None, lambda x: np.empty((), x.dtype))
    return None


def _describe_numpy(array: Any) -> Description:
    dtype = array.dtype
    code = DTYPE_BY_NAME.get(dtype.name)
    if code is None:
        raise DtypeError(f"a NumPy array of dtype {dtype} cannot be sent: {_KNOWN}")
    if not dtype.isnative:
        raise DtypeError(f"a NumPy array of dtype {dtype.str} is not in this machine's byte order")
    interface = array.__array_interface__
    address, readonly = interface["data"]
    strides = interface.get("strides")
    if strides is not None:
        size = dtype.itemsize
        if any(step % size for step in strides):
            raise ArgumentError(
                f"a NumPy array with strides {strides} (bytes), no multiples of its itemsize {size}"
            )
        strides = tuple(step // size for step in strides)
    return address, int(code), array.shape, strides, CPU, 0, readonly, 0


_KNOWN = "the dtypes are " + ", ".join(DTYPE_BY_NAME)


# PyTorch


def _torch(tensor_type: type) -> tuple[type, Kind] | None:
    torch = sys.modules.get("torch")
    # A module that is still being imported, in another thread, has no Tensor yet.
    if torch is None or not hasattr(torch, "Tensor") or not issubclass(tensor_type, torch.Tensor):
        return None
    codes = {
        getattr(torch, name): int(code)
        for name, code in DTYPE_BY_NAME.items()
        if hasattr(torch, name)
    }
    strided = torch.strided

    def describe(tensor: Any) -> Description:
        code, on_host = codes.get(tensor.dtype), tensor.is_cpu
        if code is None or tensor.layout is not strided or (not on_host and tensor.is_meta):
            raise DtypeError(
                f"a torch tensor of dtype {tensor.dtype}, layout {tensor.layout} on device "
                f"'{tensor.device}' cannot be sent: it must be dense, have memory, and {_KNOWN}"
            )
        if tensor.is_conj() or tensor.is_neg():
            raise DtypeError(
                "a torch tensor that is a lazy conjugate or negative has other bits in memory: "
                "call resolve_conj() and resolve_neg() on it first"
            )
        strides = None if tensor.is_contiguous() else tensor.stride()
        if on_host:  # pinned memory too
            return tensor.data_ptr(), code, tensor.shape, strides, CPU, 0, False, 0
        index = cuda_index(tensor)
        if index is None:
            raise UnsupportedError(
                f"a torch tensor on device '{tensor.device}': only host memory and CUDA's can be "
                "sent; move it with .cpu()"
            )
        now = current(index)
        return tensor.data_ptr(), code, tensor.shape, strides, CUDA, index, False, now

    def bump(tensor: Any) -> None:
        if not tensor.is_inference():  # those keep no version
            torch.autograd.graph.increment_version(tensor)

    def cuda_index(tensor: Any) -> int | None:
        # torch for ROCm calls its devices cuda.
        return tensor.get_device() if tensor.is_cuda and not torch.version.hip else None

    def current(index: int) -> int:
        # What torch's own compiler calls: a tenth of the time of torch.cuda.current_stream.
        return int(torch._C._cuda_getCurrentRawStream(index))

    def stream(tensor: Any) -> Callable[[], int] | None:
        index = cuda_index(tensor)
        return None if index is None else partial(current, index)

    def record(tensor: Any) -> bool:
        index = cuda_index(tensor)
        if index is None:
            return False
        tensor.record_stream(torch.cuda.current_stream(index))
        return True

    def like(tensor: Any) -> Any:
        return torch.empty_like(tensor.detach())

    return torch.Tensor, Kind(describe, bump, like, stream, record)


# Paddle


def _paddle(tensor_type: type) -> tuple[type, Kind] | None:
    paddle = sys.modules.get("paddle")
    if (
        paddle is None
        or not hasattr(paddle, "Tensor")
        or not issubclass(tensor_type, paddle.Tensor)
    ):
        return None
    codes = {
        getattr(paddle, name): int(code)
        for name, code in DTYPE_BY_NAME.items()
        if hasattr(paddle, name) and name != "uint16"  # its name for bfloat16
    }

    def describe(tensor: Any) -> Description:
        # In this order: a tensor of SelectedRows has no address and another shape.
        if not tensor.is_dense():
            raise DtypeError(
                "a Paddle tensor that is sparse or SelectedRows cannot be sent: make it dense"
            )
        code = codes.get(tensor.dtype)
        if code is None:
            raise DtypeError(f"a Paddle tensor of dtype {tensor.dtype} cannot be sent: {_KNOWN}")
        kind, index, now = where(tensor.place)
        shape = tuple(tensor.shape)
        address = tensor.data_ptr() if tensor._is_initialized() else 0
        return address, code, shape, tuple(tensor.strides), kind, index, False, now

    def where(place: Any) -> tuple[int, int, int]:
        if place.is_cpu_place():
            return CPU, 0, 0
        if place.is_cuda_pinned_place():
            return CUDA_HOST, 0, 0
        if not on_cuda(place):
            raise UnsupportedError(
                f"a Paddle tensor on {place}: only host memory and CUDA's can be sent; move it "
                "with .cpu()"
            )
        index = place.gpu_device_id()
        return CUDA, index, current(index)

    def on_cuda(place: Any) -> bool:
        return place.is_gpu_place() and not paddle.is_compiled_with_rocm()

    def current(index: int) -> int:
        core = paddle.base.core
        return int(core._get_current_stream(index).cuda_stream)

    def stream(tensor: Any) -> Callable[[], int] | None:
        # No allocator can be told (record): Paddle has that for its C++ alone.
        place = tensor.place
        return partial(current, place.gpu_device_id()) if on_cuda(place) else None

    def bump(tensor: Any) -> None:
        tensor._bump_inplace_version()

    return paddle.Tensor, Kind(describe, bump, paddle.empty_like, stream)
