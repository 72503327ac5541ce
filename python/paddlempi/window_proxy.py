"""Proxies: what ``win[rank]`` is, some elements of the memory of a rank.

A proxy is no array. It knows where its elements are, and moves them when it is asked to::

    win[1].get()                  # a new tensor with the elements of rank 1's window
    numpy.asarray(win[1][3])      # the same of row 3, as an array of NumPy
    win[1][2:10, ::3] = x         # puts x there
    win[1][2:10, ::3] += x        # adds x to the elements there, to each atomically

Indexing moves nothing and takes the same time for any number of elements. It is what NumPy calls
basic indexing: integers, slices, ``...`` and ``None``.
"""

from __future__ import annotations

import operator
from math import prod
from typing import Any, NamedTuple, NoReturn, Protocol

from . import errors, memory
from .errors import ArgumentError, DtypeError
from .reduce_op import ReduceOp

__all__ = ["Place", "Proxy", "assign", "indexed", "whole"]


class Place(NamedTuple):
    """Which elements of a window an array has: those of NumPy with the same fields."""

    offset: int
    """The number in the window of the element with the index (0, 0, ...)."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """From an element to the next one of each dimension, in elements; may be below 0."""


def whole(shape: tuple[int, ...]) -> Place:
    """Return the place of a contiguous array that begins with the window."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 1, 0, -1):
        strides[dim - 1] = strides[dim] * shape[dim]
    return Place(0, shape, tuple(strides))


def indexed(place: Place, index: Any, what: str = "index of a window") -> Place:
    """Return the elements that NumPy's basic indexing chooses.

    Args:
        place: the elements of an array.
        index: of the array.
        what: the beginning of the text of an error.

    Raises:
        errors.IndexError: an integer is out of range, there are more of them than dimensions, or
            more than one ``...``.
        ArgumentError: the step of a slice is 0.
        DtypeError: the index is no integer, slice, ``...``, None, or tuple of these.
    """
    items = index if isinstance(index, tuple) else (index,)
    ellipses = sum(item is Ellipsis for item in items)
    if ellipses > 1:
        raise errors.IndexError(f"{what}: '...' stands in it {ellipses} times, once is valid")
    if not ellipses:
        items = (*items, Ellipsis)
    named = sum(item is not None and item is not Ellipsis for item in items)
    left = len(place.shape) - named  # the dimensions that '...' stands for
    if left < 0:
        raise errors.IndexError(
            f"{what}: it names {named} dimensions, and the shape {place.shape} has "
            f"{len(place.shape)}"
        )
    offset, dim = place.offset, 0
    shape: list[int] = []
    strides: list[int] = []
    for item in items:
        if item is None:
            shape.append(1)
            strides.append(0)
        elif item is Ellipsis:
            shape += place.shape[dim : dim + left]
            strides += place.strides[dim : dim + left]
            dim += left
        elif isinstance(item, slice):
            chosen = _range(item, place.shape[dim], what)
            if chosen:
                offset += chosen[0] * place.strides[dim]
            shape.append(len(chosen))
            strides.append(chosen.step * place.strides[dim])
            dim += 1
        else:
            offset += _number(item, dim, place.shape[dim], what) * place.strides[dim]
            dim += 1
    return Place(offset, tuple(shape), tuple(strides))


def _range(item: slice, length: int, what: str) -> range:
    try:
        return range(*item.indices(length))
    except TypeError:
        raise DtypeError(f"{what}: {item} is no slice of integers") from None
    except ValueError as error:
        raise ArgumentError(f"{what}: {item}: {error}") from None


def _number(item: Any, dim: int, length: int, what: str) -> int:
    """Return an integer of an index, counted from the first element of its dimension."""
    # Python takes a bool for an integer, and torch a tensor of one element. NumPy chooses other
    # elements by them.
    kind = str(getattr(item, "dtype", type(item).__name__))
    try:
        if "bool" in kind or len(getattr(item, "shape", ())):
            raise TypeError
        number = operator.index(item)
    except TypeError:
        raise DtypeError(
            f"{what}: it has a {type(item).__name__}, and takes integers, slices, '...' "
            "and None; for other elements get() a part that has them, and index that"
        ) from None
    if not -length <= number < length:
        raise errors.IndexError(
            f"{what}: {number} is out of range for dimension {dim} of length {length}"
        )
    return number if number >= 0 else number + length


