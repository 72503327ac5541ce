"""What the optimizers of a static program do, read from its operators, and how servers do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import ps
from ..errors import ArgumentError, UnsupportedError
from ..ps import Optimizer

__all__ = ["BACKWARD", "Update", "is_role", "updates_of"]

BACKWARD, OPTIMIZE, SCHEDULE = 1, 2, 16
"""What Paddle's ``op_role`` says of an operator: bits."""


@dataclass(frozen=True)
class Update:
    """The operators that update a parameter in a step.

    Attributes:
        parameter: its name.
        gradient: the name of its gradient, as backward gives it.
        rate: the variable with the learning rate.
        optimizer: what servers do in their place.
        lazy: a sparse gradient changes its rows alone.
        states: the variables with its states, by what dynamic mode calls them.
        operators: their places in the block, which are not those of the learning rate.
    """

    parameter: str
    gradient: str
    rate: str
    optimizer: Optimizer
    lazy: bool
    states: Mapping[str, str]
    operators: frozenset[int]


def is_role(operator: Any, role: int) -> bool:
    """Whether an operator has a role."""
    return bool(operator.attr("op_role") & role)


def updates_of(block: Any, starts: Mapping[str, float]) -> list[Update]:
    """Return the updates of a program, in order.

    Args:
        block: its global block.
        starts: the constants that the startup program sets variables to, by their names.

    Raises:
        ArgumentError: there is none, or two of one parameter.
        UnsupportedError: servers do not have one of them: it is named.
    """
    operators = list(block.ops)
    updates: list[Update] = []
    for place, operator in enumerate(operators):
        if is_role(operator, OPTIMIZE) and "ParamOut" in operator.output_names:
            one = _update(operators, place, starts)
            if any(one.parameter == other.parameter for other in updates):
                raise ArgumentError(
                    f"ps.transpile: parameter {one.parameter!r} belongs to two optimizers"
                )
            updates.append(one)
    if not updates:
        raise ArgumentError(
            "ps.transpile: the program has no optimizer: call minimize before, in this program"
        )
    rest = set(range(len(operators))) - _rates(operators, {one.rate for one in updates})
    rest = rest.difference(*(one.operators for one in updates))
    for place in sorted(rest):
        if is_role(operators[place], OPTIMIZE):
            names = ", ".join(operators[place].output_arg_names)
            raise UnsupportedError(
                f"ps.transpile: servers have no operator {operators[place].type!r}, with which an "
                f"optimizer of the program makes {names}"
            )
    return updates


def _rates(operators: list[Any], wanted: set[str]) -> set[int]:
    """The places of operators that make learning rates: trainers keep them."""
    found = set()
    for place in reversed(range(len(operators))):
        operator = operators[place]
        made = wanted & set(operator.output_arg_names)
        if is_role(operator, SCHEDULE) or (made and is_role(operator, OPTIMIZE)):
            found.add(place)
            wanted = wanted | set(operator.input_arg_names)
    return found


def _update(operators: list[Any], place: int, starts: Mapping[str, float]) -> Update:
    operator = operators[place]
    parameter = operator.input("Param")[0]
    make = _KINDS.get(operator.type)
    if make is None:
        raise UnsupportedError(
            f"ps.transpile: parameter {parameter!r}: servers have no {operator.type}: they have "
            f"{', '.join(_KINDS)}"
        )
    for slot in ("MasterParam", "Beta1Tensor", "Beta2Tensor", "EpsilonTensor", "SkipUpdate"):
        if slot in operator.input_names and operator.input(slot):
            raise UnsupportedError(
                f"ps.transpile: parameter {parameter!r}: servers have no {operator.type} with "
                f"{slot}"
            )
    odd = [name for name in ("amsgrad", "use_global_beta_pow") if _attribute(operator, name)]
    odd += [name for name in ("lr_ratio", "rescale_grad") if _attribute(operator, name, 1.0) != 1.0]
    if odd:
        raise UnsupportedError(
            f"ps.transpile: parameter {parameter!r}: servers have no {operator.type} with "
            f"{', '.join(odd)}"
        )
    gradient, clip, decay, chain = _gradient(operators, place, parameter)
    rate = operator.input("LearningRate")[0]
    optimizer = make(operator, starts)
    if rate in starts:
        optimizer = replace(optimizer, learning_rate=starts[rate])
    if clip is not None:
        optimizer = replace(optimizer, clip_value=clip)
    if decay:
        if optimizer.weight_decay or operator.type == "adamw":
            raise UnsupportedError(
                f"ps.transpile: parameter {parameter!r}: servers have one weight decay, not "
                f"that of {operator.type} and that of a regularizer"
            )
        optimizer = replace(optimizer, weight_decay=decay)
    lazy = operator.type not in ("adam", "adamw") or bool(_attribute(operator, "lazy_mode"))
    states = {kind: operator.input(slot)[0] for kind, slot in _STATES[operator.type].items()}
    return Update(parameter, gradient, rate, optimizer, lazy, states, frozenset({place, *chain}))


