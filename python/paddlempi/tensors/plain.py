"""Plain memory: objects with the buffer protocol, which the core reads by itself."""

from __future__ import annotations

import sys
from typing import Any

from .kind import Kind, cannot_make

__all__ = ["KIND"]


def _empty_like(tensor: Any) -> Any:
    if isinstance(tensor, (bytes, bytearray)):
        return bytearray(len(tensor))
    try:
        view = memoryview(tensor)
    except TypeError:
        return cannot_make(tensor)
    array = sys.modules.get("array")
    if array is not None and isinstance(tensor, array.array):
        return array.array(tensor.typecode, bytes(view.nbytes))
    flat: Any = memoryview(bytearray(view.nbytes))
    # A memoryview cannot be cast to a shape that has a zero: without elements it stays flat.
    return flat.cast(view.format, view.shape) if view.nbytes else flat.cast(view.format)


KIND = Kind(None, None, _empty_like)
