"""How files are opened and made: by calls of the system, or through MPI-IO."""

from __future__ import annotations

import os
from contextlib import ExitStack

from . import by_mpi
from .posix import PosixFile

__all__ = ["created", "opened"]


def opened(
    path: str, flags: int, stack: ExitStack, *, made: bool = False, ahead: bool = False
) -> PosixFile:
    """Open a file until the stack is closed.

    Args:
        path: of the file.
        flags: of ``os.open``.
        stack: closes it.
        made: whether another rank has just made it.
        ahead: see :class:`PosixFile`.

    Raises:
        ArgumentError: a setting is wrong.
        FileNotFoundError: this rank does not see it.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError as error:
        if not made:
            raise
        raise FileNotFoundError(
            error.errno,
            "this rank does not see the file that rank 0 has made; give a path on a file system "
            "that all hosts share",
            path,
        ) from None
    file = PosixFile(descriptor, path, ahead)
    stack.callback(file.close)
    writes = bool(flags & os.O_RDWR)
    if through := by_mpi.tried(path, lambda: by_mpi.MPIFile(descriptor, path, writes)):
        file = through
        stack.callback(file.close)
    return file


def created(path: str, flags: int = os.O_EXCL) -> int:
    """Make a file on the rank that leads, with the layout that hints to MPI say.

    Args:
        path: of the file.
        flags: ``os.O_EXCL``: it must not exist; ``os.O_TRUNC``: it may.

    Returns:
        A descriptor that reads and writes.

    Raises:
        ArgumentError: a setting is wrong.
        OSError: it cannot be made.
    """
    access = os.O_RDWR | os.O_CLOEXEC
    if by_mpi.hints() and not os.path.lexists(path):
        folder = os.path.dirname(path) or "."
        if by_mpi.tried(folder, lambda: by_mpi.made(path)):
            return os.open(path, access)
    return os.open(path, access | os.O_CREAT | flags, 0o666)
