"""What a rank does instead of collectives that it will not start."""

from __future__ import annotations

import contextlib

from .. import _native
from .._ops import Op
from ..errors import Error
from ..group import ProcessGroup

__all__ = ["refuse"]


def refuse(code: Op, group: ProcessGroup, times: int = 1, reason: str = "backward failed") -> None:
    """Take the places of collectives in the group's order: the others raise ``RefusedError``."""
    core = _native.core()
    with contextlib.suppress(Error):  # a group that is broken or gone has nobody to tell
        for _ in range(times):
            core.refuse(code, group._id, reason)
