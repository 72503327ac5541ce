"""What a table of this process whose ids come and go has besides rows and states."""

from __future__ import annotations

import base64
from importlib import import_module
from typing import Any

from .. import _native

__all__ = ["add_sketch", "latest", "set_stamps", "sketch", "stamps"]

_PIECE = 1 << 18  # ids of one call


def stamps(number: int, ids: Any) -> Any:
    """Return the last uses of the rows of ids, as steps: a NumPy array of int64."""
    numpy = import_module("numpy")
    found = numpy.empty(len(ids), "<i8")
    for begin in range(0, len(ids), _PIECE):
        piece = slice(begin, begin + _PIECE)
        told = _native.control("table_stamps", table=number, ids=_text(ids[piece]))["stamps"]
        found[piece] = numpy.frombuffer(base64.b64decode(told), "<i8")
    return found


def set_stamps(number: int, ids: Any, stamps: Any) -> None:
    """Set the last uses of the rows of ids, which are all there."""
    for begin in range(0, len(ids), _PIECE):
        piece = slice(begin, begin + _PIECE)
        _native.control(
            "table_stamps", table=number, ids=_text(ids[piece]), stamps=_text(stamps[piece])
        )


def sketch(number: int) -> bytes:
    """Return the counts of ids without a row."""
    told = _native.control("table_sketch", table=number)["sketch"]
    return base64.b64decode(told or "")


def add_sketch(number: int, counts: bytes) -> None:
    """Add counts of :func:`sketch` to those of a table of the same configuration."""
    _native.control("table_sketch", table=number, add=base64.b64encode(counts).decode())


def latest(ids: Any, stamps: Any, most: int) -> Any:
    """Return the places of those ids that a table with room for ``most`` rows keeps."""
    order = import_module("numpy").lexsort((ids, stamps))
    return order[-most:]


def _text(array: Any) -> str:
    return base64.b64encode(import_module("numpy").ascontiguousarray(array, "<i8")).decode()
