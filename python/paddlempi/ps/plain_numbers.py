"""The fields of initializers and optimizers as plain numbers, which the core reads as JSON."""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Real
from typing import Any

from ..errors import ArgumentError, DtypeError

__all__ = ["make_plain"]


def make_plain(given: Any) -> None:
    """Check the fields of a frozen dataclass, and make NumPy's numbers Python's.

    Raises:
        ArgumentError: a number is not finite.
        DtypeError: a field is no number, or one whose default is a bool or a text is none.
    """
    for field in fields(given):
        value = getattr(given, field.name)
        if value is None and field.default is None:
            continue
        name = f"{type(given).__name__}: {field.name}={value!r}"
        if isinstance(field.default, str):
            if not isinstance(value, str):
                raise DtypeError(f"{name} is no text")
            continue
        plain: float | bool
        if isinstance(field.default, bool):
            if type(value).__name__ not in ("bool", "bool_"):  # Python's, NumPy's of 2 and of 1
                raise DtypeError(f"{name} is neither True nor False")
            plain = bool(value)
        elif not isinstance(value, Real):
            raise DtypeError(f"{name} is no number")
        else:
            plain = _float(value)
            if not math.isfinite(plain):
                raise ArgumentError(f"{name} is not finite")
        object.__setattr__(given, field.name, plain)


def _float(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
