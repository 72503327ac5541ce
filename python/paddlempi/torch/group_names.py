"""The names of groups: those that only members make, and those that kernels in C know.

The kernels of :mod:`.registered` in C (capi/torch_ops.c) have a table. A name is in it only while a
call needs nothing of the group but its number. A name that is not there is no error: the kernel in
Python looks at the group, and enters the name if it may.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["enter", "forget", "hashed", "new", "serve"]

_made: dict[tuple[str, tuple[int, ...]], int] = {}  # how many groups of a kind had these members


def new(kind: str, ranks: Sequence[int]) -> str:
    """Return a name that no group of this process has had, for one that only its members make.

    torch would count the groups that this rank has made, which may differ between members. Here it
    is the number of groups of the kind that exactly these members have made, so that all of them
    get the same name.
    """
    count = _made[kind, tuple(ranks)] = _made.get((kind, tuple(ranks)), 0) + 1
    return hashed(kind, ranks, count)


def hashed(*parts: Any) -> str:
    """Return a name of parts that all members have."""
    text = "|".join(map(str, parts))
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


_core: ModuleType | None = None  # the core, once it has registered the kernels in C


def serve(core: ModuleType) -> None:
    """Begin: ``core`` has registered the kernels."""
    global _core
    _core = core


def enter(name: str, number: int, size: int) -> None:
    """Let calls of a group take the short way."""
    if _core is not None:
        _core.torch_group(name, number, size)


def forget(name: str) -> None:
    """Have the next call ask for the group: it is new, it ends, or a call needs more than usual."""
    if _core is not None:
        _core.torch_group(name)
