"""The states of torch's optimizers, and of those on servers, each in the words of the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from .. import ps
from ..errors import ArgumentError, UnsupportedError
from ..ps.states import SLOTS, State

__all__ = ["check_groups", "of_servers", "state_for_servers", "states_of"]

_NAMES = {"momentum": "momentum_buffer", "sum": "sum", "mean": "exp_avg", "square": "exp_avg_sq"}
"""What torch calls a slot of a state on servers."""


def states_of(state: Mapping[str, Any], group: Mapping[str, Any]) -> list[str]:
    """Return the names of an optimizer's states of a parameter, but those that it begins with."""
    first = {"sum": group.get("initial_accumulator_value", 0)}
    return [
        name
        for name, value in state.items()
        if value is not None and _differs(value, first.get(name, 0))
    ]


def _differs(value: Any, first: float) -> bool:
    if not isinstance(value, torch.Tensor):
        return bool(value != first)
    return bool(value.layout is not torch.strided or (value != first).any())


def state_for_servers(
    state: Mapping[str, Any],
    group: Mapping[str, Any],
    shape: Sequence[int],
    does: ps.Optimizer,
) -> State | None:
    """Return what servers take of the state of a parameter; None: it is what they begin with.

    Args:
        state: of torch's optimizer, of one parameter.
        group: the parameter's.
        shape: that of the parameter.
        does: what servers do for it.

    Raises:
        UnsupportedError: they have no place for it. The text is the names of what it is.
    """
    names = states_of(state, group)
    known = {_NAMES[slot]: slot for slot in SLOTS[does.NAME]}
    odd = [
        name
        for name in names
        if (name not in known or not _is_like(state[name], shape))
        and not (known and name == "step")
    ]
    if odd:
        raise UnsupportedError(", ".join(odd))
    if not names:
        return None
    slots = {slot: state[name] for name, slot in known.items() if state.get(name) is not None}
    return State(int(state.get("step", 1)), slots)  # SGD counts no steps


def _is_like(value: Any, shape: Sequence[int]) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_complex()
        and tuple(value.shape) == tuple(shape)
    )


def of_servers(
    kind: type, does: ps.Optimizer, found: State, like: torch.Tensor | Sequence[int]
) -> dict[str, Any]:
    """Return the state of a parameter as torch's optimizer of this kind has it; {}: it has none.

    Args:
        does: what servers do for it.
        found: what they have of it.
        like: the parameter, or the shape of a table's rows.
    """
    begun = found.steps > 0 or kind is torch.optim.Adagrad
    if not SLOTS[does.NAME] or not begun:
        return {}
    if isinstance(like, torch.Tensor):
        shape, where, dtype = tuple(like.shape), like.device, like.dtype
    else:
        shape, where, dtype = tuple(like), torch.device("cpu"), torch.float32
    state: dict[str, Any] = {}
    if kind is torch.optim.SparseAdam:
        state["step"] = found.steps
    elif kind is not torch.optim.SGD:
        state["step"] = torch.tensor(float(found.steps), dtype=torch.float32)
    for slot, values in found.slots.items():
        state[_NAMES[slot]] = torch.tensor(values).view(shape).to(where, dtype)
    return state


def check_groups(
    what: str, groups: Any, members: Sequence[Sequence[Any]]
) -> Iterator[tuple[int, int, Any, Any]]:
    """The parameters of a state dict: number of the group, index, the group there, and whose it is.

    Raises:
        ArgumentError: it has other groups.
    """
    sizes, there = [len(of) for of in members], [len(one["params"]) for one in groups]
    if sizes != there:
        raise ArgumentError(
            f"{what}: the state dict has groups of {there} parameters; this optimizer has groups "
            f"of {sizes}, with the embeddings that are on servers"
        )
    for number, (saved, of) in enumerate(zip(groups, members, strict=True)):
        for index, member in zip(saved["params"], of, strict=True):
            yield number, index, saved, member
