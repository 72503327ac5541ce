"""Tensors in CUDA memory that the tests of tests/ranks/core take as other kinds of tensors.

The kinds differ in their protocol, in how their memory is allocated, and in the stream on which
their values arrive. The values arrive late.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import device
import ml_dtypes
import numpy as np
from tensors import Layout, NumpyKind, Tensor, numpy_dtype, strided


class DeviceCase:
    """One memory, as an object for the library and as a NumPy array; see ``Tensor``.

    Invariant: all bytes between the elements are 1.
    """

    def __init__(
        self, dtype: str, layout: Layout, tensor: type[device.DeviceTensor], **how: Any
    ) -> None:
        self.layout = layout
        self._dtype = numpy_dtype(dtype)
        self._bits = np.dtype(f"u{self._dtype.itemsize}") if _foreign(dtype) else self._dtype
        self._base = tensor(self._around(), dtype=dtype, **how)
        self.given: Any = self._base.view(layout.shape, layout.strides, layout.offset)

    def _around(self) -> np.ndarray[Any, Any]:
        memory = np.empty(self.layout.room, self._bits)
        memory.view(np.uint8)[...] = 1
        return memory

    def fill(self, values: np.ndarray[Any, Any]) -> DeviceCase:
        """Write values. They arrive late, on the tensor's stream."""
        memory = self._around()
        strided(memory.view(self._dtype), self.layout)[...] = values.reshape(self.layout.shape)
        self._base.fill_from(memory)
        return self

    def values(self) -> np.ndarray[Any, Any]:
        """Return a copy of the elements, after all that the tensor's stream waits for."""
        memory = self._base.numpy().view(self._dtype)
        elements = strided(memory, self.layout)
        copy = elements.copy()
        if copy.size:
            raw = strided(memory.view(f"V{memory.itemsize}"), self.layout)
            raw[...] = np.frombuffer(b"\1" * memory.itemsize, raw.dtype)[0]
        assert (memory.view(np.uint8) == 1).all(), "written to between the elements"
        return copy

    def bits(self) -> bytes:
        """Return the bytes of the elements, in order."""
        return self.values().tobytes()


def _foreign(dtype: str) -> bool:
    return hasattr(ml_dtypes, dtype)


class DeviceKind:
    """Tensors in device memory."""

    def __init__(self, rank: int) -> None:
        self.name = type(self).__name__

    def dtypes(self, among: Sequence[str]) -> list[str]:
        """Return the dtypes of ``among`` that this kind has."""
        return list(among)

    def make(self, dtype: str, layout: Layout) -> DeviceCase | Tensor:
        """Return a tensor with undefined content; call its ``fill``."""
        return DeviceCase(dtype, layout, device.DeviceTensor, stream=side_stream())


@functools.cache
def side_stream() -> int:
    """Return the one stream of all these tensors: the tensors of a call must share a stream."""
    return device.new_stream()


@contextmanager
def long_pieces(dist: ModuleType) -> Iterator[None]:
    """A world with pieces of 64 KiB for collectives of some MiB: a thousand pieces take seconds."""

    def world(piece: int) -> None:
        os.environ["PADDLEMPI_CUDA_CHUNK"] = str(piece)
        dist.destroy_process_group()
        dist.init_process_group()

    before = int(os.environ["PADDLEMPI_CUDA_CHUNK"])
    world(1 << 16)
    try:
        yield
    finally:
        world(before)


class OtherKind(DeviceKind):
    """A kind that differs only in its memory, so it takes only some dtypes, of different sizes."""

    def dtypes(self, among: Sequence[str]) -> list[str]:
        few = ("bool", "bfloat16", "float32", "int64", "complex128")
        return [name for name in super().dtypes(among) if name in few]


class PoolKind(OtherKind):
    """Objects that have only ``__dlpack__``, in memory of a pool, on the legacy default stream."""

    def make(self, dtype: str, layout: Layout) -> DeviceCase | Tensor:
        return DeviceCase(dtype, layout, device.DLPackTensor, stream=0, kind="pool")


class InterfaceKind(OtherKind):
    """Objects that have only ``__cuda_array_interface__``, on the thread's default stream."""

    def dtypes(self, among: Sequence[str]) -> list[str]:
        return [name for name in super().dtypes(among) if not _foreign(name)]

    def make(self, dtype: str, layout: Layout) -> DeviceCase | Tensor:
        case = DeviceCase(dtype, layout, device.DeviceTensor, stream=device.PER_THREAD)
        case.given = device.InterfaceTensor(case.given)
        return case


class RanksKind(OtherKind):
    """On every other rank the tensors are in host memory."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._on_host = rank % 2 == 0

    def make(self, dtype: str, layout: Layout) -> DeviceCase | Tensor:
        return NumpyKind().make(dtype, layout) if self._on_host else super().make(dtype, layout)


class TensorsKind(OtherKind):
    """Every other tensor is in host memory."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._made = rank

    def make(self, dtype: str, layout: Layout) -> DeviceCase | Tensor:
        self._made += 1
        return NumpyKind().make(dtype, layout) if self._made % 2 else super().make(dtype, layout)


Kind = DeviceKind
KINDS: dict[str, type[DeviceKind]] = {
    "device": DeviceKind,
    "pool": PoolKind,
    "interface": InterfaceKind,
    "some-ranks": RanksKind,
    "some-tensors": TensorsKind,
}
