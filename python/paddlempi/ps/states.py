"""The states that optimizers have on servers: read, written, and by parameter.

A front translates them into those of its framework. A state on a server is a row of floats, which
has the slots of its optimizer one behind the other, each as long as the row of the parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from .. import memory
from ..errors import UnsupportedError
from . import session
from .dense import Blocks
from .optimizers import Optimizer
from .remote import RemoteTable

__all__ = [
    "SLOTS",
    "State",
    "first_of",
    "is_writer",
    "read_blocks",
    "read_rows",
    "steps_of",
    "write_blocks",
    "write_rows",
]

_PIECE = 1 << 16  # rows of one request

SLOTS: Mapping[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum",),
    "adagrad": ("sum",),
    "adam": ("mean", "square"),
    "adamw": ("mean", "square"),
}
"""What is in the state of an element, by the optimizer's NAME."""


@dataclass
class State:
    """What an optimizer has of one parameter.

    Attributes:
        steps: how many it has made with it.
        slots: arrays or tensors of the parameter's shape, or [elements], by the names of SLOTS.
    """

    steps: int
    slots: dict[str, Any] = field(default_factory=dict)


def first_of(optimizer: Optimizer) -> float:
    """Return what each element of a state is before the first step."""
    return float(getattr(optimizer, "initial_accumulator", 0.0))


def is_writer(what: str) -> bool:
    """Whether this trainer writes states: the first one; in mode geo each has its own."""
    found = session.as_trainer(what)
    return found.geo_step is not None or found.rank == found.trainers[0]


def read_rows(table: RemoteTable, count: int) -> State:
    """Return the state of the rows 0 to count - 1, each slot [count, dim]. It makes no rows."""
    names = SLOTS[table.optimizer.NAME]
    empty = import_module("numpy").empty
    found = State(0, {name: empty((count, table.dim), "float32") for name in names})
    for begin, end in _pieces(count) if names else ():
        states, steps = table.read_states(_ids(begin, end))
        found.steps = max(found.steps, steps)
        by_slot = states.reshape(end - begin, len(names), table.dim)
        for place, name in enumerate(names):
            found.slots[name][begin:end] = by_slot[:, place]
    return found


def write_rows(table: RemoteTable, count: int, state: State) -> None:
    """Set the state of the rows 0 to count - 1. A slot that is missing becomes what it is at first.

    Args:
        state: its slots are arrays of float32 of count x dim elements.
    """
    names = SLOTS[table.optimizer.NAME]
    for begin, end in _pieces(count) if names else ():
        states = memory.empty((end - begin, len(names), table.dim))
        states[:] = first_of(table.optimizer)
        for place, name in enumerate(names):
            if name in state.slots:
                states[:, place] = state.slots[name].reshape(count, table.dim)[begin:end]
        flat = states.reshape(end - begin, len(names) * table.dim)
        table.write_states(_ids(begin, end), flat, state.steps)


def read_blocks(blocks: Blocks, elements: int) -> State:
    """Return the state of a vector, each slot [elements]."""
    found = read_rows(blocks.table, blocks.count)
    found.slots = {name: slot.reshape(-1)[:elements] for name, slot in found.slots.items()}
    return found


def write_blocks(
    blocks: Blocks, parts: Iterable[tuple[slice, Mapping[str, Any]]], steps: int
) -> None:
    """Set the state of a vector.

    Args:
        parts: places in the vector, with their slots as arrays of float32, [elements].
        steps: how many the vector has made.
    """
    optimizer, full = blocks.table.optimizer, import_module("numpy").full
    shape, first = (blocks.count, blocks.table.dim), first_of(optimizer)
    slots = {name: full(shape, first, "float32") for name in SLOTS[optimizer.NAME]}
    for place, of in parts:
        for name, values in of.items():
            slots[name].reshape(-1)[place] = values
    write_rows(blocks.table, blocks.count, State(steps, slots))


def steps_of(optimizer: Optimizer, counts: Iterable[int]) -> int:
    """Return how many steps a vector has made, of whose parameters each has made so many.

    Raises:
        UnsupportedError: they differ, and the next step depends on it.
    """
    different = sorted(set(counts)) or [0]
    if len(different) > 1 and SLOTS[optimizer.NAME] == SLOTS["adam"]:
        raise UnsupportedError(
            "ps.DistributedOptimizer: the parameters of a group have made from "
            f"{different[0]} to {different[-1]} steps of {type(optimizer).__name__}, and servers "
            "count those of a group: give it groups with as many, or take ps.transpile, which "
            "counts for each parameter"
        )
    return different[-1]


def _pieces(count: int) -> Iterable[tuple[int, int]]:
    return ((begin, min(begin + _PIECE, count)) for begin in range(0, count, _PIECE))


def _ids(begin: int, end: int) -> Any:
    ids = memory.empty(end - begin, "int64")
    ids[:] = range(begin, end)
    return ids
