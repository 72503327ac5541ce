"""The bytes that leave a node, by the counters of its network interfaces.

The kernel counts what passes an interface, with the headers. Adapters that the kernel does not
drive (InfiniBand verbs, Slingshot) do not show there; then there is no figure, instead of a wrong
one. Other programs of the node count too, so a figure holds only on a network that is quiet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["LEAST", "Passed", "least", "over_least", "passed", "read", "shape"]

LEAST = 64 << 10
"""Bytes. A figure is taken of calls that send at least as many: the barrier around them counts."""

_TABLE = Path("/proc/self/net/dev")
_DEVICES = Path("/sys/class/net")
_FACTORS = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}


class Passed(NamedTuple):
    """Bytes that came in and went out of a node."""

    came: int
    went: int


def read(table: Path = _TABLE, devices: Path = _DEVICES) -> Passed | None:
    """Return what has passed the interfaces of this node so far; None if that cannot be read.

    Loopback does not leave the node. A bridge, a bond or a VLAN counts what the interfaces below it
    count too, so only those are taken.
    """
    try:
        lines = table.read_text().splitlines()[2:]
    except OSError:
        return None
    came = went = 0
    for line in lines:
        name, _, figures = line.partition(":")
        name = name.strip()
        if name == "lo" or any((devices / name).glob("lower_*")):
            continue
        fields = figures.split()
        came += int(fields[0])
        went += int(fields[8])
    return Passed(came, went)


def passed(before: Passed | None, after: Passed | None) -> Passed | None:
    """Return what has passed between two readings."""
    if before is None or after is None:
        return None
    return Passed(after.came - before.came, after.went - before.went)


def least(operation: str, nbytes: int, node: Sequence[int]) -> float | None:
    """Return the fewest bytes that pass the node which sends or gets the most in an operation.

    All nodes together send 2(N-1)S in an all_reduce of S bytes on N nodes, and (N-1)S where the
    larger side of a call has S bytes in a reduce_scatter or an all_gather. In a broadcast some node
    gets all, in a pingpong both do. In an all_to_all of n ranks each of the p ranks of a node sends
    S/n to every rank of the others.

    Args:
        operation: its name.
        nbytes: of the larger side of a call on one rank.
        node: the number of the node of each rank.

    Returns:
        None for other operations.
    """
    nodes, n = len(set(node)), len(node)
    if operation in ("broadcast", "pingpong"):
        return nbytes if nodes > 1 else 0.0
    if operation == "all_to_all":
        return max(p * (n - p) / n * nbytes for p in Counter(node).values())
    factor = _FACTORS.get(operation)
    return None if factor is None else factor * (nodes - 1) / nodes * nbytes


def over_least(taken: Sequence[Passed | None], node: Sequence[int], fewest: float) -> float | None:
    """Return the bytes of the node that sends or gets the most, over the fewest possible.

    Args:
        taken: what each rank has read.
        node: the number of the node of each rank.
        fewest: of all calls that were made between the readings.

    Returns:
        None if some node cannot read it, or its counters do not show what must have left it.
    """
    most = 0
    for rank, of_rank in enumerate(taken):
        if node.index(node[rank]) != rank:
            continue  # the ranks of a node read the same counters
        if of_rank is None:
            return None
        most = max(most, *of_rank)
    return most / fewest if most >= 0.98 * fewest else None


def shape(node: Sequence[int]) -> str:
    """Return nodes and ranks: "2 x 4", or "1 + 2 + 3" if the nodes have different numbers.

    Args:
        node: the number of the node of each rank.
    """
    ranks = list(Counter(node).values())
    if len(set(ranks)) == 1:
        return f"{len(ranks)} x {ranks[0]}"
    return " + ".join(str(number) for number in ranks)
