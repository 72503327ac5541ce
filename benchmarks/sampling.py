"""How the benchmarks of the frameworks measure: blocks of calls, contenders in turn, quartiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

__all__ = ["Call", "block", "quartiles", "sample"]

Call = Callable[[], object]


def block(call: Call, calls: int, end: Call | None = None) -> float:
    """Return the microseconds of one call, measured over ``calls`` calls.

    ``end()`` waits for what they have left under way; its time counts.
    """
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
    """Measure the contenders in turn. A round has one block for each, in changing order.

    Args:
        contenders: what is called, by name.
        calls: the calls of a block.
        rounds: the rounds that are measured.
        barrier: is called before each block, so that the ranks begin it together.
        warm: the rounds before that are not measured: they touch memory and fill caches.
        ends: functions that end the blocks of some contenders; see :func:`block`.

    Returns:
        Microseconds of one call: for each contender one number a round.
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
    """Return the lower quartile, the median and the upper quartile."""
    ordered = sorted(values)
    return [ordered[min(len(ordered) - 1, int(q * len(ordered)))] for q in (0.25, 0.5, 0.75)]
