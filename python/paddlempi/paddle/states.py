"""The states of Paddle's optimizers, and of those on servers, each in the words of the other.

Paddle names a state ``PARAMETER_KIND_0``; 0 counts the optimizers that a process has made for the
parameter. Of Adam's steps it has the powers of the betas, of the next step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle

from .. import ps
from ..errors import ArgumentError, UnsupportedError
from ..ps.states import SLOTS, State
from .private import check_object

__all__ = [
    "arrays_of",
    "forget",
    "of_servers",
    "split",
    "state_for_servers",
    "state_of",
    "states_of",
]

_KINDS = {"momentum": "velocity", "sum": "moment", "mean": "moment1", "square": "moment2"}
"""What Paddle calls a slot of a state on servers."""
_POWERS = {"beta1_pow_acc": "beta1", "beta2_pow_acc": "beta2"}
_NAMES = ("_accumulators", "_accumulators_holder")
_LONG = 1 << 20  # steps after which Adam corrects no bias any more
_LEAST = 1e-30  # a power below has lost bits


def states_of(optimizer: Any, parameter: Any) -> list[str]:
    """Return the names of the states that an optimizer has of a parameter. At first it has none."""
    check_object(optimizer, _NAMES)
    there = [kind for kind, of in optimizer._accumulators.items() if parameter.name in of]
    return there or list(optimizer._accumulators_holder)  # loaded, until the first step


def forget(optimizer: Any, parameters: Iterable[Any]) -> None:
    """Have an optimizer drop what it has of parameters."""
    names = [parameter.name for parameter in parameters]
    for of in optimizer._accumulators.values():
        for name in names:
            of.pop(name, None)
    holder, prefix = optimizer._accumulators_holder, _prefix(optimizer)
    optimizer._accumulators_holder = {
        name: value for name, value in holder.items() if not _by_name({name: 0}, names, prefix)
    }


def state_for_servers(optimizer: Any, parameter: Any, does: ps.Optimizer) -> State | None:
    """Return what servers take of an optimizer's state of a parameter; None: it has none.

    Raises:
        UnsupportedError: servers have no place for it. The text is the names of what it is.
    """
    if not states_of(optimizer, parameter):
        return None
    prefix = _prefix(optimizer)
    found = {
        kind.removeprefix(prefix): of[parameter.name]
        for kind, of in optimizer._accumulators.items()
        if parameter.name in of
    }
    if not found:
        holder = optimizer._accumulators_holder
        found = _by_name(holder, [parameter.name], prefix).get(parameter.name, {})
        if not found:
            names = ", ".join(sorted(holder)[:3])
            raise UnsupportedError(f"states of other names ({names}, ...), and none")
    return _of_tensors(state_of(found, tuple(parameter.shape), does))


def _by_name(
    state: Mapping[str, Any], names: Iterable[str], prefix: str = ""
) -> dict[str, dict[str, Any]]:
    """Return the tensors of a state dict by the names of parameters, and by kind."""
    found: dict[str, dict[str, Any]] = {}
    wanted = set(names)
    for name, value in state.items():
        for kind in (*_KINDS.values(), *_POWERS, "moment2_max"):
            match = re.fullmatch(rf"(.+)_{re.escape(prefix)}{kind}_\d+", name)
            if match is not None and match[1] in wanted:
                found.setdefault(match[1], {})[kind] = value
    return found


def _prefix(optimizer: Any) -> str:
    name = getattr(optimizer, "_name", None)
    return f"{name}_" if name is not None else ""


def state_of(found: Mapping[str, Any], shape: tuple[int, ...], does: ps.Optimizer) -> State:
    """Return what servers take of tensors or arrays by kind.

    Raises:
        UnsupportedError: they have no place for some.
    """
    slots = {_KINDS[slot]: slot for slot in SLOTS[does.NAME]}
    powers = _POWERS if isinstance(does, ps.Adam) else {}
    odd = [
        kind
        for kind, value in found.items()
        if kind not in powers and (kind not in slots or tuple(value.shape) != shape)
    ]
    odd += [kind for kind in (*slots, *powers) if kind not in found and not odd]
    if odd:
        raise UnsupportedError(", ".join(odd))
    # Of the others servers need no count.
    steps = _steps([(_number(found[k]), getattr(does, powers[k])) for k in powers]) if powers else 1
    return State(steps, {slot: found[kind] for kind, slot in slots.items()})


def _of_tensors(state: State) -> State:
    """Return a state whose slots are tensors of Paddle: a dictionary may have arrays."""
    for slot, value in state.slots.items():
        if not isinstance(value, paddle.Tensor):
            state.slots[slot] = paddle.to_tensor(np.asarray(value))
    return state


def _number(value: Any) -> float:
    return float(np.asarray(value).reshape(-1)[0])


def _steps(powers: list[tuple[float, float]]) -> int:
    """Return how many steps Adam has made by the powers of its betas, each with its beta."""
    for power, beta in powers:
        if 0 < beta < 1 and power > _LEAST:
            return max(0, round(math.log(power) / math.log(beta)) - 1)
    return _LONG


def of_servers(name: str, optimizer: Any, does: ps.Optimizer, found: State, like: Any) -> Any:
    """Return the state of a parameter as Paddle's optimizer has it, by name.

    Args:
        name: of the parameter.
        does: what servers do for it.
        found: what they have of it.
        like: the parameter, or the shape of a table's rows.
    """
    shape = list(like.shape if isinstance(like, paddle.Tensor) else like)
    dtype = like.dtype if isinstance(like, paddle.Tensor) else paddle.float32
    if dtype in (paddle.float16, paddle.bfloat16):
        dtype = paddle.float32
    prefix = _prefix(optimizer)
    return {
        f"{name}_{prefix}{kind}_0": paddle.to_tensor(value).astype(dtype)
        for kind, value in arrays_of(does, found, shape).items()
    }


def arrays_of(does: ps.Optimizer, found: State, shape: Sequence[int]) -> dict[str, Any]:
    """Return what servers have of a parameter as arrays of float32, by Paddle's kinds."""
    arrays = {
        _KINDS[slot]: np.ascontiguousarray(one, np.float32).reshape(shape)
        for slot, one in found.slots.items()
    }
    if isinstance(does, ps.Adam):
        for kind, beta in _POWERS.items():
            arrays[kind] = np.full([1], getattr(does, beta) ** (found.steps + 1), np.float32)
    return arrays


