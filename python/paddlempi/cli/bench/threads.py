"""``bench call --threads``: an operation with several numbers of threads of each rank.

Beside each time stands that of a copy of as many bytes by as many threads, of all ranks at once: so
much the memory of the node gives. A core of one rank cannot tell it, as threads share caches and
channels.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from ... import _native, collectives
from . import collectives as operations
from . import report
from .collectives import OURS, Plan, Row
from .contenders import Framework
from .figures import quantile
from .operations import OPERATIONS
from .sampling import slowest

__all__ = ["measure"]

_HEAD = f"{'# bytes':>11}  threads {'p50, us':>11} {'copy, us':>11}  copy : ours  path"


def measure(
    chosen: argparse.Namespace, plan: Plan, tensors: Framework, bar: report.Bar
) -> tuple[list[Row], dict[str, str]]:
    """Measure the chosen operations, size by size. Collective over the world.

    Returns:
        The rows, and for what was not measured the reason.
    """
    rows: list[Row] = []
    absent: dict[str, str] = {}
    before = _native.control("info")["threads"]
    try:
        for name in chosen.operations:
            bar.say(f"# {name}, {tensors.name} {tensors.dtype}", _HEAD)
            for size in plan.sizes[:1] if OPERATIONS[name].empty else plan.sizes:
                for count in chosen.threads:
                    _native.control("threads", count=count)
                    found: list[Row] = []
                    of_size = replace(plan, sizes=[size])
                    absent |= operations.measure(
                        name, [OURS], tensors, of_size, found.extend, bar.show
                    )
                    for row in found:
                        rows.append(replace(row, threads=count, copy_us=_copy(row.bytes)))
                        bar.say(_line(rows[-1]))
            bar.next()
    finally:
        _native.control("threads", count=before)
    return rows, absent


def _copy(nbytes: int) -> float | None:
    """Return how long a copy of so many bytes takes on the slowest rank. Collective."""
    if nbytes == 0:
        return None
    import numpy as np

    source, to = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    arguments: dict[str, Any] = {"address": source.ctypes.data, "to": to.ctypes.data}
    times = max(10, min(200, (1 << 30) // nbytes))
    collectives.barrier()
    took = _native.control("time_copies", bytes=nbytes, times=times, **arguments)["ns"]
    return quantile([ns / 1000 for ns in slowest(took)], 0.5)


def _line(row: Row) -> str:
    copy = (
        f"{'-':>11}  {'-':>11}"
        if row.copy_us is None
        else (f"{row.copy_us:>11.2f}  {row.copy_us / row.p50_us:>11.2f}")
    )
    return f"{row.bytes:>11}  {row.threads:>7} {row.p50_us:>11.2f} {copy}  {row.path or '-'}"
