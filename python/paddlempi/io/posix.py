"""Files that one rank reads and writes at offsets, by calls of the system."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from typing import Any

from ..together import rank_in, world_rank

__all__ = ["PosixFile", "system"]

_BATCH = 4 << 20
"""After so many bytes the disk is told to begin. Less makes the requests to it short."""
_UNDER_WAY = 4
"""So many batches may be under way to the disk."""
_BEGIN, _FINISH = 2, 7  # SYNC_FILE_RANGE_* of linux/fs.h: WRITE; with WAIT_BEFORE and WAIT_AFTER
_NOT_HERE = {errno.EINVAL, errno.ENOSYS, errno.ESPIPE, errno.EOPNOTSUPP}


class PosixFile:
    """An open file. An error has the path, the rank and the offset.

    Args:
        descriptor: of the file.
        path: of the file.
        ahead: whether what is written will be flushed. The disk then begins while more is written,
            which halves the time of a save (measured). No more than some batches are under way, so
            that writing is progress of the disk, and the flush at the end is short.
    """

    __slots__ = ("_ahead", "_begin", "_bytes", "_end", "_under_way", "descriptor", "path")

    def __init__(self, descriptor: int, path: str, ahead: bool = False) -> None:
        self.descriptor, self.path, self._ahead = descriptor, path, ahead
        self._begin = self._end = self._bytes = 0
        self._under_way: list[tuple[int, int]] = []

    def put(self, data: Any, at: int) -> None:
        """Write bytes at an offset.

        Raises:
            OSError: they cannot be written.
        """
        view, begin = memoryview(data).cast("B"), at
        while len(view):
            try:
                written = self._write(view, at)
            except OSError as error:
                raise self._told(error, f"write at byte {at}") from error
            view = view[written:]
            at += written
        if self._ahead:
            self._start(begin, at)

    def _start(self, begin: int, end: int) -> None:
        """Let the disk begin with what was written, when it has become a batch."""
        self._begin = min(self._begin, begin) if self._bytes else begin
        self._end = max(self._end, end) if self._bytes else end
        self._bytes += end - begin
        if self._bytes < _BATCH:
            return
        # It may fail: the flush tells what is wrong with the disk.
        system().sync_file_range(self.descriptor, self._begin, self._end - self._begin, _BEGIN)
        self._under_way.append((self._begin, self._end - self._begin))
        self._bytes = 0
        if len(self._under_way) > _UNDER_WAY:
            begin, length = self._under_way.pop(0)
            if system().sync_file_range(self.descriptor, begin, length, _FINISH):
                code = ctypes.get_errno()
                if code not in _NOT_HERE:  # the flush would not tell it again
                    raise self._told(OSError(code, os.strerror(code)), f"write at byte {begin}")

    def get(self, out: Any, at: int) -> None:
        """Read bytes at an offset, as many as ``out`` has.

        Raises:
            OSError: they cannot be read, or the file ends before.
        """
        view, end = memoryview(out).cast("B"), self._get(out, at)
        if end < len(view):
            raise OSError(
                errno.EIO, f"the file ends at byte {at + end}: it has become shorter", self.path
            )

    def get_old(self, out: Any, at: int) -> None:
        """Read what the file has; zeros behind its end."""
        view, end = memoryview(out).cast("B"), self._get(out, at)
        view[end:] = bytes(len(view) - end)

    def _get(self, out: Any, at: int) -> int:
        """Read bytes. Return how many there are before the file ends."""
        view, done = memoryview(out).cast("B"), 0
        while done < len(view):
            try:
                read = self._read(view[done:], at + done)
            except OSError as error:
                raise self._told(error, f"read at byte {at + done}") from error
            if not read:
                break
            done += read
        return done

    def flush(self) -> None:
        """Return when what this rank has written is on the disk."""
        self._bytes = 0
        try:
            self._sync()
        except OSError as error:
            raise self._told(error, "flush it") from error

    def _write(self, view: memoryview, at: int) -> int:
        """Write the first bytes of ``view``. Return how many."""
        return os.pwrite(self.descriptor, view, at)

    def _read(self, view: memoryview, at: int) -> int:
        """Read into the first bytes of ``view``. Return how many; 0 at the end of the file."""
        return os.preadv(self.descriptor, [view], at)

    def _sync(self) -> None:
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the file."""
        descriptor, self.descriptor = self.descriptor, -1
        os.close(descriptor)

    def _told(self, error: OSError, what: str) -> OSError:
        rank = world_rank(rank_in())
        return OSError(error.errno, f"{error.strerror}: rank {rank} could not {what}", self.path)


@functools.cache
def system() -> Any:
    """Return the C library, with the types of sync_file_range."""
    found = ctypes.CDLL(None, use_errno=True)
    long = ctypes.c_int64
    found.sync_file_range.argtypes = (ctypes.c_int, long, long, ctypes.c_uint)
    return found
