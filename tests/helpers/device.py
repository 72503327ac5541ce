"""Tensors in CUDA memory without a framework, for the tests of device tensors.

:class:`DeviceTensor` speaks DLPack and ``__cuda_array_interface__``. :class:`DLPackTensor` and
:class:`InterfaceTensor` speak only one of the two. The driver is the library that
``PADDLEMPI_CUDA`` names: the fake one (``gocore/cuda/cudafake/driver/fake.h``), or a GPU's. Only
the fake one has :func:`calls`, :func:`fail`, :func:`fault` and :func:`pending`; tests that need
them have the marker ``fake_driver``.

The tensors behave like a framework's where that exposes mistakes. Their values arrive late, by a
copy on their stream. When a tensor is gone, its memory is overwritten with 0xEE on its stream and
handed to the next tensor of that stream, without a wait for the device. A read that comes too
late finds 0xEE.

Sources: CUDA Driver API reference; https://dmlc.github.io/dlpack/latest/python_spec.html;
https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import capsules
import numpy as np

LEGACY, PER_THREAD = 1, 2
"""Handles of the default streams; 0 is the legacy one too."""

KINDS = {"plain": 2, "pool": 2, "pinned": 3, "managed": 13}
"""How memory was allocated, and DLPack's type of device for it."""

NOT_READY = 600
"""CUDA_ERROR_NOT_READY"""

_OWN_STREAMS = 8
_POISON = 0xEE

_word = ctypes.c_uint64


