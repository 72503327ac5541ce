"""The ways that collectives of one node take, by where their tensors lie.

A short input lies in the slots of the arrival ("inline"), tensors in the heaps of all ranks are
worked on in place ("mapped"), and others go through blocks ("bounce"),
or by MPI if they lie here on one rank and there on another.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from paddlempi import _native
from ranks_tools import over_nodes
from tensors import numpy_dtype

INLINE = 4096  # bytes of one rank's input
SLOTS = 64 << 10  # bytes of all ranks' inputs

FEW = [*range(18), 31, 32, 33, 63, 64, 65, 4095, 4096, 4097]
"""Numbers of elements, small ones."""


def took(dist: ModuleType, group: Any = None) -> str:
    """Return the algorithm of the group's last collective."""
    name = group._id if group is not None else 0
    return str(_native.control("group_info", group=name)["algorithm"])


class Place:
    """Makes tensors. What they hold matters not; where they lie decides the way."""

    def __init__(self, dist: ModuleType, ordinary: Callable[[str, int], bool]) -> None:
        self.dist = dist
        self.ordinary = ordinary

    def __call__(self, side: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return a copy of values for the side "send" or "recv"."""
        if self.ordinary(side, self.dist.get_rank()):
            return values.copy()
        tensor = self.dist.empty(values.shape, values.dtype)
        tensor[...] = values
        return tensor  # type: ignore[no-any-return]


def garbage(dtype: str, elements: int) -> np.ndarray[Any, Any]:
    """What a result holds before: bits that no collective of this file gives."""
    return np.full(elements * numpy_dtype(dtype).itemsize, 0xA5, np.uint8).view(numpy_dtype(dtype))


def check_way(dist: ModuleType, size: int, given: int, mapped: bool, group: Any = None) -> None:
    """Check the way of a call in which a rank that gives anything gives so many bytes."""
    way = took(dist, group)
    if size == 1:
        assert way == "single"
    elif over_nodes():
        assert way not in ("mapped", "")
    elif given <= min(INLINE, SLOTS // size):
        assert way == "inline"
    elif mapped:
        assert way == "mapped"
    else:
        assert way not in ("inline", "mapped", "")
