"""The states of the optimizers of a static program, by the names of their variables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, UnsupportedError
from ..ps import RemoteTable
from ..ps.dense import Blocks
from ..ps.states import State, is_writer, read_blocks, read_rows, write_blocks, write_rows
from .states import arrays_of, state_of
from .static_updates import Update

__all__ = ["OptimizerStates"]


class OptimizerStates:
    """Those of a program, which lie on the servers.

    Args:
        updates: what the optimizers do.
        shapes: those of the parameters, by their names.
        dense: the vectors of dense parameters, by the names of these.
        tables: the tables, by the names of the embeddings.
    """

    def __init__(
        self,
        updates: Iterable[Update],
        shapes: Mapping[str, tuple[int, ...]],
        dense: Mapping[str, Blocks],
        tables: Mapping[str, RemoteTable],
    ) -> None:
        self._updates, self._shapes = list(updates), shapes
        self._dense, self._tables = dense, tables

    def read(self) -> dict[str, Any]:
        """Return arrays by the names of variables."""
        found: dict[str, Any] = {}
        for update in self._updates:
            name, shape = update.parameter, self._shapes[update.parameter]
            if name in self._tables:
                state = read_rows(self._tables[name], shape[0])
            else:
                state = read_blocks(self._dense[name], math.prod(shape))
            arrays = arrays_of(update.optimizer, state, shape)
            found |= {update.states[kind]: array for kind, array in arrays.items()}
        return found

    def take(self, values: dict[str, Any]) -> dict[str, State]:
        """Take the states out of arrays by name; return them by parameter.

        Raises:
            ArgumentError: one is missing.
            UnsupportedError: one is of another shape.
        """
        states = {}
        for update in self._updates:
            name, found = update.parameter, {}
            for kind, variable in update.states.items():
                if variable not in values:
                    raise ArgumentError(
                        f"plan.set_state_dict: the state has no {variable!r}, of parameter {name!r}"
                    )
                found[kind] = values.pop(variable)
            try:
                states[name] = state_of(found, self._shapes[name], update.optimizer)
            except UnsupportedError as error:
                raise UnsupportedError(
                    f"plan.set_state_dict: {error} of parameter {name!r}, of shape "
                    f"{self._shapes[name]}, is of another shape"
                ) from None
        return states

    def write(self, states: Mapping[str, State]) -> None:
        """Set what the servers have of parameters to that of the first trainer. All call it."""
        if not is_writer("plan.set_state_dict"):
            return
        for name, state in states.items():
            slots = {slot: np.asarray(one, "f4") for slot, one in state.slots.items()}
            if name in self._tables:
                count = self._shapes[name][0]
                write_rows(self._tables[name], count, State(state.steps, slots))
            else:
                whole = slice(0, math.prod(self._shapes[name]))
                flat = {slot: one.reshape(-1) for slot, one in slots.items()}
                write_blocks(self._dense[name], [(whole, flat)], state.steps)