class DriverError(RuntimeError):
    """A call of the driver failed; ``code`` is its CUresult."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{function} returned {code}")
        self.code = code


class _Driver:
    """The driver's functions. They take integers for handles and pointers; an error is raised."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._contexts: dict[int, int] = {}
        self.cuInit(0)

    def __getattr__(self, name: str) -> Any:
        symbol = getattr(self._library, name)

        def call(*arguments: Any) -> None:
            code = symbol(*(_word(a) if isinstance(a, int) else a for a in arguments))
            if code:
                raise DriverError(name, code)

        setattr(self, name, call)
        return call

    def has(self, name: str) -> bool:
        """Return whether the driver has a function of this name."""
        return hasattr(self._library, name)

    def get_last(self, name: str, *arguments: Any) -> int:
        """Call a function and return what it writes through its last argument, a pointer."""
        value = _word()
        getattr(self, name)(*arguments, ctypes.byref(value))
        return value.value

    def get(self, name: str, *arguments: Any) -> int:
        """Call a function and return what it writes through its first argument, a pointer."""
        value = _word()
        getattr(self, name)(ctypes.byref(value), *arguments)
        return value.value

    def raw(self, name: str, *arguments: Any) -> int:
        """Call a function and return its result, an unsigned integer of 32 bits. Raise nothing."""
        symbol = getattr(self._library, name)
        symbol.restype = _word
        return int(symbol(*(_word(a) if isinstance(a, int) else a for a in arguments))) & 0xFFFFFFFF

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Make the primary context of a device current in the block."""
        if device not in self._contexts:
            self._contexts[device] = self.get("cuDevicePrimaryCtxRetain", device)
        self.cuCtxPushCurrent_v2(self._contexts[device])
        try:
            yield
        finally:
            self.cuCtxPopCurrent_v2(0)


@functools.cache
def driver() -> _Driver:
    """Return the driver. The first call initialises it."""
    return _Driver(os.environ["PADDLEMPI_CUDA"])


def device_count() -> int:
    """Return the number of devices that the driver shows."""
    return driver().get("cuDeviceGetCount") & 0xFFFFFFFF


@functools.cache
def is_fake() -> bool:
    """Return whether the driver is the fake one."""
    return driver().has("fakecuda_hold")


@contextmanager
def hold(stream: int, device: int = 0) -> Iterator[None]:
    """Hold up the operations that are queued on ``stream`` inside the block until the block ends.

    First wait for the operations that are queued already. So another stream that waits for one of
    those is not held up.
    """
    with driver().on(device):
        driver().cuStreamSynchronize(stream)
        if is_fake():
            driver().fakecuda_hold(stream, 1)
        else:
            gate = next(_gates())
            driver().cuStreamWaitValue32_v2(stream, gate, 1, 0)  # until it is at least 1
    try:
        yield
    finally:
        with driver().on(device):
            if is_fake():
                driver().fakecuda_hold(stream, 0)
            else:
                ctypes.c_uint32.from_address(gate).value = 1


@functools.cache
def _gates() -> Iterator[int]:
    """Addresses of words that are 0, in pinned memory that every device reads."""
    count = 1 << 16
    first = driver().get("cuMemHostAlloc", 4 * count, 1)  # portable
    ctypes.memset(first, 0, 4 * count)
    return iter(range(first, first + 4 * count, 4))


@contextmanager
def capture(stream: int) -> Iterator[None]:
    """Capture what this thread queues on ``stream`` of device 0 inside the block into a graph."""
    with driver().on(0):
        if is_fake():
            driver().fakecuda_capture(stream, 1)
        else:
            driver().cuStreamBeginCapture_v2(stream, 1)  # calls of other threads are allowed
    try:
        yield
    finally:
        with driver().on(0):
            if is_fake():
                driver().fakecuda_capture(stream, 0)
            else:
                driver().cuGraphDestroy(driver().get_last("cuStreamEndCapture", stream))


def is_busy(stream: int, device: int = 0) -> bool:
    """Return whether work that was queued on the stream has not ended."""
    with driver().on(device):
        return driver().raw("cuStreamQuery", stream) == NOT_READY


def calls(function: str) -> int:
    """Return how often this process called a function of the driver."""
    return driver().raw("fakecuda_calls", function.encode())


def pending() -> int:
    """Return the number of operations that are queued in this process."""
    return driver().raw("fakecuda_pending")


def fail(rules: str) -> None:
    """Make calls fail from now on. ``"cuMemHostAlloc:3:2"``: the third call returns error 2."""
    driver().fakecuda_fail(rules.encode())


def fault(stream: int, error: int = 700, device: int = 0) -> None:
    """Queue a kernel that fails. Once it has run, every call on the device returns ``error``."""
    with driver().on(device):
        driver().fakecuda_fault(stream, error)


def new_stream(device: int = 0, *, blocking: bool = False) -> int:
    """Make a stream and return it. A blocking stream is ordered with the legacy default stream."""
    with driver().on(device):
        return driver().get("cuStreamCreate", 0 if blocking else 1)


@functools.cache
def _own_streams(device: int) -> Iterator[int]:
    return itertools.cycle([new_stream(device) for _ in range(_OWN_STREAMS)])


def synchronize(stream: int, device: int = 0) -> None:
    """Wait until what is queued on ``stream`` has ended."""
    with driver().on(device):
        driver().cuStreamSynchronize(stream)


def wait(stream: int, other: int, device: int = 0) -> None:
    """Make ``stream`` wait for what is queued on ``other`` now."""
    cuda = driver()
    with cuda.on(device):
        event = cuda.get("cuEventCreate", 2)
        cuda.cuEventRecord(event, other)
        cuda.cuStreamWaitEvent(stream, event, 0)
        cuda.cuEventDestroy_v2(event)


class _AddArguments(ctypes.Structure):
    _fields_: ClassVar = [
        ("values", ctypes.c_uint64),
        ("count", ctypes.c_int64),
        ("addend", ctypes.c_float),
    ]


PTX = """
.version 7.0
.target sm_52
.address_size 64
.visible .entry fakecuda_add(
    .param .align 8 .b8 fakecuda_add_param_0[24]
)
{
    .reg .pred %p<2>;
    .reg .f32 %f<4>;
    .reg .b32 %r<5>;
    .reg .b64 %d<8>;
    ld.param.u64 %d1, [fakecuda_add_param_0];
    ld.param.u64 %d2, [fakecuda_add_param_0+8];
    ld.param.f32 %f1, [fakecuda_add_param_0+16];
    cvta.to.global.u64 %d1, %d1;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %d3, %r4;
    mov.u32 %r1, %nctaid.x;
    mul.wide.u32 %d4, %r1, %r2;
NEXT:
    setp.ge.u64 %p1, %d3, %d2;
    @%p1 bra DONE;
    shl.b64 %d5, %d3, 2;
    add.u64 %d6, %d1, %d5;
    ld.global.f32 %f2, [%d6];
    add.f32 %f3, %f2, %f1;
    st.global.f32 [%d6], %f3;
    add.u64 %d3, %d3, %d4;
    bra NEXT;
DONE:
    ret;
}
.visible .entry fakecuda_has_none() { ret; }
"""
"""A kernel that adds a number to every element. The fake driver knows it by its name."""


def function(ptx: str, name: str, device: int = 0) -> int:
    """Load a PTX text and return its kernel of the given name."""
    cuda = driver()
    with cuda.on(device):
        return cuda.get(
            "cuModuleGetFunction", cuda.get("cuModuleLoadData", ptx.encode()), name.encode()
        )


@functools.cache
def _add(device: int) -> int:
    return function(PTX, "fakecuda_add", device)


def launch(kernel: int, arguments: ctypes.Structure, stream: int, device: int = 0) -> None:
    """Queue a kernel with one parameter, a struct that is copied."""
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    with driver().on(device):
        driver().cuLaunchKernel(kernel, 2, 1, 1, 64, 1, 1, 0, stream, parameters, None)


_blocks: dict[tuple[str, int, int, int], list[int]] = {}
"""Memory to hand on, by kind, device, bytes and the stream that alone uses it: its addresses."""


def empty_cache() -> None:
    """Give the memory of ``_blocks`` back to the driver. The driver waits for the device."""
    for key in list(_blocks):
        kind, ordinal = key[:2]
        for address in _blocks.pop(key):
            with driver().on(ordinal):
                if kind == "pinned":
                    driver().cuMemFreeHost(address)
                else:
                    driver().cuMemFree_v2(address)


class _Storage:
    """An allocation. When its last tensor is gone, another tensor of its stream may use it."""

    def __init__(self, kind: str, size: int, device: int, stream: int) -> None:
        self.kind, self.size, self.device, self.stream = kind, size, device, stream
        self.users: set[int] = set()
        cuda = driver()
        with cuda.on(device):
            blocks = _blocks.get((kind, device, size, stream))
            if blocks:
                self.address = blocks.pop()
            elif kind == "pool":
                self.address = cuda.get("cuMemAllocAsync", size, stream)
            elif kind == "managed":
                self.address = cuda.get("cuMemAllocManaged", size, 1)
            elif kind == "pinned":
                self.address = cuda.get("cuMemHostAlloc", size, 1)
            else:
                self.address = cuda.get("cuMemAlloc_v2", size)

    def __del__(self) -> None:
        # After an error every call of the driver fails. At exit the driver may be gone.
        try:
            with driver().on(self.device):
                for user in self.users:
                    wait(self.stream, user, self.device)
                if self.kind == "pinned":
                    synchronize(self.stream, self.device)
                    ctypes.memset(self.address, _POISON, self.size)
                else:
                    driver().cuMemsetD8Async(self.address, _POISON, self.size, self.stream)
                if self.kind == "pool":
                    driver().cuMemFreeAsync(self.address, self.stream)
                else:
                    key = (self.kind, self.device, self.size, self.stream)
                    _blocks.setdefault(key, []).append(self.address)
        except (DriverError, AttributeError, TypeError):
            pass


class DeviceTensor:
    """A tensor in CUDA memory with the shape and the values of a NumPy array. The values come late.

    Args:
        array: the values. If NumPy lacks ``dtype``: bits of the same size.
        device: ordinal of the device.
        stream: the stream on which the values arrive, and that the tensor names to others. None:
            one of this module's streams. 0: the legacy default stream.
        kind: one of :data:`KINDS`.
        dtype: name of the dtype, such as ``"bfloat16"``, if it is not the array's.
        offset: bytes between the start of the allocation and the tensor.

    Thread-safety: only that of the driver.
    """

    def __init__(
        self,
        array: Any,
        *,
        device: int = 0,
        stream: int | None = None,
        kind: str = "plain",
        dtype: str | None = None,
        offset: int = 0,
    ) -> None:
        values = np.asarray(array, order="C")
        self.dtype = dtype or values.dtype.name
        self.device = device
        self.stream = next(_own_streams(device)) if stream is None else stream
        self.numpy_dtype = values.dtype
        self.shape: tuple[int, ...] = values.shape
        self.strides = tuple(step // values.itemsize for step in values.strides)
        self._storage = _Storage(kind, max(1, offset + values.nbytes), device, self.stream)
        self._offset = offset
        if values.nbytes:
            self._write(values)

    @property
    def kind(self) -> str:
        """How the memory was allocated, one of :data:`KINDS`."""
        return self._storage.kind

    @property
    def data_ptr(self) -> int:
        """Address of the first element."""
        return self._storage.address + self._offset

    @property
    def base_ptr(self) -> int:
        """Address of the allocation."""
        return self._storage.address

    def _write(self, values: np.ndarray[Any, Any]) -> None:
        # From pageable memory the driver takes the bytes at once, and writes them late.
        if self.kind == "pinned":
            ctypes.memmove(self.data_ptr, values.ctypes.data, values.nbytes)
            return
        with driver().on(self.device):
            driver().cuMemcpyAsync(self.data_ptr, values.ctypes.data, values.nbytes, self.stream)

    def fill_from(self, array: Any) -> None:
        """Write new values on the tensor's stream, late. The tensor must be contiguous.

        Raises:
            ValueError: the values have another shape or dtype, or the tensor is not contiguous.
        """
        values = np.ascontiguousarray(array)
        if (values.shape, values.dtype) != (self.shape, self.numpy_dtype) or not self._contiguous:
            raise ValueError(f"{values.dtype}{values.shape} does not fill {self}")
        self._write(values)

    def numpy(self) -> np.ndarray[Any, Any]:
        """Wait for the tensor's stream, but for no other stream, and return the values."""
        whole = np.empty(self._storage.size - self._offset, np.uint8)
        synchronize(self.stream, self.device)
        if self.kind == "pinned":
            ctypes.memmove(whole.ctypes.data, self.data_ptr, whole.nbytes)
        elif whole.nbytes:
            with driver().on(self.device):
                driver().cuMemcpyAsync(whole.ctypes.data, self.data_ptr, whole.nbytes, self.stream)
        if 0 in self.shape:
            return np.empty(self.shape, self.numpy_dtype)
        flat = whole[: len(whole) // self.numpy_dtype.itemsize * self.numpy_dtype.itemsize]
        steps = [step * self.numpy_dtype.itemsize for step in self.strides]
        view = np.lib.stride_tricks.as_strided(flat.view(self.numpy_dtype), self.shape, steps)
        return view.copy()

    def add(self, addend: float, to: DeviceTensor | None = None) -> None:
        """Queue a kernel on the tensor's stream that adds ``addend`` to ``to``, or to the tensor.

        The tensor that is written must be contiguous and float32.
        """
        written = to or self
        arguments = _AddArguments(written.data_ptr, int(np.prod(written.shape)), addend)
        launch(_add(self.device), arguments, self.stream, self.device)

    def record_stream(self, stream: int) -> None:
        """Keep the memory, when the tensor is gone, until ``stream`` has done its queued work."""
        self._storage.users.add(stream)

    @property
    def _contiguous(self) -> bool:
        expected = 1
        for n, step in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if n != 1 and step != expected:
                return 0 in self.shape
            expected *= n
        return True

    def view(self, shape: Sequence[int], strides: Sequence[int], first: int) -> DeviceTensor:
        """Return a view that begins at element ``first``, unchecked. Strides are in elements."""
        view = object.__new__(type(self))
        view.__dict__.update(self.__dict__)
        view.shape, view.strides = tuple(shape), tuple(strides)
        view._offset = self._offset + first * self.numpy_dtype.itemsize
        return view

    def __getitem__(self, index: Any) -> DeviceTensor:
        """Return a view. Leading dimensions take integers, or slices with steps > 0."""
        shape, strides, first = [], [], 0
        indices = index if isinstance(index, tuple) else (index,)
        for d, (n, step) in enumerate(zip(self.shape, self.strides, strict=True)):
            part = indices[d] if d < len(indices) else slice(None)
            if isinstance(part, int):
                first += (part % n) * step
                continue
            taken = range(n)[part]
            first += (taken.start if len(taken) else 0) * step
            shape.append(len(taken))
            strides.append(step * taken.step)
        return self.view(shape, strides, first)

    @property
    def T(self) -> DeviceTensor:
        """The view with its dimensions in reverse order."""
        return self.view(self.shape[::-1], self.strides[::-1], 0)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.dtype}{self.shape} on {self.kind} of {self.device}>"

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's type of the device, and its ordinal."""
        return KINDS[self.kind], 0 if self.kind == "pinned" else self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """Return a capsule. Unless ``stream`` is -1, it waits for the tensor's stream."""
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("this tensor cannot be copied or moved to another device")
        if self.kind != "pinned":
            if stream == 0:
                raise BufferError("stream 0 is ambiguous: give 1 or 2")
            if stream != -1:
                wait(LEGACY if stream is None else stream, self.stream, self.device)
        return capsules.of(self, versioned=max_version is not None and max_version[0] >= 1)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The dictionary of version 3, which names the tensor's stream."""
        if self.kind == "pinned":
            raise AttributeError("pinned memory is host memory")
        return {
            "shape": self.shape,
            "typestr": self.numpy_dtype.str,
            "data": (self.data_ptr, False),
            "strides": None
            if self._contiguous
            else tuple(step * self.numpy_dtype.itemsize for step in self.strides),
            "version": 3,
            "stream": self.stream or LEGACY,
        }


class DLPackTensor(DeviceTensor):
    """A tensor that has no ``__cuda_array_interface__``."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Raise AttributeError, as if the attribute did not exist."""
        raise AttributeError("__cuda_array_interface__")


class InterfaceTensor:
    """A tensor that has only ``__cuda_array_interface__``. It wraps a DeviceTensor."""

    def __init__(self, array: Any, **options: Any) -> None:
        self.tensor = array if isinstance(array, DeviceTensor) else DeviceTensor(array, **options)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The interface of the wrapped tensor."""
        return self.tensor.__cuda_array_interface__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.tensor, name)
