"""NumPy's arrays.

The core reads arrays of NumPy's dtypes by the buffer protocol. The dtypes of ml_dtypes (bfloat16,
float8) have neither a format of that protocol nor one of DLPack; this describer knows them by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .._ops import DTYPE_BY_NAME
from ..errors import ArgumentError, DtypeError
from .kind import CPU, KNOWN_DTYPES, Description, Kind, lossy, out_of_range, takes, unlike

__all__ = ["KINDS", "contiguous", "joined", "new", "over", "spread"]


def _describe(array: Any) -> Description:
    dtype = array.dtype
    code = DTYPE_BY_NAME.get(dtype.name)
    if code is None:
        raise DtypeError(f"a NumPy array of dtype {dtype} cannot be sent: {KNOWN_DTYPES}")
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


def over(memory: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return an array over memory with the buffer protocol, which it keeps alive.

    Raises:
        DtypeError: NumPy does not know the dtype.
    """
    return np.frombuffer(memory, _dtype(dtype)).reshape(shape)


def new(dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a new array in ordinary memory. Its elements are undefined.

    Raises:
        DtypeError: NumPy does not know the dtype.
    """
    return np.empty(shape, _dtype(dtype))


def _dtype(name: str) -> np.dtype[Any]:
    try:
        return np.dtype(name)
    except TypeError:
        raise DtypeError(
            f"NumPy has no dtype {name}: install ml_dtypes and import it first"
        ) from None


def spread(values: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return an array of some shape with values, broadcast as NumPy's assignment does.

    Args:
        values: an array of any dtype, of which the result is a view; or numbers, which are
            converted to ``dtype``.
        dtype: the name of a dtype.
        shape: the shape.

    Raises:
        ArgumentError: the shapes do not fit, or a number is out of the dtype's range.
        DtypeError: the values are no numbers, or would lose a fraction or an imaginary part.
    """
    array = values if isinstance(values, np.ndarray) else _numbers(values, dtype)
    extra = array.ndim - len(shape)
    if extra > 0 and array.shape[:extra] == (1,) * extra:
        array = array[(0,) * extra]
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise unlike(array.shape, shape) from None


def _numbers(values: Any, dtype: str) -> np.ndarray[Any, Any]:
    kind = _dtype(dtype)
    try:
        found = np.asarray(values)
        if not takes(dtype, found.dtype.kind):
            raise lossy(values, dtype)
        with np.errstate(over="ignore"):  # it is an error below
            converted = np.array(values, kind)
    except OverflowError:
        raise out_of_range(values, dtype) from None
    except ValueError:  # lists of different lengths
        raise lossy(values, dtype) from None
    if kind.kind in "iu" and not np.array_equal(converted, found):
        raise out_of_range(values, dtype)
    if kind.kind not in "biu" and (np.isinf(converted) & ~np.isinf(found)).any():
        raise out_of_range(values, dtype)
    return converted


def contiguous(values: Any, dtype: str) -> Any:
    """Return what NumPy makes of values: a contiguous array of a dtype, or itself if it is one.

    Raises:
        TypeError, ValueError: NumPy does not know the dtype, or makes nothing of the values.
    """
    return np.ascontiguousarray(values, np.dtype(dtype))


def joined(tensors: Sequence[Any]) -> Any:
    """Return a tensor with the rows of all tensors, in order."""
    return np.concatenate(list(tensors))


def _array_like(array: Any) -> Any:
    return np.empty_like(array, subok=False)


def _scalar_like(scalar: Any) -> Any:
    return np.empty((), scalar.dtype)


KINDS = {
    np.ndarray: Kind(_describe, None, _array_like),
    np.generic: Kind(None, None, _scalar_like),
}
