"""What the samples of a benchmark say: quantiles, ratios, and whether a difference is one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Quartiles", "differs", "quantile", "quartiles", "ratio_differs", "ratios"]


class Quartiles(NamedTuple):
    """The lower quartile, the median and the upper quartile."""

    low: float
    middle: float
    high: float

    def show(self, digits: int = 2) -> str:
        low, middle, high = (f"{value:.{digits}f}" for value in self)
        return f"{middle} ({low} to {high})"


def quantile(values: Sequence[float], q: float) -> float:
    """Return the smallest value that is not below the part ``q`` of the values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)]


def quartiles(values: Sequence[float]) -> Quartiles:
    return Quartiles(*(quantile(values, q) for q in (0.25, 0.5, 0.75)))


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratios of times that were measured one after the other, pair by pair."""
    return [a / b for a, b in zip(over, under, strict=True)]


def ratio_differs(ratio: Quartiles, control: Quartiles) -> bool:
    """Whether two contenders differ: by more than equal things do, and in three rounds of four.

    Args:
        ratio: of the times of one to those of the other.
        control: the same ratio of one contender to itself, measured in the same rounds. Its
            quartiles show how far apart equal things seem to be.
    """
    if ratio.low <= 1 <= ratio.high:
        return False
    return abs(math.log(ratio.middle)) >= math.log(control.high / control.low)


def differs(difference: float, control: Quartiles) -> bool:
    """Whether two contenders differ, by the difference of their times; see ratio_differs."""
    return abs(difference) >= control.high - control.low
