"""Gradient buckets: which gradients travel together, and where they lie.

A bucket is one tensor. It holds the gradients of some parameters of one dtype, one after the
other, and behind them the marks. The marks tell all ranks, in the same all_reduce, which
parameters have a gradient on which ranks. Only :func:`allocate` makes the memory of a bucket.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle

from .. import memory
from ..errors import DtypeError, UnsupportedError
from ..reduce_op import ReduceOp
from ..work import Work
from . import autograd, selected_rows

__all__ = ["DTYPES", "Bucket", "Entry", "allocate", "arrange", "bytes_of", "on_host"]

# dtype: the NumPy dtype of its bits, the number one in these bits, and whether NumPy multiplies
# such an array at the speed of memory.
_KINDS: dict[Any, tuple[Any, Any, bool]] = {
    paddle.float32: (np.float32, 1, True),
    paddle.float64: (np.float64, 1, True),
    paddle.complex64: (np.complex64, 1, True),
    paddle.complex128: (np.complex128, 1, True),
    paddle.float16: (np.float16, 1, False),
    paddle.bfloat16: (np.uint16, 0x3F80, False),
}

DTYPES = frozenset(_KINDS)
"""The dtypes that a gradient may have."""

_ALIGN = 64
"""Every gradient begins at a multiple of this, so that no two share a cache line; in bytes."""


def allocate(count: int, dtype: Any) -> Any:
    """Make the memory of a bucket: a zeroed, one-dimensional tensor.

    It lies in memory that the other ranks of the node can map.
    """
    return memory.zeros(count, dtype, "paddle")


def on_host(tensor: Any) -> bool:
    """Return whether a tensor is in host memory. A bucket must be, because NumPy writes to it."""
    return bool(tensor.place.is_cpu_place())


def bytes_of(tensor: Any) -> int:
    """Return the bytes of a tensor's elements. The gradient of a parameter has as many."""
    return int(math.prod(tensor.shape) * tensor.element_size())


def array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """View a contiguous tensor as a flat array of its bits. The array does not keep the tensor."""
    bits = np.dtype(_KINDS[tensor.dtype][0])
    size = math.prod(tensor.shape) * bits.itemsize
    memory: Any = (ctypes.c_char * size).from_address(tensor.data_ptr())
    return np.frombuffer(memory, bits)


class Entry:
    """The memory of one parameter's gradient in a bucket.

    Invariant: ``view`` lies in the bucket's memory for as long as the bucket exists.
    """

    __slots__ = (
        "_address",
        "_bits",
        "_flat_array",
        "_memory",
        "_scale",
        "bucket",
        "index",
        "number",
        "packed",
        "shape",
        "shaped_array",
        "view",
    )

    def __init__(self, bucket: Bucket, number: int, index: int, start: int, parameter: Any) -> None:
        self.bucket = bucket
        self.number = number  # of the entry in its bucket
        self.index = index  # of the parameter
        self.packed = False
        self.shape = list(parameter.shape)
        count = math.prod(self.shape)
        self.view = (
            autograd.alias(bucket.storage[start : start + count], self.shape) if count else None
        )
        bits = bucket.array.dtype
        self._bits = bits
        self._flat_array = bucket.array[start : start + count]
        self.shaped_array = self._flat_array.reshape(self.shape)
        self._address = bucket.storage.data_ptr() + start * bits.itemsize
        self._memory = ctypes.c_char * (count * bits.itemsize)
        self._scale = bucket.scale
        if self.view is not None and self.view.data_ptr() != self._address:
            raise UnsupportedError(
                "paddlempi.paddle.DataParallel: a slice of a tensor is not a view: "
                "leave FLAGS_use_stride_kernel at its default"
            )

    def pack(self, parameter: Any, gradient: Any) -> None:
        """Copy a gradient into the bucket, divided by the number of ranks.

        Afterwards ``parameter.grad`` is a view of the bucket. NumPy multiplies and copies in one
        pass, which costs no more than the copy. A 16-bit gradient is copied as it is, because the
        all_reduce divides it. A sparse gradient (SelectedRows) is written into a zeroed entry, and
        ``parameter.grad`` is dense from then on.
        """
        self.packed = True
        if self.view is None:
            return
        scale = self._scale
        if gradient.is_selected_rows():
            if scale is None:
                raise DtypeError(
                    f"paddlempi.paddle.DataParallel: a sparse gradient of dtype {gradient.dtype}: "
                    "make the embedding dense (sparse=False)"
                )
            selected_rows.fill_table(gradient, self.shaped_array, scale)
            parameter.clear_gradient(False)
            autograd.bind(parameter, self.view, self.shape)
            return
        address = gradient.data_ptr()
        if address == self._address:  # Paddle accumulated into the bucket
            if scale is not None:
                np.multiply(self._flat_array, scale, self._flat_array)
            return
        if scale is None:
            self.view.copy_(gradient.detach(), True)
        elif gradient.is_contiguous():
            memory: Any = self._memory.from_address(address)
            source = np.frombuffer(memory, self._bits)
            np.multiply(source, scale, self._flat_array)
        else:
            np.multiply(np.from_dlpack(gradient.detach()), scale, self.shaped_array)
        autograd.bind(parameter, self.view, self.shape)

    def fill_zero(self) -> None:
        """Contribute zeros instead of a gradient."""
        self.packed = True
        self._flat_array.fill(0)

    def bind(self, parameter: Any) -> None:
        """Make ``parameter.grad``, which is None, a view of the bucket."""
        if self.view is not None:
            autograd.bind(parameter, self.view, self.shape)


