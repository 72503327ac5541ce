"""A store in one file, for the processes of one host (``file://``).

The file begins with eight bytes that say what it is. Behind them are records, which are only ever
appended: a checksum, two lengths, a key and its value. The last record of a key counts. A writer
holds the lock (``flock``) of the file. It first cuts off what follows the last whole record,
because a process may have been killed in the middle of one. A reader takes no lock: it goes on
from the last whole record that it knows.
"""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ..errors import ArgumentError
from .stores import Store

__all__ = ["FileStore"]

_MAGIC = b"pmpimeet"
_HEAD = struct.Struct("<IHI")  # checksum of the rest, length of the key, length of the value
_UNKNOWN = 65534  # the kernel's overflowuid
_LARGEST = 256 << 20
"""The most bytes that a file may have. A meeting needs some hundred for each rank."""


class FileStore(Store):
    """A store in the file ``path``, which is made if it is not there.

    Raises ArgumentError if the file cannot be opened, has something else in it, or can be written
    to by another user, who could be one of the ranks then.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._open()

    def _open(self) -> None:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ArgumentError(
                f"init_process_group: the file {self._path} in which the ranks meet cannot be "
                f"opened: {error.strerror}: name a file in a folder that all ranks of this host "
                "can write to"
            ) from None
        if wrong := _others(os.fstat(self._file)):
            os.close(self._file)
            raise ArgumentError(
                f"init_process_group: the file {self._path} in which the ranks meet {wrong}, and "
                "may come from another user: name a file that is not there, or is this user's alone"
            )
        self._values: dict[str, bytes] = {}
        self._end = 0  # of the last whole record that this process has read
        with self._locked():
            pass  # writes what the file begins with

    def get(self, keys: Sequence[str]) -> list[bytes]:
        self._read()
        return [self._values.get(key, b"") for key in keys]

    def set(self, key: str, value: bytes) -> None:
        with self._locked():
            self._append(key, value)

    def swap(self, key: str, old: bytes, new: bytes) -> bool:
        with self._locked():
            if self._values.get(key, b"") != old:
                return False
            self._append(key, new)
            return True

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.set(key, b"")

    def moved(self) -> bool:
        ours = os.fstat(self._file)
        try:
            there = os.stat(self._path)
        except OSError:
            return True
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)

    def reopen(self) -> None:
        os.close(self._file)
        self._open()

    def remove(self) -> None:
        with self._locked(), suppress(OSError):
            if not self.moved():
                os.unlink(self._path)

    def close(self) -> None:
        os.close(self._file)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the file, whose last record is whole and known then."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self._read()
            if self._end == 0:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, _MAGIC, 0)
                self._end = len(_MAGIC)
            os.ftruncate(self._file, self._end)
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _append(self, key: str, value: bytes) -> None:
        name = key.encode()
        rest = _HEAD.pack(0, len(name), len(value))[4:] + name + value
        record = struct.pack("<I", zlib.crc32(rest)) + rest
        if self._end + len(record) > _LARGEST:
            raise ArgumentError(
                f"init_process_group: the file {self._path} in which the ranks meet has grown to "
                f"{self._end} bytes: remove it, and start all ranks again"
            )
        written = os.pwrite(self._file, record, self._end)
        if written < len(record):
            raise OSError(f"{self._path}: {written} of {len(record)} bytes written: the disk full?")
        self._values[key] = value
        self._end += len(record)

    def _read(self) -> None:
        """Take up the records that have come."""
        size = os.fstat(self._file).st_size
        if size <= self._end:
            return
        if self._end == 0:
            begin = os.pread(self._file, len(_MAGIC), 0)
            if not _MAGIC.startswith(begin):
                raise ArgumentError(
                    f"init_process_group: the file {self._path} holds something else than a "
                    "meeting of ranks: name a new file, or remove this one"
                )
            if begin != _MAGIC:
                return  # its first process was killed, or has not come further
            self._end = len(_MAGIC)
        data, at = os.pread(self._file, size - self._end, self._end), 0
        while at + _HEAD.size <= len(data):
            checksum, key_length, value_length = _HEAD.unpack_from(data, at)
            begin_key = at + _HEAD.size
            end = begin_key + key_length + value_length
            if end > len(data) or zlib.crc32(data[at + 4 : end]) != checksum:
                break
            name = data[begin_key : begin_key + key_length].decode(errors="replace")
            self._values[name] = data[begin_key + key_length : end]
            at = end
        self._end += at


def _others(status: os.stat_result) -> str:
    """Return how users other than this one may write to a file; "" if they may not."""
    if not status.st_nlink:
        return ""  # it has no name: only who has inherited it can open it
    # A user that this machine does not know, as root's files are shown over NFS, can be this one.
    if status.st_uid not in (os.geteuid(), _UNKNOWN):
        return f"belongs to user {status.st_uid}"
    if status.st_mode & 0o022:
        return f"has mode {stat.S_IMODE(status.st_mode):04o}"
    return ""
