"""Marks: how the ranks of a job tell ``python -m paddlempi run`` how they began and ended.

``run`` names a folder in ``PADDLEMPI_RUN_DIR``. Every rank has a file there, and appends a line to
it when something happens:

* ``comes PID HOST``: the process is in ``init_process_group``;
* ``began RANK SIZE PID HOST``: ``init_process_group`` has returned;
* ``watches SIGNAL``: the rank asks for preemption, by this signal;
* ``asked``: the rank knows that the job was asked to end: the signal has come to it or to another;
* ``raised KIND TEXT``: an exception is about to end the process, or the ``sys.exit`` that does was
  called where it was handled. KIND says what the exception is, or comes from: ``death`` a
  ``PeerDiedError``, ``left`` a ``PeerLeftError``, ``error`` another error that a death may cause,
  ``program`` none of these;
* ``dead RANKS``: the rank leaves its world, or fails, and knows that these have died;
* ``left``: ``destroy_process_group`` has ended the world, or ``init_process_group`` has failed;
* ``exit STATUS``: the process ends in order. The core writes this line, because only its exit
  handler knows the status for certain.

A rank that is killed, crashes, or calls ``os._exit`` inside a world leaves neither of the last two
lines. Without the variable nothing is written. ``cli/marks.py`` reads the files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from .errors import (
    Error,
    GroupBrokenError,
    MPIError,
    PeerDiedError,
    PeerLeftError,
    RefusedError,
    TimeoutError,
)

__all__ = ["FOLDER", "asked", "began", "comes", "dead", "file", "left", "raised", "watches"]

FOLDER = "PADDLEMPI_RUN_DIR"
"""The environment variable that names the folder."""

_LONGEST = 400
"""The most characters of an exception's text in a mark."""


def file() -> str | None:
    """The path of this process's file; None if no ``run`` wants it."""
    folder = os.environ.get(FOLDER)
    return os.path.join(folder, f"{os.uname().nodename}-{os.getpid()}") if folder else None


def comes() -> None:
    """Tell that this process waits for the others in ``init_process_group``."""
    _append(f"comes {os.getpid()} {os.uname().nodename}")


def began(rank: int, size: int) -> None:
    """Tell that this process is a rank of a world."""
    _append(f"began {rank} {size} {os.getpid()} {os.uname().nodename}")


def left() -> None:
    """Tell that this process has left its world in order."""
    _append("left")


def watches(signal: int) -> None:
    """Tell that this rank asks for preemption by ``signal``."""
    _append(f"watches {signal}")


def asked() -> None:
    """Tell that this rank knows that the job was asked to end."""
    _append("asked")


def dead(ranks: Sequence[int]) -> None:
    """Tell that this rank leaves its world, or fails, and knows that ``ranks`` have died."""
    if ranks:
        _append(f"dead {' '.join(map(str, ranks))}")


def raised(error: BaseException) -> None:
    """Tell that ``error`` is about to end this process."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0][:_LONGEST]
    _append(f"raised {_kind(error)} {text}")


_KINDS = (
    ("death", (PeerDiedError,)),
    ("left", (PeerLeftError,)),
    # What a death may also look like to a rank.
    ("error", (TimeoutError, RefusedError, GroupBrokenError, MPIError)),
)


def _kind(error: BaseException) -> str:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and all(link is not one for one in chain):  # a program may make a cycle
        chain.append(link)
        link = link.__cause__ or link.__context__
    for kind, wanted in _KINDS:
        if any(isinstance(one, wanted) or _tells(one, wanted) for one in chain):
            return kind
    return "program"


def _tells(error: BaseException, wanted: tuple[type[Error], ...]) -> bool:
    """Whether C++ of a framework has made an error of ours a RuntimeError with its name in it."""
    if not isinstance(error, RuntimeError) or isinstance(error, Error):
        return False
    text = str(error)
    return any(f"{one.__name__}: " in text for one in wanted)


def _append(line: str) -> None:
    path = file()
    # A full disk or a folder that this host does not have must not disturb the rank.
    with suppress(OSError):
        if path is not None:
            with open(path, "a", encoding="utf-8", errors="replace") as stream:
                stream.write(f"{line}\n")