class Bucket:
    """Gradients that travel in one all_reduce.

    Args:
        members: the parameters with their indices, all of one dtype, in the order of the entries.
        size: the number of ranks.
    """

    def __init__(self, members: Sequence[tuple[int, Any]], size: int) -> None:
        self.dtype = members[0][1].dtype
        bits, self._one, scaled = _KINDS[self.dtype]
        bits = np.dtype(bits)
        step = _ALIGN // bits.itemsize
        starts, count = [], 0
        for _, parameter in members:
            starts.append(count)
            count += -(-math.prod(parameter.shape) // step) * step
        n = len(members)
        self.storage = allocate(count + 3 * n + 1, self.dtype)
        self.gradients, self.marks = self.storage[:count], self.storage[count:]
        self.array = array_of(self.storage)
        self.scale = bits.type(1 / size) if scaled else None
        self.op = ReduceOp.SUM if scaled else ReduceOp.AVG
        self.compressible = self.dtype in (paddle.float32, paddle.float64)
        self.entries = [
            Entry(self, number, index, start, parameter)
            for number, ((index, parameter), start) in enumerate(zip(members, starts, strict=True))
        ]
        # The marks: three for every entry, and one for the bucket. Each is one or zero on a rank;
        # after the all_reduce it is not zero if it was one on some rank.
        # reached, not_reached: whether this backward reached the parameter. After the all_reduce
        #   both are set if it did so on some ranks only.
        # has_gradient: whether parameter.grad is there, perhaps from an earlier backward.
        # unexpected: used in the last bucket only. Some parameter, of any bucket, was reached
        #   although that was not expected, or the other way round.
        marks = self._marks = self.array[count:]
        self.reached, self.not_reached, self.has_gradient = (
            marks[:n],
            marks[n : 2 * n],
            marks[2 * n : 3 * n],
        )
        self.unexpected = marks[3 * n :]
        self._initial_marks = np.zeros_like(marks)
        self._initial_marks[:n] = self._initial_marks[2 * n : 3 * n] = self._one
        self.pending = n  # entries that are not packed
        self._works: Sequence[Work] = ()
        self._finish: Callable[[], None] | None = None

    def reset(self) -> None:
        """Prepare for the next backward."""
        self._marks[:] = self._initial_marks
        self.pending = len(self.entries)
        self._works, self._finish = (), None
        for entry in self.entries:
            entry.packed = False

    def set_works(self, works: Sequence[Work], finish: Callable[[], None] | None = None) -> None:
        """Keep the works of this bucket's collectives; call ``finish()`` once they are over."""
        self._works, self._finish = works, finish

    def is_completed(self) -> bool:
        """Return whether :meth:`wait` would return or raise at once."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> None:
        """Wait until the gradients are averaged. Return at once if no collective was started."""
        finish, self._finish = self._finish, None
        for work in self._works:
            work.wait()
        if finish is not None:
            finish()

    def mark_not_reached(self, number: int, has_gradient: bool) -> None:
        """Mark that this rank's backward did not reach the parameter of entry ``number``."""
        self.reached[number] = 0
        self.not_reached[number] = self._one
        if not has_gradient:
            self.has_gradient[number] = 0

    def mark_unexpected(self) -> None:
        """Mark that this rank's backward reached other parameters than expected."""
        self.unexpected[0] = self._one


def arrange(
    order: Sequence[int], parameters: Sequence[Any], limit: int, last_limit: int
) -> list[list[int]]:
    """Divide parameters into buckets.

    Args:
        order: indices of parameters, in the order in which backward computes their gradients.
        parameters: all parameters.
        limit: the bytes at which a bucket is closed.
        last_limit: the same for the last bucket of each dtype. It should be small, because no
            computation is left that could hide its all_reduce.

    Returns:
        For each bucket the indices of its parameters. Both the buckets and the indices are in the
        order of ``order``. A bucket holds one dtype and at least one parameter. It reaches its
        limit only with the first of its parameters.
    """
    closed: list[list[int]] = []
    filling: dict[Any, list[int]] = {}
    sizes: dict[Any, int] = {}
    limits: dict[Any, int] = {}
    for index in reversed(order):
        dtype = parameters[index].dtype
        filling.setdefault(dtype, []).append(index)
        sizes[dtype] = sizes.get(dtype, 0) + bytes_of(parameters[index])
        if sizes[dtype] >= limits.get(dtype, last_limit):
            closed.append(filling.pop(dtype))
            sizes[dtype] = 0
            limits[dtype] = limit
    closed += filling.values()
    position = {index: number for number, index in enumerate(order)}
    buckets = [list(reversed(members)) for members in closed]
    return sorted(buckets, key=lambda members: position[members[-1]])
