"""Tensors of every kind, dtype and layout, in memory that NumPy can see.

A :class:`Tensor` shows the same memory twice: as the object that is given to the library, and
as a NumPy view. Through the view a test fills the tensor, reads it, and checks that the library
wrote nothing between the elements.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import paddlempi
from paddlempi._ops import DEFINED, DTYPE_BY_NAME, ReduceCode

NAMES = tuple(DTYPE_BY_NAME)
"""The dtypes that move; which of them an op reduces says the generated table."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's or ml_dtypes' dtype of this name."""
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def reducible(op: Any) -> list[str]:
    """The dtypes that a reduce op is defined for."""
    return [name for name in NAMES if DTYPE_BY_NAME[name] in DEFINED[ReduceCode(int(op))]]


class Layout(NamedTuple):
    """Shape, strides and offset, in elements, of a tensor in a memory of ``room`` elements."""

    name: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    room: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def contiguous(self) -> bool:
        return self.size == self.room


LAYOUTS = (
    Layout("flat", (7,), (1,), 0, 7),
    Layout("matrix", (2, 3), (3, 1), 0, 6),
    Layout("strided", (2, 3), (8, 2), 1, 17),
    Layout("transposed", (3, 2), (1, 3), 0, 6),
    Layout("empty", (0, 3), (3, 1), 0, 0),
    Layout("scalar", (), (), 0, 1),
)
FLAT, MATRIX, STRIDED, TRANSPOSED, EMPTY, SCALAR = LAYOUTS


class Tensor:
    """One memory, as an object for the library and as a NumPy view."""

    def __init__(
        self, given: Any, memory: np.ndarray[Any, Any], layout: Layout, owner: Any
    ) -> None:
        self.given = given
        self.layout = layout
        self._owner = owner  # keeps the memory alive
        self._memory = memory
        self.view = strided(memory, layout)

    def fill(self, values: np.ndarray[Any, Any]) -> Tensor:
        """Write values, and bytes of 1 between them."""
        self._memory.view(np.uint8)[...] = 1
        self.view[...] = values.reshape(self.view.shape)
        self._around = self._outside()
        return self

    def bits(self) -> bytes:
        """Return the bytes of the elements, in order. Nothing may have been written between."""
        assert self._outside() == self._around, "written to between the elements"
        return self.view.tobytes()

    def values(self) -> np.ndarray[Any, Any]:
        """Return a copy of the elements. Nothing may have been written between them."""
        self.bits()
        return self.view.copy()

    def _outside(self) -> bytes:
        copy = self._memory.copy()
        strided(copy, self.layout).view(f"V{copy.itemsize}")[...] = np.zeros(
            (), f"V{copy.itemsize}"
        )
        return copy.tobytes()


def strided(memory: np.ndarray[Any, Any], layout: Layout) -> np.ndarray[Any, Any]:
    """Return a view of the elements of a layout in its memory."""
    if not layout.shape:
        return memory.reshape(())
    if not layout.size:
        return memory.reshape(layout.shape)
    return np.ndarray(
        layout.shape,
        memory.dtype,
        memory.view(np.uint8).data,
        layout.offset * memory.itemsize,
        [step * memory.itemsize for step in layout.strides],
    )


class NumpyKind:
    """NumPy arrays, also with the dtypes of ml_dtypes."""

    name = "numpy"

    def dtypes(self, among: Sequence[str]) -> list[str]:
        """Return the dtypes of ``among`` that this kind has."""
        return list(among)

    def make(self, dtype: str, layout: Layout) -> Tensor:
        """Return a tensor with undefined content; call its ``fill``."""
        memory = np.empty(layout.room, numpy_dtype(dtype))
        return Tensor(self.shown(strided(memory, layout)), memory, layout, memory)

    def shown(self, array: np.ndarray[Any, Any]) -> Any:
        return array


class HeapKind(NumpyKind):
    """NumPy arrays in this rank's heap."""

    name = "heap"

    def make(self, dtype: str, layout: Layout) -> Tensor:
        memory = paddlempi.empty(layout.room, dtype)
        return Tensor(self.shown(strided(memory, layout)), memory, layout, memory)


class MemoryviewKind(NumpyKind):
    """Objects with the buffer protocol, which has only NumPy's own dtypes."""

    name = "memoryview"

    def dtypes(self, among: Sequence[str]) -> list[str]:
        return [name for name in among if not hasattr(ml_dtypes, name)]

    def shown(self, array: np.ndarray[Any, Any]) -> Any:
        return memoryview(array)


