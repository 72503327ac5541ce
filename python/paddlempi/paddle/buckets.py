"""Gradient buckets: which gradients travel together, and where they lie.

A bucket is one tensor: the gradients of some parameters of one dtype, one after the other, and
behind them the marks, by which all ranks learn in the same all_reduce which parameters had
a gradient where. Where a bucket's memory comes from is :func:`allocate`'s alone.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle

from ..errors import DtypeError, UnsupportedError
from ..reduce_op import ReduceOp
from ..work import Work
from . import autograd, selected_rows

__all__ = ["DTYPES", "Bucket", "Slot", "allocate", "arrange", "bytes_of", "on_host"]

# dtype: NumPy's for its bits, what one is there, whether NumPy multiplies it at memory's speed.
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
"""Gradients begin at a cache line, so that no two share one."""


def allocate(count: int, dtype: Any) -> Any:
    """The memory of a bucket: a zeroed, one-dimensional tensor."""
    return paddle.zeros([count], dtype)


def on_host(tensor: Any) -> bool:
    """Whether a tensor is in host memory: what is in a bucket is reached by NumPy too."""
    return bool(tensor.place.is_cpu_place())


def bytes_of(tensor: Any) -> int:
    """The bytes of a tensor's elements: of a parameter, those of its gradient too."""
    return int(math.prod(tensor.shape) * tensor.element_size())


def array_of(tensor: Any) -> np.ndarray[Any, Any]:
    """The memory of a contiguous tensor as a flat array of its bits; it keeps nothing alive."""
    bits = np.dtype(_KINDS[tensor.dtype][0])
    size = math.prod(tensor.shape) * bits.itemsize
    memory: Any = (ctypes.c_char * size).from_address(tensor.data_ptr())
    return np.frombuffer(memory, bits)


class Slot:
    """One parameter's place in a bucket.

    Invariant: ``view`` lies in the bucket's memory for as long as the bucket exists.
    """

    __slots__ = (
        "_address",
        "_array",
        "_bits",
        "_memory",
        "_scale",
        "bucket",
        "index",
        "number",
        "packed",
        "shape",
        "shaped",
        "view",
    )

    def __init__(self, bucket: Bucket, number: int, index: int, start: int, parameter: Any) -> None:
        self.bucket = bucket
        self.number = number  # in the bucket
        self.index = index  # of the parameter
        self.packed = False
        self.shape = list(parameter.shape)
        count = math.prod(self.shape)
        self.view = (
            autograd.alias(bucket.storage[start : start + count], self.shape) if count else None
        )
        bits = bucket.array.dtype
        self._bits = bits
        self._array = bucket.array[start : start + count]
        self.shaped = self._array.reshape(self.shape)
        self._address = bucket.storage.data_ptr() + start * bits.itemsize
        self._memory = ctypes.c_char * (count * bits.itemsize)
        self._scale = bucket.scale
        if self.view is not None and self.view.data_ptr() != self._address:
            raise UnsupportedError(
                "paddlempi.paddle.DataParallel: a slice of a tensor is no view of it: "
                "leave FLAGS_use_stride_kernel at its default"
            )

    def pack(self, parameter: Any, gradient: Any) -> None:
        """Bring a gradient into the bucket, times 1/n, and let the parameter's view it.

        One pass: NumPy's multiply costs what a copy costs. 16-bit floats are copied, and
        divided by the all_reduce. Rows (SelectedRows) fill a zeroed slot, and the parameter's
        gradient is dense from here on.
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
            selected_rows.scatter(gradient, self.shaped, scale)
            parameter.clear_gradient(False)
            autograd.bind(parameter, self.view, self.shape)
            return
        address = gradient.data_ptr()
        if address == self._address:  # accumulated in place
            if scale is not None:
                np.multiply(self._array, scale, self._array)
            return
        if scale is None:
            self.view.copy_(gradient.detach(), True)
        elif gradient.is_contiguous():
            memory: Any = self._memory.from_address(address)
            source = np.frombuffer(memory, self._bits)
            np.multiply(source, scale, self._array)
        else:
            np.multiply(np.from_dlpack(gradient.detach()), scale, self.shaped)
        autograd.bind(parameter, self.view, self.shape)

    def fill_zero(self) -> None:
        """Contribute nothing."""
        self.packed = True
        self._array.fill(0)

    def bind(self, parameter: Any) -> None:
        """Let the parameter's gradient, which has none yet, view the bucket."""
        if self.view is not None:
            autograd.bind(parameter, self.view, self.shape)