def _gradient(
    operators: list[Any], place: int, parameter: str
) -> tuple[str, float | None, float, list[int]]:
    """Return the gradient that an update begins with, and what comes between.

    Paddle clips first, and adds the decay after it.

    Returns:
        The name that backward writes; the bound of a clip by value, or None; the factor of a decay;
        and the places of the operators of these.
    """
    name, at = operators[place].input("Grad")[0], place
    clip: float | None = None
    decay = 0.0
    chain: list[int] = []
    while True:
        made = _producer(operators, name, at)
        if made is None or not is_role(operators[made], OPTIMIZE):
            return name, clip, decay, chain
        operator = operators[made]
        added = _decay(operators, made, parameter) if operator.type == "sum" else None
        if added is not None and not decay and clip is None:
            (name, decay, scale), at = added, made
            chain += [made, scale]
        elif operator.type == "clip" and clip is None and _is_even(operator):
            clip, name, at = float(operator.attr("max")), operator.input("X")[0], made
            chain.append(made)
        else:
            raise UnsupportedError(
                f"ps.transpile: parameter {parameter!r}: servers have no operator "
                f"{operator.type!r} for its gradient: they have a clip by value, and then a decay "
                "(L2Decay). Norms would be those of a block"
            )


def _producer(operators: list[Any], name: str, before: int) -> int | None:
    """The place of the last operator before a place that writes a variable."""
    for place in reversed(range(before)):
        if name in operators[place].output_arg_names:
            return place
    return None


def _decay(operators: list[Any], place: int, parameter: str) -> tuple[str, float, int] | None:
    """Return what L2Decay adds in a sum: the gradient, the factor, and the place of its scale."""
    terms = operators[place].input("X")
    for gradient, term in (terms, terms[::-1]) if len(terms) == 2 else ():
        made = _producer(operators, term, place)
        if made is None or operators[made].type != "scale":
            continue
        scale = operators[made]
        if scale.input("X") == [parameter] and scale.attr("bias") == 0:
            return gradient, float(scale.attr("scale")), made
    return None


def _is_even(clip: Any) -> bool:
    tensors = [name for slot in ("Min", "Max") for name in clip.input(slot)]
    return not tensors and clip.attr("min") == -clip.attr("max")


def _attribute(operator: Any, name: str, default: Any = None) -> Any:
    return operator.attr(name) if operator.has_attr(name) else default


# What servers have


def _sgd(operator: Any, starts: Mapping[str, float]) -> Optimizer:
    return ps.SGD()


def _momentum(operator: Any, starts: Mapping[str, float]) -> Optimizer:
    method = _attribute(operator, "regularization_method", "")
    decay = operator.attr("regularization_coeff") if method == "l2_decay" else 0.0
    if method not in ("", "l2_decay"):
        raise UnsupportedError(f"ps.transpile: servers have no momentum with {method}")
    nesterov = bool(operator.attr("use_nesterov"))
    return ps.Momentum(weight_decay=decay, momentum=operator.attr("mu"), nesterov=nesterov)


def _adagrad(operator: Any, starts: Mapping[str, float]) -> Optimizer:
    start = starts.get(operator.input("Moment")[0], 0.0)
    return ps.Adagrad(epsilon=operator.attr("epsilon"), initial_accumulator=start)


def _adam(operator: Any, starts: Mapping[str, float]) -> Optimizer:
    return ps.Adam(**_betas(operator))


def _adamw(operator: Any, starts: Mapping[str, float]) -> Optimizer:
    decay = operator.attr("coeff") if operator.attr("with_decay") else 0.0
    return ps.AdamW(weight_decay=decay, **_betas(operator))


def _betas(operator: Any) -> dict[str, Any]:
    return {name: operator.attr(name) for name in ("beta1", "beta2", "epsilon")}


_KINDS: dict[str, Callable[[Any, Mapping[str, float]], Optimizer]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "adagrad": _adagrad,
    "adam": _adam,
    "adamw": _adamw,
}

_OF_ADAM = {
    "moment1": "Moment1",
    "moment2": "Moment2",
    "beta1_pow_acc": "Beta1Pow",
    "beta2_pow_acc": "Beta2Pow",
}
_STATES: dict[str, dict[str, str]] = {
    "sgd": {},
    "momentum": {"velocity": "Velocity"},
    "adagrad": {"moment": "Moment"},
    "adam": _OF_ADAM,
    "adamw": _OF_ADAM,
}
"""The inputs with the states of each operator, by what dynamic mode calls them."""