class Shown:
    """An object that offers its memory through ``__dlpack__`` only."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **arguments: Any) -> Any:
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class DlpackKind(MemoryviewKind):
    """Objects that have only ``__dlpack__``."""

    name = "dlpack"

    def shown(self, array: np.ndarray[Any, Any]) -> Any:
        return Shown(array)


class FrameworkKind:
    """Tensors of a framework, in memory that the framework owns."""

    def __init__(self, name: str, framework: Any) -> None:
        self.name = name
        self.framework = framework

    def dtypes(self, among: Sequence[str]) -> list[str]:
        # Paddle's uint16 is its bfloat16, and it has no kernels for uint32 and uint64.
        lacking = ("uint16", "uint32", "uint64") if self.name == "paddle" else ()
        return [name for name in among if hasattr(self.framework, name) and name not in lacking]

    def make(self, dtype: str, layout: Layout) -> Tensor:
        kind = getattr(self.framework, dtype)
        shape = list(layout.shape) if layout.contiguous and not layout.size > 1 else [layout.room]
        owner = self.framework.zeros(shape)
        owner = owner.astype(kind) if self.name == "paddle" else owner.to(kind)
        size = layout.room * numpy_dtype(dtype).itemsize
        memory = np.empty(0, numpy_dtype(dtype))
        if size:
            raw = (ctypes.c_char * size).from_address(owner.data_ptr())
            memory = np.frombuffer(raw, np.uint8).view(numpy_dtype(dtype))
        given = owner
        if layout.size > 1:
            given = self._strided(owner, layout)
            step = layout.offset * numpy_dtype(dtype).itemsize
            assert given.data_ptr() == owner.data_ptr() + step, "the framework made a copy"
        return Tensor(given, memory, layout, owner)

    def _strided(self, owner: Any, layout: Layout) -> Any:
        if self.name == "torch":
            return owner.as_strided(layout.shape, layout.strides, layout.offset)
        # Paddle counts the offset in bytes.
        step = layout.offset * owner.element_size()
        return self.framework.as_strided(owner, list(layout.shape), list(layout.strides), step)


Kind = NumpyKind | FrameworkKind


def every(kind: Kind, among: Sequence[str] = NAMES) -> Iterator[tuple[str, Layout]]:
    """Every dtype of a kind in every layout."""
    for dtype in kind.dtypes(among):
        for layout in LAYOUTS:
            yield dtype, layout


# Values


def _seed(*of: object) -> np.random.Generator:
    return np.random.default_rng(list(repr(of).encode()))


def noise(dtype: str, size: int, *of: object) -> np.ndarray[Any, Any]:
    """Random bits, for tensors that are only moved. The same arguments give the same bits."""
    kind = numpy_dtype(dtype)
    if dtype == "bool":
        return _seed(dtype, size, of).integers(0, 2, size).astype(bool)
    return np.frombuffer(_seed(dtype, size, of).bytes(size * kind.itemsize), np.uint8).view(kind)


def numbers(dtype: str, size: int, *of: object) -> np.ndarray[Any, Any]:
    """Whole numbers so small that no dtype rounds their sum or product over a few ranks."""
    random = _seed(dtype, size, of)
    least = 0 if dtype == "bool" or dtype.startswith("u") else -3
    most = 1 if dtype == "bool" else 3
    values = random.integers(least, most, size, endpoint=True)
    if dtype.startswith("complex"):
        return (values + 1j * random.integers(-2, 2, size, endpoint=True)).astype(dtype)
    return values.astype(numpy_dtype(dtype))


def reduced(op: Any, parts: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return NumPy's reduction of all ranks' parts; 16-bit floats are rounded once, at the end."""
    dtype = parts[0].dtype
    wide = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iub" else dtype
    stack = np.stack(parts).astype(wide)
    code = ReduceCode(int(op))
    with np.errstate(all="ignore"):
        if code in (ReduceCode.SUM, ReduceCode.AVG, ReduceCode.PREMUL_SUM):
            if dtype.kind == "b":
                return stack.any(0)
            total = (stack * wide.type(op.scale)) if code is ReduceCode.PREMUL_SUM else stack
            # One part after another, because NumPy's own sum over an axis is pairwise.
            answer = total[0].copy()
            for part in total[1:]:
                answer = (answer + part).astype(wide)
            if code is ReduceCode.AVG and dtype.kind in "iu":  # rounded toward zero, as NCCL does
                answer = np.sign(answer) * (abs(answer.astype(object)) // len(parts))
            elif code is ReduceCode.AVG:
                answer = answer / wide.type(len(parts))
        elif code is ReduceCode.PRODUCT:
            answer = stack.all(0) if dtype.kind == "b" else np.multiply.reduce(stack, 0, dtype=wide)
        else:
            function = {
                ReduceCode.MIN: np.minimum,
                ReduceCode.MAX: np.maximum,
                ReduceCode.BAND: np.bitwise_and,
                ReduceCode.BOR: np.bitwise_or,
                ReduceCode.BXOR: np.bitwise_xor,
            }[code]
            answer = function.reduce(stack, 0)
    return np.asarray(answer).astype(dtype)


def assert_reduced(
    got: np.ndarray[Any, Any], op: Any, parts: Sequence[np.ndarray[Any, Any]]
) -> None:
    """Assert the same numbers as NumPy's; an average may differ in the last place."""
    wanted = reduced(op, parts).reshape(got.shape)
    if ReduceCode(int(op)) is ReduceCode.AVG and got.dtype.kind not in "iu":
        exact = np.complex128 if got.dtype.kind == "c" else np.float64
        last = float(ml_dtypes.finfo(got.dtype).eps)
        np.testing.assert_allclose(got.astype(exact), wanted.astype(exact), rtol=2 * last)
    else:
        np.testing.assert_array_equal(got, wanted)