class Bucket:
    """Gradients that travel in one all_reduce.

    Args:
        members: the parameters with their indices, of one dtype, in the order of the slots.
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
        self.slots = [
            Slot(self, number, index, start, parameter)
            for number, ((index, parameter), start) in enumerate(zip(members, starts, strict=True))
        ]
        # The marks. A parameter is used when this backward reached it, absent when it did not,
        # and it has a gradient, if only an older one, or not. The last mark, of the last bucket: on
        # some rank, what was reached in any bucket is not what was expected.
        marks = self._marks = self.array[count:]
        self.used, self.absent, self.has = marks[:n], marks[n : 2 * n], marks[2 * n : 3 * n]
        self.surprises = marks[3 * n :]
        self._usual = np.zeros_like(marks)
        self._usual[:n] = self._usual[2 * n : 3 * n] = self._one
        self.pending = n
        self._works: Sequence[Work] = ()
        self._ended: Callable[[], None] | None = None

    def reset(self) -> None:
        """Make ready for the next backward."""
        self._marks[:] = self._usual
        self.pending = len(self.slots)
        self._works, self._ended = (), None
        for slot in self.slots:
            slot.packed = False

    def under_way(self, works: Sequence[Work], ended: Callable[[], None] | None = None) -> None:
        """Its collectives were started; ``ended()`` is what remains to be done after them."""
        self._works, self._ended = works, ended

    def arrived(self) -> bool:
        """Whether :meth:`wait` would return or raise at once."""
        return all(work.is_completed() for work in self._works)

    def wait(self) -> None:
        """Wait until the gradients are averaged; nothing where no collective was started."""
        ended, self._ended = self._ended, None
        for work in self._works:
            work.wait()
        if ended is not None:
            ended()

    def mark_absent(self, number: int, has: bool) -> None:
        """Say that this backward did not reach a slot's parameter on this rank."""
        self.used[number] = 0
        self.absent[number] = self._one
        if not has:
            self.has[number] = 0

    def mark_surprise(self) -> None:
        """Say that this rank's backward did not go the expected way."""
        self.surprises[0] = self._one


def arrange(
    order: Sequence[int], parameters: Sequence[Any], limit: int, last_limit: int
) -> list[list[int]]:
    """Divide parameters into buckets.

    Args:
        order: indices of parameters, in the order in which their gradients come.
        parameters: all parameters.
        limit: the bytes after which a bucket is closed.
        last_limit: the same for the last one of each dtype: nothing is left to hide behind
            the all_reduce of what comes last, so let it be short.

    Returns:
        For each bucket its parameters, both in the order in which they come. A bucket holds one
        dtype and at least one parameter; only its last one reaches past the limit.
    """
    closed: list[list[int]] = []
    filling: dict[Any, list[int]] = {}
    seen: dict[Any, int] = {}
    limits: dict[Any, int] = {}
    for index in reversed(order):
        dtype = parameters[index].dtype
        filling.setdefault(dtype, []).append(index)
        seen[dtype] = seen.get(dtype, 0) + bytes_of(parameters[index])
        if seen[dtype] >= limits.get(dtype, last_limit):
            closed.append(filling.pop(dtype))
            seen[dtype] = 0
            limits[dtype] = limit
    closed += filling.values()
    place = {index: at for at, index in enumerate(order)}
    buckets = [list(reversed(members)) for members in closed]
    return sorted(buckets, key=lambda members: place[members[-1]])
