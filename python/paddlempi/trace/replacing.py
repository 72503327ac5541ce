"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["replacing"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path beside ``path`` to write to; the file there takes its place in one step.

    If the block ends with an error, an older file of that name is still there, and no other one.
    """
    target = Path(path)
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield staged
        staged.replace(target)
    finally:
        staged.unlink(missing_ok=True)
