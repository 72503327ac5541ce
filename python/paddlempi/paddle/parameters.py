"""An optimizer of Paddle: its parameters, a part of them, and methods before those of its class."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

__all__ = ["STATE", "only", "parameters_of", "put_before"]

STATE = ("_grad_clip", "_param_groups", "_parameter_list")
"""The attributes in which an optimizer of Paddle keeps its gradient clip and its parameters."""


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of an optimizer, also if they are in parameter groups."""
    groups = optimizer._param_groups or []
    if groups and isinstance(groups[0], dict):
        return [p for group in groups for p in group["params"]]
    return list(groups)


@contextlib.contextmanager
def only(optimizer: Any, ids: Collection[int]) -> Iterator[None]:
    """Restrict an optimizer to the parameters with these ids; its groups keep their options."""
    groups, parameters = optimizer._param_groups, optimizer._parameter_list
    optimizer._param_groups = _select(groups, ids)
    optimizer._parameter_list = _select(parameters, ids)
    try:
        yield
    finally:
        optimizer._param_groups, optimizer._parameter_list = groups, parameters


def put_before(optimizer: Any, methods: type) -> None:
    """Change an optimizer's class to a new subclass of it, in which ``methods`` come first."""
    cls = type(optimizer)
    optimizer.__class__ = type(cls.__name__, (methods, cls), {"__module__": cls.__module__})


def _select(given: Sequence[Any], ids: Collection[int]) -> list[Any]:
    """Select from a list of parameters, or from every group of a list of parameter groups."""
    if given and isinstance(given[0], dict):
        return [{**group, "params": _select(group["params"], ids)} for group in given]
    return [p for p in given if id(p) in ids]
