"""How files come to be there whole: written beside under other names, and renamed at the end.

One file, ``model.safetensors``, is written as ``model.safetensors.TAG.partial`` and renamed. A set
is ``model-TAG-00001-of-00003.safetensors`` and so on, and ``model.safetensors.index.json``, which
is renamed last: that is the commit. Only then are the files of the old index removed. TAG is 16
random hexadecimal digits.

What a killed job leaves has a tag that nothing names. The next save to the same path removes it. A
save holds a lock (flock) on its partial file as long as it runs, so that another one leaves its
files alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

from ..errors import ArgumentError
from ..together import flush
from . import layout
from .header import Header, length, parse
from .opened import created

__all__ = ["STATE", "Names", "Save", "read_header"]

_MODEL = "model.safetensors"
_INDEX = ".index.json"
STATE = "paddlempi.state"
"""In the metadata of what is committed: the name of a second file, which belongs to it."""


class Names:
    """The names of what is saved to a path.

    Args:
        path: of one file, also for a set; of an index; or of a folder, for ``model.safetensors``
            in it.
        folder: whether a path that does not end with ``.safetensors`` is a folder, which need not
            exist.
        plain: whether the path is that of one file, whatever it looks like.

    Attributes:
        one: the path of one file.
        index: that of the index of a set.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, folder: bool = False, plain: bool = False
    ) -> None:
        given = Path(os.fsdecode(path))
        self.one = given if plain else _meant(given, folder)
        self.index = self.one.with_name(self.one.name + _INDEX)

    def beside(self, label: str, tag: str) -> str:
        """Return the name of a file that the commit belongs to: it has the tag in its name."""
        return f"{self.one.stem}-{tag}-{label}{self.one.suffix}"

    def checked(self, name: str) -> str:
        """Return a name that a file says to belong to it.

        Raises:
            ArgumentError: it is none that a save gives.
        """
        if self.tag_of(name) is None:
            raise ArgumentError(f"{self.one} names a file {name!r:.80}, which is none of a save")
        return name

    def tag_of(self, name: str) -> str | None:
        """Return the tag of a name that a save has made; None for all others."""
        stem, suffix = re.escape(self.one.stem), re.escape(self.one.suffix)
        partial = rf"{re.escape(self.one.name)}(?:{re.escape(_INDEX)})?\.([0-9a-f]{{16}})\.partial"
        beside = rf"{stem}-([0-9a-f]{{16}})-(?:\d{{5}}-of-\d{{5}}|[a-z]+){suffix}"
        # Open MPI's MPI-IO makes such a file while it opens one.
        found = re.fullmatch(rf"(?:{partial}|{beside})(?:\.locktest\.\d+)?", name)
        return None if found is None else found[1] or found[2]


def _meant(path: Path, folder: bool) -> Path:
    if folder and path.suffix != ".safetensors":
        return path / _MODEL
    if path.name.endswith(_INDEX):
        return path.with_name(path.name.removesuffix(_INDEX))
    return path / _MODEL if path.is_dir() else path


class Save:
    """The files of one save, from the first one to the commit. One rank has it, for all.

    Args:
        what: the function, for errors.
        names: where.
        is_set: whether it is a set with an index, or one file. None: one file that is no form of
            safetensors.

    Attributes:
        tag: the tag of its names.
        partial: what :meth:`commit` renames.

    Raises:
        ArgumentError: the folder holds the other form.
        OSError: a file cannot be made.
    """

    def __init__(self, what: str, names: Names, is_set: bool | None) -> None:
        self._names = names
        self._final = names.index if is_set else names.one
        other = names.one if is_set else names.index
        if is_set is not None and other.exists():
            forms = ("a set of files", "one file") if is_set else ("one file", "a set of files")
            raise ArgumentError(
                f"{what}: {other} is there, of a checkpoint that is {forms[1]}; this one is "
                f"{forms[0]}, and readers would find both: remove it, or give another path"
            )
        if not self._final.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such folder", self._final.parent)
        if self._final.is_dir():
            raise ArgumentError(f"{what}: {self._final} is a folder; give the path of a file")
        self.tag = secrets.token_hex(8)
        self.partial = self._final.with_name(f"{self._final.name}.{self.tag}.partial")
        self._made: list[Path] = []
        self._lock = self._make(self.partial)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            self._remove_stale()
        except BaseException:
            self.abandon()
            raise

    def beside(self, label: str) -> Path:
        """Return the path of a further file, which the commit makes valid."""
        return self._final.with_name(self._names.beside(label, self.tag))

    def begin(self, path: Path, head: bytes, size: int) -> None:
        """Make a file of a size with its first bytes."""
        descriptor = self._lock if path == self.partial else self._make(path)
        try:
            os.ftruncate(descriptor, size)
            written = 0
            while written < len(head):
                written += os.pwrite(descriptor, head[written:], written)
        finally:
            if descriptor != self._lock:
                os.close(descriptor)

    def commit(self) -> None:
        """Give the partial file its name, and remove what it has replaced.

        What other ranks have written is on the disk.
        """
        os.fsync(self._lock)
        if len(self._made) > 1:
            flush(self._final.parent)  # the names of the files beside
        self.partial.replace(self._final)
        self._made.clear()
        flush(self._final.parent)
        with suppress(OSError):  # the next save tries again
            self._remove_stale()
        self._close()

    def abandon(self) -> None:
        """Remove the files, unless they were committed."""
        for path in self._made:
            with suppress(OSError):
                path.unlink()
        self._made.clear()
        self._close()

    def _make(self, path: Path) -> int:
        descriptor = created(str(path))
        self._made.append(path)
        return descriptor

    def _close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _remove_stale(self) -> None:
        """Remove files with tags that neither a save under way has nor what is committed."""
        folder = self._final.parent
        kept = {path.name for path in self._made} | self._committed()
        tagged = {
            name: tag
            for name in os.listdir(folder)
            for tag in [self._names.tag_of(name)]
            if tag is not None
        }
        alive = {tag for name, tag in tagged.items() if self._is_alive(folder / name)}
        for name, tag in tagged.items():
            if name not in kept and tag not in alive:
                with suppress(FileNotFoundError):
                    (folder / name).unlink()

    def _is_alive(self, path: Path) -> bool:
        """Whether another save holds the lock of a partial file."""
        if not path.name.endswith(".partial") or path in self._made:
            return False
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False

    def _committed(self) -> set[str]:
        """Return the names of the files that belong to what is committed.

        Raises:
            ArgumentError: the index cannot be read: which files it needs is not known.
        """
        try:
            where, metadata = layout.parsed_index(self._names.index.read_bytes())
        except FileNotFoundError:
            where, metadata = {}, _metadata(self._names.one)
        return {*where.values(), str(metadata.get(STATE, ""))}


def _metadata(path: Path) -> dict[str, str]:
    """Return the metadata of one file; none if it is no safetensors file, or not there."""
    with suppress(OSError, ArgumentError), open(path, "rb") as file:
        return read_header(file.fileno()).metadata or {}
    return {}


def read_header(descriptor: int) -> Header:
    """Read the header of a file.

    Raises:
        ArgumentError: it is no safetensors file, or it is damaged.
        OSError: it cannot be read.
    """
    size = os.fstat(descriptor).st_size
    end = 8 + length(os.pread(descriptor, 8, 0), size)
    text = b""
    while 8 + len(text) < end:
        more = os.pread(descriptor, end - 8 - len(text), 8 + len(text))
        if not more:
            raise OSError(errno.EIO, "the file has become shorter")
        text += more
    return parse(text, size)
