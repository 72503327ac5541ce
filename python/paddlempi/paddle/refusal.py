"""How a rank refuses collectives that it will not start."""

from __future__ import annotations

import contextlib

from .. import _native
from .._ops import Op
from ..errors import Error
from ..group import ProcessGroup

__all__ = ["refuse"]


def refuse(code: Op, group: ProcessGroup, times: int = 1, reason: str = "backward failed") -> None:
    """Refuse the next ``times`` collectives of the group; the other members raise RefusedError."""
    core = _native.core()
    with contextlib.suppress(Error):  # no member waits in a group that is broken or destroyed
        for _ in range(times):
            core.refuse(code, group._id, reason)
