"""What a state dict has beside tensors, as JSON: numbers, texts, None, lists, tuples and maps."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import torch

from ..errors import ArgumentError, DtypeError

__all__ = ["joined", "parsed", "written"]

_KIND, _ITEMS = "paddlempi.kind", "items"
"""A map with these keys stands for what JSON does not have: a tuple, or a map with other keys."""


def written(name: str, data: Any) -> str:
    """Return the JSON of a value.

    Args:
        name: of the value, for errors.
        data: what torch's planner gives for it: the value, or what ``torch.save`` makes of it.

    Raises:
        DtypeError: the value has something that JSON has not.
    """
    if isinstance(data, io.BytesIO):
        data.seek(0)
        # This process has just pickled it.
        data = torch.load(data, weights_only=False)
    return json.dumps(_plain(name, data))


def joined(texts: Mapping[str, str], paths: Mapping[str, Any]) -> str:
    """Return the JSON of all values, with the path of each name in the state dict."""
    inner = ",".join(f"{json.dumps(name)}:{text}" for name, text in sorted(texts.items()))
    where = json.dumps({name: list(path) for name, path in sorted(paths.items())})
    return f'{{"values":{{{inner}}},"paths":{where}}}'


def parsed(text: str) -> tuple[dict[str, Any], dict[str, tuple[Any, ...]]]:
    """Return the values, and the paths in the state dict, that :func:`joined` has written.

    Raises:
        ArgumentError: it is none of it.
    """
    try:
        said = json.loads(text)
        values = {str(name): _value(one) for name, one in said.get("values", {}).items()}
        paths = {str(name): tuple(path) for name, path in said.get("paths", {}).items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ArgumentError(f"the values in the metadata cannot be read: {error!r:.200}") from None
    return values, paths


def _plain(name: str, value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_plain(name, one) for one in value]
    if type(value) is tuple:
        return {_KIND: "tuple", _ITEMS: [_plain(name, one) for one in value]}
    if isinstance(value, Mapping):
        if all(type(key) is str for key in value) and _KIND not in value:
            return {key: _plain(name, one) for key, one in value.items()}
        pairs = [[_plain(name, key), _plain(name, one)] for key, one in value.items()]
        return {_KIND: "map", _ITEMS: pairs}
    if type(value).__module__ == "numpy" and hasattr(value, "item") and not value.shape:
        return _plain(name, value.item())
    raise DtypeError(
        f"StorageWriter: {name!r} has a {type(value).__name__}, which is neither a tensor nor in "
        "JSON: give numbers, texts, None, lists, tuples and maps, or make a tensor of it"
    )


def _value(said: Any) -> Any:
    if isinstance(said, list):
        return [_value(one) for one in said]
    if isinstance(said, dict):
        if said.get(_KIND) == "tuple":
            return tuple(_value(one) for one in said[_ITEMS])
        if said.get(_KIND) == "map":
            return {_value(key): _value(one) for key, one in said[_ITEMS]}
        return {key: _value(one) for key, one in said.items()}
    return said