def split(
    what: str, optimizer: Any, state: Mapping[str, Any], of: Mapping[str, tuple[Any, ps.Optimizer]]
) -> dict[str, State]:
    """Return the states in a state dict by the names of parameters; if it has none, none.

    Args:
        of: the shapes of parameters by their names, and what servers do for them.

    Raises:
        ArgumentError: there is one that belongs to none, or one is missing.
        UnsupportedError: servers have no place for one.
    """
    given = {
        name: value
        for name, value in state.items()
        if name not in ("LR_Scheduler", "master_weights")
    }
    if state.get("master_weights"):
        raise UnsupportedError(f"{what}: the state dict has master_weights, which servers have not")
    found = _by_name(given, of, _prefix(optimizer))
    extra = len(given) - sum(len(one) for one in found.values())
    if extra:
        known = {name for name in given if not _by_name({name: 0}, of, _prefix(optimizer))}
        raise ArgumentError(
            f"{what}: the state dict has {', '.join(sorted(known)[:3])}, of no parameter here: "
            f"there are {', '.join(sorted(of)[:3])} and more"
        )
    states = {}
    for name, (shape, does) in of.items() if given else ():
        if not SLOTS[does.NAME]:
            states[name] = State(0)
            continue
        if name not in found:
            raise ArgumentError(f"{what}: the state dict has nothing of parameter {name!r}")
        try:
            states[name] = _of_tensors(state_of(found[name], tuple(shape), does))
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{what}: the state dict has {error} of parameter {name!r}, or lacks it, or it is "
                f"of another shape: servers have no place for it with {type(does).__name__}"
            ) from None
    return states
