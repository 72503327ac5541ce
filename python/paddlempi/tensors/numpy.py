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
from .kind import CPU, KNOWN_DTYPES, Description, Kind

__all__ = ["KINDS", "contiguous", "joined", "over"]


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
    try:
        return np.frombuffer(memory, np.dtype(dtype)).reshape(shape)
    except TypeError:
        raise DtypeError(
            f"NumPy has no dtype {dtype}: install ml_dtypes and import it first"
        ) from None


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
