"""The one place that replaces attributes of Paddle, and puts them back.

A module of the front that has something to put in the place of Paddle's says so in a function
``replacements()``, whose rows :func:`paddlempi.paddle.install` hands to :func:`replace`. What is
replaced later, when a model first needs it, goes the same way.

Thread-safety: none; Paddle is one program's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["Replacement", "in_the_places_of", "original", "put_back", "replace"]

Replacement = tuple[Any, str, Any]
"""A module or class, the name of one of its attributes, and what takes the attribute's place."""

_ABSENT = object()

_originals: list[Replacement] = []  # in the order of replacing


def replace(rows: Iterable[Replacement]) -> None:
    """Put values in places of Paddle's, until :func:`put_back`."""
    for place, name, value in rows:
        # Not what the place inherits: putting that back would make it the place's own.
        _originals.append((place, name, vars(place).get(name, _ABSENT)))
        setattr(place, name, value)


def put_back() -> None:
    """Put everything back that was replaced, the last first."""
    while _originals:
        place, name, value = _originals.pop()
        if value is _ABSENT:
            delattr(place, name)
        else:
            setattr(place, name, value)


def original(place: Any, name: str) -> Any:
    """Paddle's own attribute, of those that the place itself has, whether it is replaced or not."""
    for at, what, value in _originals:
        if at is place and what == name:
            return value
    return getattr(place, name)


def in_the_places_of(function: Callable[..., Any], *places: Any) -> list[Replacement]:
    """The rows of a function that stands for Paddle's of the same name, whose docstring it gets."""
    name = function.__name__
    function.__doc__ = getattr(places[0], name).__doc__
    return [(place, name, function) for place in places]
