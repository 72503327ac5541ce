"""``save_state`` and ``load_state``: nested states with tensors and other values, in one file.

The tensors are those of a safetensors file, by the keys that lead to them, joined by dots. All else
is a tree in JSON, in the metadata, in which each tensor stands by its name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, DtypeError
from ..group import ProcessGroup
from ..memory import framework_of
from ..together import together
from .reader import load_file, open_file
from .saving import save_file
from .shards import Shard
from .values import Path, decoded, encoded

__all__ = ["load_state", "save_state"]

_TREE = "paddlempi.tree"


def save_state(
    state: Mapping[Any, Any],
    path: str | os.PathLike[str],
    max_shard_size: int | str | None = None,
    metadata: Mapping[str, str] | None = None,
    *,
    group: ProcessGroup | None = None,
    progress: bool = False,
) -> None:
    """Write a nested state, such as ``{"model": ..., "optimizer": ..., "step": 3}``, by all ranks.

    Collective, as :func:`save_file`, which has the other arguments and errors. A state that has
    tensors only, and is not nested, becomes the file that :func:`save_file` writes.

    Args:
        state: maps, lists and tuples of tensors, numbers, texts and None. A tensor is whatever
            :func:`save_file` takes, of NumPy, torch or Paddle. What is no tensor is the same on all
            ranks.

    Raises:
        ArgumentError: two tensors would have one name.
        DtypeError: something is neither a tensor nor in JSON. The text names it.
    """
    what = "save_state"
    with together(what, group):
        tensors, tree = _flat(what, state)
        said = None if metadata is None else dict(metadata)
        if tree is not None:
            said = {**(said or {}), _TREE: json.dumps(tree)}
    save_file(tensors, path, max_shard_size, said, group=group, progress=progress)


def load_state(
    path: str | os.PathLike[str],
    like: Mapping[Any, Any] | None = None,
    *,
    framework: str = "numpy",
    group: ProcessGroup | None = None,
    progress: bool = False,
) -> Any:
    """Load a state that :func:`save_state` has written. Collective, as :func:`load_file`.

    Args:
        path: as for :func:`load_file`.
        like: a state with tensors, which are written to and stand in the result. Tensors of the
            file that it does not have are made, whole, on every rank. A file that
            :func:`save_state` has not written may lack nothing of it, and what is no tensor stays.
        framework: whose tensors are made.

    Returns:
        The state, as it was saved. A file without a tree: the tensors by name.

    Raises:
        ArgumentError: as for :func:`load_file`; or the tree is damaged.
    """
    what = "load_state"
    with together(what, group), open_file(path, framework) as file:
        tree = (file.metadata() or {}).get(_TREE)
        tensors = {} if like is None else _flat(what, like)[0]
        made: dict[str, Any] = {}
        if tree is not None or like is None:
            made = {n: file.new(n, file.entry(n).shape) for n in file if n not in tensors}
    tensors |= made
    load_file(path, tensors, framework=framework, group=group, progress=progress)
    if tree is None:
        return tensors if like is None else like
    with together(what, group):
        return decoded(tree, tensors.__getitem__)


def _flat(what: str, state: Any) -> tuple[dict[str, Any], Any]:
    """Return the tensors of a state by name, and its tree; None if it has nothing but tensors."""
    if not isinstance(state, Mapping):
        raise DtypeError(f"{what}: the state is a {type(state).__name__}, and no map")
    tensors: dict[str, Any] = {}

    def name_of(path: Path, value: Any) -> str | None:
        if not (isinstance(value, (Shard, np.generic)) or framework_of(value, "")):
            return None
        name = ".".join(map(str, path))
        if name in tensors:
            raise ArgumentError(f"{what}: two tensors would have the name {name!r}")
        tensors[name] = value
        return name

    tree = encoded(what, dict(state), (), name_of)
    return tensors, None if list(tensors) == list(state) else tree
