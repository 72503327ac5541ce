"""How the benchmarks of the frameworks measure: contenders in turn, in blocks, and quartiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

__all__ = ["Call", "block", "quartiles", "sample"]

Call = Callable[[], object]


def block(call: Call, calls: int, end: Call | None = None) -> float:
    """Microseconds of one call among so many; ``end()`` does what a block has left under way."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    if end is not None:
        end()
    return (time.perf_counter() - start) / calls * 1e6


def sample(
    contenders: dict[str, Call],
    calls: int,
    rounds: int,
    barrier: Call,
    warm: int = 1,
    ends: Mapping[str, Call] | None = None,
) -> dict[str, list[float]]:
    """Microseconds a call of each contender: a block of calls a round, in changing order.

    Args:
        contenders: what is called, by name.
        calls: in a block.
        rounds: how many blocks of each count.
        barrier: brings the ranks together before each block.
        warm: rounds before, which touch memory and caches and do not count.
        ends: what ends a contender's block, inside the time that is taken.
    """
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds + warm):
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            barrier()
            took = block(contenders[name], calls, (ends or {}).get(name))
            if round_ >= warm:
                samples[name].append(took)
    return samples


def quartiles(values: list[float]) -> list[float]:
    """The lower quartile, the median and the upper quartile."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in (0.25, 0.5, 0.75)]
