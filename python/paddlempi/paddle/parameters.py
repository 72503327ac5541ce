"""An optimizer of Paddle: its parameters, a view of some of them only, methods before its own."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

__all__ = ["STATE", "only", "parameters_of", "put_before"]

STATE = ("_grad_clip", "_param_groups", "_parameter_list")
"""What an optimizer of Paddle keeps them in, and what clips their gradients."""


def parameters_of(optimizer: Any) -> list[Any]:
    """The parameters of an optimizer, whether in groups or not."""
    groups = optimizer._param_groups or []
    if groups and isinstance(groups[0], dict):
        return [p for one in groups for p in one["params"]]
    return list(groups)


@contextlib.contextmanager
def only(optimizer: Any, ids: Collection[int]) -> Iterator[None]:
    """The optimizer knows the parameters with these ids only; its groups keep their options."""
    groups, parameters = optimizer._param_groups, optimizer._parameter_list
    optimizer._param_groups = _part(groups, ids)
    optimizer._parameter_list = _part(parameters, ids)
    try:
        yield
    finally:
        optimizer._param_groups, optimizer._parameter_list = groups, parameters


def put_before(optimizer: Any, methods: type) -> None:
    """Let an optimizer be of a class made from its own, in which ``methods`` come first."""
    cls = type(optimizer)
    optimizer.__class__ = type(cls.__name__, (methods, cls), {"__module__": cls.__module__})


def _part(given: Sequence[Any], ids: Collection[int]) -> list[Any]:
    """The same of a list of parameters, or of parameter groups."""
    if given and isinstance(given[0], dict):
        return [{**one, "params": _part(one["params"], ids)} for one in given]
    return [p for p in given if id(p) in ids]
