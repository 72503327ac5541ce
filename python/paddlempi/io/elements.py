"""The elements of a tensor of any framework, as arrays of NumPy that have its bytes.

These arrays have an unsigned dtype of the same size, so that NumPy copies any dtype without knowing
it. Tensors in host memory are seen in place. Those of torch and Paddle in device memory are copied
part by part.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from .. import _buffer
from .._ops import DTYPE_BY_NAME
from ..errors import ArgumentError, DtypeError, Error, UnsupportedError
from ..memory import describer, framework_of
from ..tensors.kind import CPU, CUDA_HOST, KNOWN_DTYPES, name_of, without_memory
from .places import Place, overlaps, slabs, whole

__all__ = ["STAGED", "Elements", "new", "raw"]

STAGED = 8 << 20
"""How many bytes are staged at a time, at the most."""

_RAW = {1: "u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "<c16"}

_DTYPES = {int(dtype): dtype for dtype in DTYPE_BY_NAME.values()}

Index = tuple[slice, ...]


def raw(dtype: str) -> Any:
    """Return the dtype of the arrays in which the elements of a dtype are moved."""
    return np.dtype(_RAW[DTYPE_BY_NAME[dtype].itemsize])


def new(framework: str, dtype: str, shape: Sequence[int]) -> Any:
    """Return a new tensor in ordinary host memory; its elements are undefined.

    Raises:
        DtypeError: the framework does not have the dtype.
    """
    if framework == "numpy" and dtype not in np.sctypeDict:
        try:
            import_module("ml_dtypes")  # gives NumPy bfloat16 and float8
        except ImportError:
            raise DtypeError(
                f"NumPy has no dtype {dtype}: install ml_dtypes, or load with framework='torch'"
            ) from None
    return describer(framework).new(dtype, tuple(shape))


class Elements:
    """The elements of one tensor.

    Args:
        tensor: a tensor of any kind. It must live as long as this object is used.

    Attributes:
        tensor: the tensor.
        dtype: the name of its dtype.
        shape: its shape.
        itemsize: bytes of an element.
        array: its elements; None if they are in device memory.
        copied: whether they are those of a copy, because its memory has other values.

    Raises:
        DtypeError: it is no tensor, or of another dtype.
        UnsupportedError: it is in the memory of a device, and not of torch or Paddle.
    """

    __slots__ = (
        "_framework",
        "array",
        "copied",
        "dtype",
        "itemsize",
        "overlaps",
        "readonly",
        "shape",
        "tensor",
        "where",
    )

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.copied = tensor, False
        self._framework = framework_of(tensor, "")
        self.array: Any = None
        if self._framework == "numpy" or isinstance(tensor, np.generic):
            ma = sys.modules.get("numpy.ma")  # np.ma would import it
            if ma is not None and isinstance(tensor, ma.MaskedArray):
                raise DtypeError(
                    "a masked array, whose mask cannot be written: give .filled(), or its .data "
                    "and .mask"
                )
            self._of_numpy(np.asarray(tensor))
            if isinstance(tensor, np.generic):
                self.readonly = True  # the array is a copy
            return
        self.tensor, description = _buffer.readable(tensor)
        self.copied = self.tensor is not tensor
        tensor = self.tensor
        if description is None:
            self._of_numpy(_seen(tensor))
            return
        address, code, shape, strides, device, _, self.readonly, _ = description
        self.dtype = _DTYPES[code].name.lower()
        self.shape = tuple(shape)
        self.itemsize = _DTYPES[code].itemsize
        place = Place(0, self.shape, tuple(strides)) if strides is not None else whole(self.shape)
        self.overlaps = overlaps(self.shape, place.strides)
        ends = [(n - 1) * step for n, step in zip(self.shape, place.strides, strict=True)]
        nothing = 0 in self.shape
        if not address and not nothing:
            raise without_memory(tensor)
        low = 0 if nothing else sum(end for end in ends if end < 0)
        high = 0 if nothing else 1 + sum(end for end in ends if end > 0)
        self.where = (
            device,
            address + low * self.itemsize,
            address + high * self.itemsize,
        )
        if device not in (CPU, CUDA_HOST):
            if self._framework not in ("torch", "paddle"):
                raise UnsupportedError(
                    f"a {name_of(type(tensor))} in device memory cannot be written to a file or "
                    "read from one: give a tensor of torch or Paddle, or a copy in host memory"
                )
            return
        kind = raw(self.dtype)
        if nothing:
            self.array = np.empty(self.shape, kind)
            return
        memory: Any = (ctypes.c_ubyte * ((high - low) * self.itemsize)).from_address(self.where[1])
        memory.tensor = tensor  # the array keeps it: that of part() has no other reference
        self.array = np.ndarray(
            self.shape,
            kind,
            memory,
            -low * self.itemsize,
            [step * self.itemsize for step in place.strides],
        )

    def _of_numpy(self, array: Any) -> None:
        name = array.dtype.name
        if name not in DTYPE_BY_NAME:
            raise DtypeError(f"an array of dtype {array.dtype}: {KNOWN_DTYPES}")
        if not array.dtype.isnative:
            raise DtypeError(f"{array.dtype.str} is not in this machine's byte order")
        self.dtype, self.shape, self.itemsize = name, array.shape, array.itemsize
        self.readonly = not array.flags.writeable
        steps = [step / array.itemsize for step in array.strides]
        self.overlaps = not array.flags.c_contiguous and overlaps(array.shape, steps)
        ends = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
        begin = array.__array_interface__["data"][0]
        low = begin + sum(end for end in ends if end < 0)
        high = begin + sum(end for end in ends if end > 0) + self.itemsize
        self.where = (CPU, low, high if array.size else low)
        self.array = array.view(raw(name))

    @property
    def raw(self) -> Any:
        """The dtype of ``array``, and of the arrays that :meth:`part` returns."""
        return raw(self.dtype)

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.itemsize

    def parts(self, index: Index | None = None) -> Iterator[tuple[Index, Any]]:
        """Yield parts of at most STAGED bytes, each contiguous, with their index in the tensor.

        Args:
            index: of a box in the tensor; None: all of it.
        """
        index = tuple(slice(0, n) for n in self.shape) if index is None else index
        lengths = tuple(one.stop - one.start for one in index)
        for slab in slabs(whole(lengths), max(1, STAGED // self.itemsize)):
            part = tuple(
                slice(b.start + s.start, b.start + s.stop)
                for b, s in zip(index, slab.part, strict=True)
            )
            array = self.part(part)
            yield part, np.ascontiguousarray(array).reshape(array.shape)  # not 1-d if it is 0-d

    def part(self, index: Index) -> Any:
        """Return an array of a part: in place in host memory, else a copy."""
        if self.array is not None:
            return _view(self.array, index)
        return Elements(describer(self._framework).to_host(self.tensor, index)).array

    def store(self, index: Index, array: Any) -> None:
        """Write an array of the raw dtype into a part."""
        if self.array is not None:
            self.array[index] = array
            return
        memory = np.ascontiguousarray(array)
        lengths = tuple(one.stop - one.start for one in index)
        front = describer(self._framework)
        front.from_host(self.tensor, index, front.over(_bytes(memory), self.dtype, lengths))

    def turn(self, index: Index) -> None:
        """See the elements in another order. They are in host memory, and new."""
        self.array = _view(self.array, index)

    def check_writable(self, name: str) -> None:
        """Raise if the elements must not be written to.

        Args:
            name: what the error calls the tensor.

        Raises:
            ArgumentError: they are read-only, or their memory is, or they share it with each other.
            DtypeError: the memory has other values.
        """
        if self.copied:
            raise _buffer.other_values(name)
        if self.readonly:
            raise ArgumentError(f"{name} is read-only, and would be written to")
        if self.overlaps:
            raise ArgumentError(
                f"{name} has elements that share memory (a stride of 0 or overlapping ones), and "
                "would be written to: give a copy"
            )
        device, low, high = self.where
        if device == CPU and low < high and not (_takes(low) and _takes(high - 1)):
            raise ArgumentError(
                f"the memory of {name} cannot be written to, as that of a np.memmap of mode 'r' "
                "(torch.from_numpy loses that it is read-only)"
            )

    def written(self) -> None:
        """Tell autograd that the tensor was written to."""
        _buffer.bump(self.tensor)


def _takes(address: int) -> bool:
    """Whether a byte of memory can be written to. It is written as it is, by the kernel.

    An error of the kernel has a name; a copy by NumPy would end the process.
    """
    byte = (ctypes.c_ubyte * 1).from_address(address)
    out, into = os.pipe()
    try:
        os.write(into, byte)
        os.readv(out, [byte])
    except OSError as error:
        if error.errno != errno.EFAULT:
            raise
        return False
    finally:
        os.close(out)
        os.close(into)
    return True


def _view(array: Any, index: Index) -> Any:
    """Return a view of a part, also of an array of 0 dimensions."""
    key = (*index, Ellipsis)
    return array[key]


def _bytes(array: Any) -> Any:
    return memoryview(array.reshape(-1).view("u1"))


def _seen(tensor: Any) -> Any:
    try:
        return np.asarray(memoryview(tensor))
    except (TypeError, ValueError, Error):
        raise DtypeError(
            f"an object of type {name_of(type(tensor))} is no tensor: give one of NumPy, Paddle or "
            "PyTorch, or what has the buffer protocol or __dlpack__"
        ) from None
