"""What parts tell each other after a reform. All of it is collective over the world."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import group
from ..errors import ArgumentError
from ..objects import all_gather_object, broadcast_object_list

__all__ = ["check_same", "told"]


def told(value: Any, root: int) -> Any:
    """Return the root's value, a small object, on all ranks."""
    box = [value]
    broadcast_object_list(box, root)
    return box[0]


def check_same(what: str, mine: Mapping[str, Any], root: int) -> None:
    """Compare what this rank has with what the root has, by name.

    Raises:
        ArgumentError: some rank's differs; on all ranks.
    """
    roots = told(dict(mine), root)
    wrong = sorted(name for name in {*mine, *roots} if mine.get(name) != roots.get(name))
    everyones: list[Any] = [None] * group.get_world_size()
    all_gather_object(everyones, wrong[:3])
    for rank, names in enumerate(everyones):
        if names:
            raise ArgumentError(
                f"elastic: the {what} of rank {rank} differs from that of rank {root} in "
                f"{', '.join(names)}: every process must make the same, a replacement too"
            )
