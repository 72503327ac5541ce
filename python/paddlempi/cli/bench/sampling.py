"""How times are taken: contenders in random order, and a clock that is read after every call."""

from __future__ import annotations

import itertools
import random
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TypeVar

from ... import collectives
from ...reduce_op import ReduceOp

__all__ = ["Call", "clock_cost", "shuffled", "slowest", "stamped"]

Call = Callable[[], object]
T = TypeVar("T")


def stamped(calls: Sequence[Call]) -> list[int]:
    """Make the calls one after the other; return how long each took, in ns."""
    clock = time.perf_counter_ns
    stamps = [clock()]
    note = stamps.append
    for call in calls:
        call()
        note(clock())
    return [after - before for before, after in itertools.pairwise(stamps)]


def clock_cost() -> float:
    """Return how many ns :func:`stamped` adds to a call."""
    clock = time.perf_counter_ns
    stamps = [clock()]
    note = stamps.append
    for _ in range(2000):
        note(clock())
    return sorted(b - a for a, b in itertools.pairwise(stamps))[1000]


def shuffled(contenders: Sequence[T], round_: int) -> list[T]:
    """Return the contenders in the order of a round, the same on all ranks.

    The order is random, because a contender may disturb the one after it: gloo's threads run on.
    """
    return random.Random(round_).sample(contenders, len(contenders))


def slowest(samples: Sequence[float]) -> list[float]:
    """Return for each sample the greatest of all ranks. Collective over the world."""
    words = array("d", samples)
    if len(words):
        collectives.all_reduce(words, ReduceOp.MAX)
    return list(words)