class Accessed(Protocol):
    """The part of ``window.Window`` that a proxy needs. A target is a rank and a place."""

    local: Any
    dtype: str

    def shape_of(self, rank: int) -> tuple[int, ...]: ...

    def _put_at(self, x: Any, rank: int, *place: Any) -> None: ...

    def _get_at(self, out: Any, rank: int, *place: Any) -> None: ...

    def _accumulate_at(self, x: Any, rank: int, op: int, *place: Any) -> None: ...


class Proxy:
    """Some elements of the memory of a rank; ``win[rank]`` makes it for all of them.

    An index gives a proxy of fewer elements. Assignment to an index puts. ``+=``, ``-=``, ``*=``,
    ``&=``, ``|=`` and ``^=`` accumulate, each element atomically. What stands on the right is
    broadcast as NumPy does it: a tensor of the window's dtype, or numbers, which are converted.

    There is nothing else: a proxy has no arithmetic and cannot be compared or looped over.

    Args:
        window: the window.
        rank: a rank of the window's group.
        place: the elements; None: all.
    """

    __slots__ = ("_place", "_rank", "_window")

    __array_ufunc__ = None  # operators of NumPy's arrays do not take a proxy for an array
    __iter__ = None

    def __init__(self, window: Accessed, rank: int, place: Place | None = None) -> None:
        self._window = window
        self._rank = rank
        self._place = whole(window.shape_of(rank)) if place is None else place

    @property
    def rank(self) -> int:
        """The rank, of the window's group, that has the elements."""
        return self._rank

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions."""
        return self._place.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._place.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self._place.shape)

    @property
    def dtype(self) -> str:
        """The name of the window's dtype."""
        return self._window.dtype

    def get(self) -> Any:
        """Return a new tensor with the elements, of the framework of the window's tensor."""
        return self._read(memory.framework_of(self._window.local))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return a new array with the elements, for ``numpy.asarray``."""
        if copy is False:
            raise ArgumentError(
                "numpy.asarray: the elements of a window cannot be had without copy"
            )
        array = self._read("numpy")
        return array if dtype is None else array.astype(dtype, copy=False)

    def _read(self, framework: str) -> Any:
        out = memory.describer(framework).new(self.dtype, self._place.shape)
        self._window._get_at(out, self._rank, *self._place)
        return out

    def __len__(self) -> int:
        if not self._place.shape:
            raise DtypeError("len: a proxy without dimensions has no length")
        return self._place.shape[0]

    def __getitem__(self, index: Any) -> Proxy:
        return Proxy(self._window, self._rank, indexed(self._place, index))

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index]._put(value)

    def _put(self, value: Any) -> None:
        if isinstance(value, Proxy):
            if self._is(value):
                return  # what Python assigns after += and the like
            value = value.get()
        self._window._put_at(self._spread(value), self._rank, *self._place)

    def _is(self, other: Proxy) -> bool:
        return (
            other._window is self._window
            and other._rank == self._rank
            and other._place == self._place
        )

    def _spread(self, value: Any) -> Any:
        """Return a tensor of the proxy's shape for what stands on the right of an operator."""
        if isinstance(value, Proxy):
            value = value.get()
        framework = memory.framework_of(value, memory.framework_of(self._window.local))
        return memory.describer(framework).spread(value, self.dtype, self._place.shape)

    def _accumulate(self, value: Any, op: Any) -> Proxy:
        self._window._accumulate_at(self._spread(value), self._rank, op, *self._place)
        return self

    def __iadd__(self, value: Any) -> Proxy:
        return self._accumulate(value, ReduceOp.SUM)

    def __isub__(self, value: Any) -> Proxy:
        return self._accumulate(-self._spread(value), ReduceOp.SUM)

    def __imul__(self, value: Any) -> Proxy:
        return self._accumulate(value, ReduceOp.PRODUCT)

    def __iand__(self, value: Any) -> Proxy:
        return self._accumulate(value, ReduceOp.BAND)

    def __ior__(self, value: Any) -> Proxy:
        return self._accumulate(value, ReduceOp.BOR)

    def __ixor__(self, value: Any) -> Proxy:
        return self._accumulate(value, ReduceOp.BXOR)

    def _no_array(self, *_: object) -> NoReturn:
        raise DtypeError(f"{self!r} is no array: get() its elements first")

    # Python's defaults would compare and test the proxy, not its elements.
    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _no_array
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<window of rank {self._rank}: {self.dtype} of shape {self._place.shape}>"


def assign(window: Accessed, rank: int, value: Any) -> None:
    """Put into all elements of a rank: what ``win[rank] = value`` does, also after ``+=``."""
    Proxy(window, rank)._put(value)
