"""Where tables of ways lie, which ``python -m paddlempi tune`` writes, and what init says of them.

Rank 0 reads the one that ``PADDLEMPI_TUNED`` names, or the first one for its world in the folders.
The core does that, and gives it to all ranks.
"""

from __future__ import annotations

import os

from .. import _log

__all__ = ["NONE", "VARIABLE", "cache", "folders", "warn"]

VARIABLE = "PADDLEMPI_TUNED"
NONE = "none"
"""The value of the variable for: no table."""


def folders() -> list[str]:
    """Return the folders in which a table is looked for, in this order."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return [os.path.join(package, "tuned"), cache()]


def cache() -> str:
    """Return the folder of the user's own tables. It need not exist."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # such a one does not count (XDG Base Directory Specification)
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "paddlempi", "tuned")


def warn(problem: str, *, stacklevel: int) -> None:
    """Warn that the table that was found is not taken.

    Args:
        problem: what the core says.
        stacklevel: the caller to name, as for ``warnings.warn`` in the function that calls this.
    """
    _log.warn(
        f"init_process_group: no table of ways is taken: {problem}",
        RuntimeWarning,
        stacklevel=stacklevel + 1,
    )
