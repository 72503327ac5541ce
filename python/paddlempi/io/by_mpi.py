"""Files through MPI-IO: for file systems that want it, or if ``PADDLEMPI_IO=mpi`` says so.

Each rank opens a file for itself and reads and writes at offsets, so the bytes are those that the
calls of the system write.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from .. import _native
from ..errors import ArgumentError, Error, MPIError, UnsupportedError
from ..group import is_initialized
from .posix import PosixFile, system

__all__ = ["MPIFile", "hints", "made", "tried", "wanted"]

_LUSTRE = 0x0BD00BD0  # LL_SUPER_MAGIC
_CODES = {
    20: errno.EACCES,  # MPI_ERR_ACCESS of the MPI-5 ABI, and so on
    23: errno.EINVAL,  # BAD_FILE
    28: errno.EEXIST,  # FILE_EXISTS
    41: errno.ENOSPC,  # NO_SPACE
    42: errno.ENOENT,  # NO_SUCH_FILE
    44: errno.EDQUOT,  # QUOTA
    45: errno.EROFS,  # READ_ONLY
}
"""The number of the system's error for a class of MPI's; EIO for others."""


def wanted(path: str) -> bool | None:
    """Whether a file, or the files of a folder, are for MPI-IO. None: if it has it.

    Raises:
        ArgumentError: ``PADDLEMPI_IO`` is none of its values.
    """
    chosen = os.environ.get("PADDLEMPI_IO", "")
    if chosen not in ("", "posix", "mpi"):
        raise ArgumentError(f"PADDLEMPI_IO={chosen!r} is neither posix nor mpi")
    if chosen == "posix" or not is_initialized():
        return False
    return True if chosen == "mpi" else None if _kind(path) == _LUSTRE else False


def _kind(path: str) -> int:
    """Return the number by which Linux knows the kind of a file system; 0 if it is not known."""
    room = (ctypes.c_long * 32)()  # struct statfs, whose first word it is
    found = system().statfs(os.fsencode(path), room)
    return 0 if found else int(room[0]) & 0xFFFFFFFF


def hints() -> list[tuple[str, str]]:
    """Return the hints to MPI for files.

    Raises:
        ArgumentError: ``PADDLEMPI_IO_HINTS`` has something else.
    """
    text = os.environ.get("PADDLEMPI_IO_HINTS", "")
    found = [tuple(part.strip() for part in one.split("=", 1)) for one in text.split(",") if one]
    if any(len(one) != 2 or not all(one) for one in found):
        raise ArgumentError(
            f"PADDLEMPI_IO_HINTS={text!r} is no list as striping_factor=8,striping_unit=4194304"
        )
    return [(key, value) for key, value in found]


def tried(path: str, by_mpi: Callable[[], Any]) -> Any:
    """Return what a call gives if the file, or folder, is for MPI-IO; else None."""
    chosen = wanted(path)
    if chosen is False:
        return None
    try:
        return by_mpi()
    except (UnsupportedError, OSError):
        if chosen:
            raise
        return None  # the calls of the system serve every file system, and tell what is wrong


def made(path: str) -> bool:
    """Make a file, which must not be there, with the layout on the disks that hints say.

    Returns:
        True.

    Raises:
        OSError: it cannot be made.
    """
    _closed(_open(path, "x"))
    return True


class MPIFile(PosixFile):
    """An open file whose bytes go through MPI-IO.

    Args:
        descriptor: of the file, for all else: how long it is, room on the disk. The caller
            closes it.
        path: of the file.
        writes: whether it is also written.

    Raises:
        UnsupportedError: this MPI has no MPI-IO.
        OSError: it cannot be opened.
    """

    __slots__ = ("_handle",)

    def __init__(self, descriptor: int, path: str, writes: bool) -> None:
        super().__init__(descriptor, path)
        self._handle = _open(path, "r+" if writes else "r")

    def _write(self, view: memoryview, at: int) -> int:
        done = self._moved("file_write", view, at)
        if not done:
            raise OSError(errno.EIO, "MPI has written nothing")
        return done

    def _read(self, view: memoryview, at: int) -> int:
        return self._moved("file_read", view, at)

    def _moved(self, method: str, view: memoryview, at: int) -> int:
        import numpy as np  # which servers without MPI-IO do without

        memory = np.frombuffer(view, "u1")
        request = {"offset": at, "address": memory.ctypes.data, "bytes": len(view)}
        try:
            return int(_called(method, handle=self._handle, **request)["bytes"])
        except OSError as error:
            # Open MPI has one class for all errors of a disk.
            if error.errno == errno.EIO and not os.fstatvfs(self.descriptor).f_bavail:
                error.errno = errno.ENOSPC
            raise

    def _sync(self) -> None:
        _called("file_sync", handle=self._handle)

    def close(self) -> None:
        """Close the file, but not its descriptor."""
        self.descriptor = -1
        _closed(self._handle)


def _open(path: str, mode: str) -> int:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UnsupportedError(f"MPI-IO is not given a path that is no UTF-8: {path!r}") from None
    found = _called("file_open", path=os.path.abspath(path), mode=mode, hints=hints())
    return int(found["handle"])


def _closed(handle: int) -> None:
    with suppress(Error):  # MPI has ended
        _native.control("file_close", handle=handle)


def _called(method: str, **request: Any) -> Any:
    try:
        return _native.control(method, **request)
    except MPIError as error:
        code = _CODES.get(error.mpi_class, errno.EIO)
        raise OSError(code, str(error)) from None
