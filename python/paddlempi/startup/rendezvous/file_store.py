"""A store in one file, for the processes of one host (``file://``).

The file begins with eight bytes that say what it is, and its generation. Behind them are records: a
checksum, two lengths, a key and its value. The last record of a key counts. A writer holds the lock
(``flock``) of the file. It first cuts off what follows the last whole record, because a process may
have been killed in the middle of one, and appends its own. A reader takes no lock: it goes on from
the last whole record that it knows.

A file in which most records count no more is written anew, by a writer: ranks may meet in it
thousands of times. Its generation says meanwhile that it is changing, and is another one then. A
reader believes what it has read if the generation is still the same.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from ...errors import ArgumentError
from .stores import Store

__all__ = ["FileStore"]

_MAGIC = b"pmpimeet"
_CHANGING = bytes(8)
"""The generation of a file that somebody writes anew, or began to."""

_BEGIN = len(_MAGIC) + len(_CHANGING)
_HEAD = struct.Struct("<IHI")  # checksum of the rest, length of the key, length of the value
_UNKNOWN = 65534  # the kernel's overflowuid
_LARGEST = 256 << 20
"""The most bytes that a file may have. A meeting needs some hundred for each rank."""

_LONG = 64 << 10
"""The bytes from which on a file is written anew, if a quarter or less of them counts."""


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
        self._generation = _CHANGING  # of what this process has read
        self._end = _BEGIN  # of the last whole record that it has read
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
            whole = self._read()
            if not whole or (self._end > _LONG and self._end > 4 * len(self._counting())):
                self._write_anew()
            os.ftruncate(self._file, self._end)
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _counting(self) -> bytes:
        """Return the records that count."""
        return b"".join(_record(key, value) for key, value in self._values.items() if value)

    def _write_anew(self) -> None:
        """Write the file with the records that count. The caller holds the lock."""
        records = self._counting()
        os.pwrite(self._file, _MAGIC + _CHANGING, 0)
        os.ftruncate(self._file, _BEGIN)
        self._write(records, _BEGIN)
        self._end = _BEGIN + len(records)
        self._values = {key: value for key, value in self._values.items() if value}
        self._generation = secrets.token_bytes(len(_CHANGING))
        os.pwrite(self._file, _MAGIC + self._generation, 0)

    def _write(self, data: bytes, at: int) -> None:
        written = os.pwrite(self._file, data, at)
        if written < len(data):
            raise OSError(f"{self._path}: {written} of {len(data)} bytes written: the disk full?")

    def _append(self, key: str, value: bytes) -> None:
        record = _record(key, value)
        if self._end + len(record) > _LARGEST:
            raise ArgumentError(
                f"init_process_group: the file {self._path} in which the ranks meet has grown to "
                f"{self._end} bytes: remove it, and start all ranks again"
            )
        self._write(record, self._end)
        self._values[key] = value
        self._end += len(record)

    def _read(self) -> bool:
        """Take up the records that have come. Return False if the file is not whole."""
        begin = os.pread(self._file, _BEGIN, 0)
        if not _MAGIC.startswith(begin[: len(_MAGIC)]):
            raise ArgumentError(
                f"init_process_group: the file {self._path} holds something else than a "
                "meeting of ranks: name a new file, or remove this one"
            )
        generation = begin[len(_MAGIC) :]
        if len(begin) < _BEGIN or generation == _CHANGING:
            return False  # somebody writes it, or was killed then
        same = generation == self._generation
        end = self._end if same else _BEGIN
        data, at = os.pread(self._file, max(0, os.fstat(self._file).st_size - end), end), 0
        if os.pread(self._file, _BEGIN, 0) != begin:
            return False
        if not same:
            self._values, self._generation, self._end = {}, generation, _BEGIN
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
        return True


def _record(key: str, value: bytes) -> bytes:
    name = key.encode()
    rest = _HEAD.pack(0, len(name), len(value))[4:] + name + value
    return struct.pack("<I", zlib.crc32(rest)) + rest


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
