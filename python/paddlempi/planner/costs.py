"""How long collectives take on a machine: read off what was measured, or carried over from it.

Between two measured lengths the time is interpolated in logarithms. A shape of a group (nodes x
ranks on each) that was not measured is put together from those that were: the network part scales
with what leaves a node, the node's part with what a member reads, latencies with the number of
rounds (Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in
MPICH, 2005). Its range is wider, the more so the further away it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import ArgumentError
from .machine import Collective, Machine, Range, Step

__all__ = ["Costs"]

_WIDER = 0.2
"""By how much of itself a range grows with each doubling of the members that was not measured."""

_TRAFFIC = 105e6
"""Bytes that a step of mlp-16M reads and writes, counted as for other models."""

_NOTHING = Range(0.0, 0.0, 0.0)


class Costs:
    """What calls cost on a machine.

    Args:
        machine: what was measured.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._rows: dict[tuple[str, int, int], list[Collective]] = {}
        for row in sorted(machine.collectives, key=lambda row: row.bytes):
            self._rows.setdefault((row.operation, row.nodes, row.ranks), []).append(row)

    def measured(self, operation: str, nodes: int, ranks: int) -> bool:
        """Whether this operation was measured in a group of this shape."""
        return (operation, nodes, ranks) in self._rows

    def collective(self, operation: str, nbytes: float, nodes: int, ranks: int) -> Range:
        """Return the seconds of a call, until its slowest member has the result.

        Args:
            operation: as in :class:`~paddlempi.planner.machine.Collective`.
            nbytes: of the larger side of the call on one rank.
            nodes, ranks: the group's shape. With one member nothing is sent.

        Raises:
            ArgumentError: nothing is known of this operation there: the machine was measured
                without a network, or without several ranks on a node.
        """
        if nodes * ranks == 1:
            return _NOTHING
        rows = self._rows.get((operation, nodes, ranks))
        if rows:
            return _at(rows, nbytes)
        if nodes > 1 and ranks > 1:
            whole = self._nearest(operation, nbytes, nodes, ranks)
            if whole is not None:
                return whole
            network = self.collective(operation, nbytes, nodes, 1)
            return network.plus(self.collective(operation, nbytes, 1, ranks))
        found = self._nearest(operation, nbytes, nodes, ranks)
        if found is None:
            what = "a network" if nodes > 1 else "several ranks on a node"
            raise ArgumentError(
                f"machine: nothing is known of {operation} over {what}: it was measured with "
                f"{self.machine.nodes} nodes and {self.machine.ranks} ranks on each; run bench "
                "--calibrate on nodes x ranks that have both"
            )
        return found

    def _nearest(self, operation: str, nbytes: float, nodes: int, ranks: int) -> Range | None:
        """Carry over the nearest shape that has the same levels: a network, several ranks."""
        levels = (nodes > 1, ranks > 1)
        near = [
            (n, r) for name, n, r in self._rows if name == operation and (n > 1, r > 1) == levels
        ]
        if not near:
            return None

        def far(shape: tuple[int, int]) -> float:
            return abs(math.log2(nodes / shape[0])) + abs(math.log2(ranks / shape[1]))

        shape = min(near, key=far)
        name = (operation, *shape)
        rows = self._rows[name]
        latency = rows[0].seconds
        whole = _at(rows, nbytes)
        of_bytes = max(0.0, whole.middle - latency.middle)
        rounds = math.log2(nodes * ranks) / math.log2(shape[0] * shape[1])
        moved = _moved(operation, nodes, ranks) / _moved(operation, *shape)
        middle = latency.middle * rounds + of_bytes * moved
        spread = middle / whole.middle
        wider = 1 + _WIDER * far(shape)
        return Range(middle, whole.low * spread / wider, whole.high * spread * wider)

    # Steps

    def busy(self, seconds: Range, traffic: float) -> Range:
        """Return the seconds of what a rank computes while all others compute, too.

        They may share CPUs, which slows products as it slows steps, and they share the memory: so
        much more as a step of mlp-16M shows, for each byte.

        Args:
            seconds: while it computes alone.
            traffic: the bytes that it reads and writes.
        """
        alone, together = self.machine.alone, self.machine.together
        products = alone.flops.middle / together.flops.middle
        steps = alone.steps.middle / together.steps.middle
        shared = max(1.0, min(products, steps))
        slower = 1 / together.steps.middle - shared / alone.steps.middle
        more = max(0.0, slower) / _TRAFFIC * traffic
        return seconds.times(shared).plus(Range(more, more / 2, more * 2))

    def step(self, kind: str) -> Step | None:
        """Return the steps that were measured of a kind; None if there were none."""
        return next((step for step in self.machine.steps if step.kind == kind), None)

    def exposed(self, kind: str) -> Range:
        """Return how many seconds a step gets longer for each second of its collectives alone.

        Below 1 computation hides a part of them; it is above 1 where they take the CPUs from it.
        """
        step = self.step(kind)
        if step is None or not step.alone.middle:
            return Range(1.0, 0.7, 1.3)
        middle = max(0.0, step.step.middle - step.silent.middle) / step.alone.middle
        # The errors of a difference: those of both sides, which were measured in turn.
        error = math.hypot(_half(step.step), _half(step.silent)) / step.alone.middle
        return Range(middle, max(0.0, middle - error), middle + error)


def _half(spread: Range) -> float:
    return (spread.high - spread.low) / 2


def _at(rows: Sequence[Collective], nbytes: float) -> Range:
    """Read off the seconds at a length."""
    if nbytes <= rows[0].bytes or len(rows) == 1:
        return rows[0].seconds
    if nbytes >= rows[-1].bytes:
        return rows[-1].seconds.times(nbytes / rows[-1].bytes)
    at = next(place for place, row in enumerate(rows) if row.bytes >= nbytes)
    before, after = rows[at - 1], rows[at]
    part = math.log(nbytes / before.bytes) / math.log(after.bytes / before.bytes)
    return Range(
        *(
            math.exp((1 - part) * math.log(a) + part * math.log(b)) if a and b else max(a, b)
            for a, b in zip(before.seconds, after.seconds, strict=True)
        )
    )


def _moved(operation: str, nodes: int, ranks: int) -> float:
    """Return what goes over the slowest link, in parts of the larger side of a call.

    Over nodes it is what leaves a node, as each tensor crosses the network once however many ranks
    a node has (docs/algorithms.md, levels); on one node what a member reads of the others.
    """
    members = nodes if nodes > 1 else ranks
    others = (members - 1) / members
    if operation == "all_reduce":
        return 2 * others
    if operation == "all_to_all":
        return others * (ranks if nodes > 1 else 1)
    if operation in ("all_gather", "reduce_scatter"):
        return others
    return 1.0
