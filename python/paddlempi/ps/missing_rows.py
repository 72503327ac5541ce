"""What a pull does with ids that have no row: it makes the rows, or gives values in their place."""

from __future__ import annotations

from typing import Any

from .._ops import TableCall
from ..errors import ArgumentError

__all__ = ["call_of", "checked_missing"]

_CALLS = {
    None: TableCall.PULL,
    "initial": TableCall.LOOK,
    "zeros": TableCall.LOOK_ZEROS,
}


def call_of(what: str, missing: Any) -> TableCall:
    """Return the call that a pull with the argument ``missing`` is.

    Raises:
        ArgumentError: ``missing`` is none of None, "initial" and "zeros".
    """
    return _CALLS[None] if missing is None else _CALLS[checked_missing(what, missing)]


def checked_missing(what: str, missing: Any) -> str:
    """Return the argument ``missing`` of a layer.

    Raises:
        ArgumentError: it is neither "initial" nor "zeros".
    """
    if missing is None or not isinstance(missing, str) or missing not in _CALLS:
        raise ArgumentError(f"{what}: missing={missing!r} is none of 'initial', 'zeros'")
    return missing
