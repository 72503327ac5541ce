"""Replaces attributes of Paddle, and restores them. No other module of the front does.

A module of the front that replaces something of Paddle returns it from a function
``replacements()``; :func:`paddlempi.paddle.install` gives these rows to :func:`replace`. Some
attributes are replaced later, when a model first needs it, also by :func:`replace`.

Thread-safety: none. The attributes of Paddle are global to the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Replacement", "original", "put_back", "replace", "replacements_for"]

Replacement = tuple[Any, str, Any]
"""A module or class (its *owner*), the name of one of its attributes, and the new value of that."""

_ABSENT = object()

_originals: list[Replacement] = []  # in the order of replacing


def replace(rows: Iterable[Replacement]) -> None:
    """Replace attributes until :func:`put_back`."""
    for owner, name, value in rows:
        # vars, not getattr: restoring an inherited attribute would define it in the class itself.
        _originals.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)


def put_back() -> None:
    """Restore all attributes that were replaced, the last one first."""
    while _originals:
        owner, name, value = _originals.pop()
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)


def original(owner: Any, name: str) -> Any:
    """Return Paddle's own attribute, whether it is replaced or not. It must not be inherited."""
    for replaced_owner, replaced_name, value in _originals:
        if replaced_owner is owner and replaced_name == name:
            return value
    return getattr(owner, name)


def replacements_for(function: Callable[..., Any], *owners: Any) -> list[Replacement]:
    """Return rows that replace the functions of Paddle with the name of ``function``.

    ``function`` gets the docstring of Paddle's.
    """
    name = function.__name__
    function.__doc__ = getattr(owners[0], name).__doc__
    return [(owner, name, function) for owner in owners]
