"""Colours on a terminal: what is good, what to look at, and what failed."""

from __future__ import annotations

import os
import sys

__all__ = ["paint"]

_CODES = {"ok": "32", "warn": "33", "fail": "1;31", "skip": "2"}


def paint(status: str, text: str) -> str:
    """Return ``text`` in the colour of a status, for stdout.

    It is plain where nobody would see a colour: in a file or a pipe, with ``NO_COLOR``
    (https://no-color.org), and on a terminal that has none. Open MPI's mpirun gives stdout of its
    ranks a terminal of its own, whatever its own stdout is, and stderr a pipe: so both must be one.

    Args:
        status: ok, warn, fail or skip, as the doctor has them.
        text: what is printed.
    """
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or not (sys.stdout.isatty() and sys.stderr.isatty()):
        return text
    return f"\033[{_CODES[status]}m{text}\033[0m"
