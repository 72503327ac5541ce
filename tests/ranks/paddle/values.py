"""Tensors of every dtype, and the results that operations must give, computed with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTS = ["uint8", "int8", "int16", "int32", "int64"]
DTYPES = [*FLOATS, *INTS, "bool", "complex64", "complex128"]


# Small integers, so that every reduction over up to 4 ranks is exact in every dtype and order.
def values(rank: int, shape: tuple[int, ...], dtype: str) -> np.ndarray[Any, Any]:
    """Return the contribution of rank ``rank`` in float64 or complex128."""
    count = int(np.prod(shape, dtype=int))
    numbers = (np.arange(count) * 3 + rank * 5) % 4 + 1.0
    if dtype == "bool":
        numbers = (numbers > 2) * 1.0
    if dtype.startswith("complex"):
        numbers = numbers + 1j * ((numbers + rank) % 3)
    return numbers.reshape(shape)


def tensor(array: Any, dtype: str) -> Any:
    """Return a Paddle tensor of ``dtype`` with the values of an array."""
    wide = "complex128" if np.iscomplexobj(array) else "float64"
    return paddle.to_tensor(np.asarray(array, wide)).astype(dtype)


def array(found: Any) -> np.ndarray[Any, Any]:
    """Return the values of a tensor in float64 or complex128. Uses nothing that is tested."""
    wide = "complex128" if found.dtype in (paddle.complex64, paddle.complex128) else "float64"
    result: np.ndarray[Any, Any] = found.astype(wide).numpy()
    return result


EPS = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "complex64": 2**-23}


def equal(found: Any, wanted: Any, what: object = "", mean: bool = False) -> None:
    """Assert that a tensor has these values. A mean may differ by one rounding of its dtype."""
    got = array(found)
    assert got.shape == np.shape(wanted), (what, got.shape, np.shape(wanted))
    slack = EPS.get(str(found.dtype).rpartition(".")[2], 2**-52) if mean else 0.0
    assert (np.abs(got - wanted) <= slack * np.abs(wanted)).all(), (what, got, wanted)


def reduced(op: str, parts: list[Any], dtype: str) -> Any:
    """Return the reduction of the ranks' arrays."""
    stack = np.stack(parts)
    if dtype == "bool":
        return (stack.max(0) if op in ("SUM", "MAX") else stack.min(0)) * 1.0
    return {
        "SUM": stack.sum,
        "MAX": stack.max,
        "MIN": stack.min,
        "PROD": stack.prod,
        "AVG": (lambda axis: np.trunc(stack.mean(axis))) if "int" in dtype else stack.mean,
    }[op](0)


def defined(op: str, dtype: str) -> bool:
    """Return whether the reduction exists for the dtype."""
    if dtype.startswith("complex"):
        return op not in ("MAX", "MIN")
    return op != "AVG" or dtype != "bool"
