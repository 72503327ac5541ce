"""What a row holds that no call has touched before: a function of the table's seed and the id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..errors import ArgumentError, DtypeError
from .plain_numbers import make_plain

__all__ = ["Initializer", "Normal", "Uniform", "Zeros", "initializer"]


@dataclass(frozen=True)
class Initializer:
    """The base class of the initializers.

    Raises:
        ArgumentError: a number is not finite.
        DtypeError: an argument is no number.
    """

    NAME: ClassVar[str]

    def __post_init__(self) -> None:
        make_plain(self)

    def numbers(self) -> tuple[float, float]:
        """Return the two numbers that the core takes."""
        return 0.0, 0.0


@dataclass(frozen=True)
class Zeros(Initializer):
    """Zeros."""

    NAME: ClassVar[str] = "zeros"


@dataclass(frozen=True)
class Uniform(Initializer):
    """Independent numbers, uniform from ``low`` to ``high``."""

    NAME: ClassVar[str] = "uniform"

    low: float = -0.05
    high: float = 0.05

    def numbers(self) -> tuple[float, float]:
        return self.low, self.high


@dataclass(frozen=True)
class Normal(Initializer):
    """Independent Gaussian numbers."""

    NAME: ClassVar[str] = "normal"

    mean: float = 0.0
    std: float = 0.01

    def numbers(self) -> tuple[float, float]:
        return self.mean, self.std


_BY_NAME = {kind.NAME: kind for kind in (Zeros, Uniform, Normal)}


def initializer(given: Any) -> Initializer:
    """Return an initializer, or that of a name with its default numbers.

    Raises:
        ArgumentError: there is no initializer of that name.
        DtypeError: ``given`` is neither.
    """
    if isinstance(given, Initializer):
        return given
    if not isinstance(given, str):
        raise DtypeError(f"Table: initializer={given!r} is neither a name nor an Initializer")
    if given not in _BY_NAME:
        raise ArgumentError(f"Table: initializer={given!r} is none of {', '.join(_BY_NAME)}")
    return _BY_NAME[given]()
