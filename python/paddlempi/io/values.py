"""What a state has beside tensors, as JSON: numbers, texts, None, lists, tuples and maps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import ArgumentError, DtypeError

__all__ = ["decoded", "encoded"]

_KIND, _ITEMS = "paddlempi.kind", "items"
"""A map with these keys stands for what JSON does not have: a tuple, a map with other keys than
texts, or a tensor."""

Path = tuple[Any, ...]


def encoded(
    what: str, value: Any, path: Path, tensor: Callable[[Path, Any], str | None] | None = None
) -> Any:
    """Return what ``json.dumps`` takes for a value.

    Args:
        what: the function, for errors.
        value: the value.
        path: the keys that lead to it, for errors and for ``tensor``.
        tensor: gives a name to a value that is a tensor, and None to all others. None: there are no
            tensors.

    Raises:
        DtypeError: the value has something that JSON has not.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    name = None if tensor is None else tensor(path, value)
    if name is not None:
        return {_KIND: "tensor", _ITEMS: name}
    if type(value) in (list, tuple):
        items = [encoded(what, one, (*path, n), tensor) for n, one in enumerate(value)]
        return items if type(value) is list else {_KIND: "tuple", _ITEMS: items}
    if isinstance(value, Mapping):
        if all(type(key) is str for key in value) and _KIND not in value:
            return {key: encoded(what, one, (*path, key), tensor) for key, one in value.items()}
        pairs = [
            [encoded(what, key, path), encoded(what, one, (*path, key), tensor)]
            for key, one in value.items()
        ]
        return {_KIND: "map", _ITEMS: pairs}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape:
        return value.item()
    where = ".".join(map(str, path))
    raise DtypeError(
        f"{what}: {where!r} has a {type(value).__name__}, which is neither a tensor nor in JSON: "
        "give numbers, texts, None, lists, tuples and maps, or make a tensor of it"
    )


def decoded(text: str, tensor: Callable[[str], Any] | None = None) -> Any:
    """Return the value of a JSON text that :func:`encoded` has made.

    Args:
        text: the JSON.
        tensor: gives the tensor of a name.

    Raises:
        ArgumentError: it is none of it.
    """
    try:
        return _value(json.loads(text), tensor)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArgumentError(f"the values in the metadata cannot be read: {error!r:.200}") from None


def _value(said: Any, tensor: Callable[[str], Any] | None) -> Any:
    if isinstance(said, list):
        return [_value(one, tensor) for one in said]
    if not isinstance(said, dict):
        return said
    kind = said.get(_KIND)
    if kind is None:
        return {key: _value(one, tensor) for key, one in said.items()}
    if kind == "tuple":
        return tuple(_value(one, tensor) for one in said[_ITEMS])
    if kind == "map":
        return {_value(key, None): _value(one, tensor) for key, one in said[_ITEMS]}
    if kind == "tensor" and tensor is not None:
        return tensor(said[_ITEMS])
    raise KeyError(kind)
