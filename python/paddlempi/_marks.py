"""Marks: how the ranks of a job tell ``python -m paddlempi run`` how they began and ended.

``run`` names a folder in ``PADDLEMPI_RUN_DIR``. Every rank has a file there, and appends a line to
it when something happens:

* ``began RANK SIZE PID HOST``: ``init_process_group`` has returned;
* ``watches SIGNAL``: the rank asks for preemption, by this signal;
* ``raised KIND TEXT``: an exception is about to end the process. KIND is ``death`` if the exception
  is, or comes from, a ``PeerDiedError``, else ``program``;
* ``left``: ``destroy_process_group`` has ended the world;
* ``exit STATUS``: the process ends in order. The core writes this line, because only its exit
  handler knows the status for certain.

A rank that is killed, crashes, or calls ``os._exit`` inside a world leaves neither of the last two
lines. Without the variable nothing is written. ``cli/marks.py`` reads the files.
"""

from __future__ import annotations

import os
from contextlib import suppress

from .errors import PeerDiedError

__all__ = ["FOLDER", "began", "file", "left", "raised", "watches"]

FOLDER = "PADDLEMPI_RUN_DIR"
"""The environment variable that names the folder."""

_LONGEST = 400
"""The most characters of an exception's text in a mark."""


def file() -> str | None:
    """The path of this process's file; None if no ``run`` wants it."""
    folder = os.environ.get(FOLDER)
    return os.path.join(folder, f"{os.uname().nodename}-{os.getpid()}") if folder else None


def began(rank: int, size: int) -> None:
    """Tell that this process is a rank of a world."""
    _append(f"began {rank} {size} {os.getpid()} {os.uname().nodename}")


def left() -> None:
    """Tell that this process has left its world in order."""
    _append("left")


def watches(signal: int) -> None:
    """Tell that this rank asks for preemption by ``signal``."""
    _append(f"watches {signal}")


def raised(error: BaseException) -> None:
    """Tell that ``error`` is about to end this process."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0][:_LONGEST]
    _append(f"raised {'death' if _comes_from_death(error) else 'program'} {text}")


def _comes_from_death(error: BaseException | None) -> bool:
    seen: set[int] = set()  # a program may make a cycle
    while error is not None and id(error) not in seen:
        if isinstance(error, PeerDiedError):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def _append(line: str) -> None:
    path = file()
    # A full disk or a folder that this host does not have must not disturb the rank.
    with suppress(OSError):
        if path is not None:
            with open(path, "a", encoding="utf-8", errors="replace") as stream:
                stream.write(f"{line}\n")
