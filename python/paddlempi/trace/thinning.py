"""Which calls are left out of a picture that would become too large, by one rule that it names."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from .model import Timeline
from .slices import Slices

__all__ = ["Thinned", "thin"]


@dataclasses.dataclass(frozen=True)
class Thinned:
    """The slices that a picture keeps.

    Attributes:
        list: rows of SLICE.
        rule: what was left out, in a sentence; "" if nothing was.
    """

    list: npt.NDArray[Any]
    rule: str = ""


def thin(timeline: Timeline, slices: Slices, most: int) -> Thinned:
    """Keep at most so many slices: the longest, and all that failed or are under way.

    Args:
        most: how many; more are kept only if more calls than that failed or are under way.
    """
    table = slices.list
    if len(table) <= most:
        return Thinned(table)
    lasts = table["end"] - table["begin"]
    told = timeline.operations["outcome"][table["operation"]] != 0
    room = max(most - int(told.sum()), 1)
    others = np.sort(lasts[~told])
    limit = int(others[-room]) if room < len(others) else 0
    kept = told | (lasts > limit)
    rule = (
        f"calls of at most {limit / 1000:.3f} us are left out unless they failed: "
        f"{len(table) - int(kept.sum()):,} of {len(table):,}"
    )
    return Thinned(table[kept], rule)
