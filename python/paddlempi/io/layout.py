"""Where the tensors lie: in one file, or in a set of files with an index."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import ArgumentError, DtypeError
from .dtypes import FileDtype
from .header import LIMIT, Entry, build, nbytes

__all__ = [
    "FileLayout",
    "Whole",
    "bytes_of",
    "index",
    "laid_out",
    "numbered",
    "parsed_index",
    "split",
]


class Whole(NamedTuple):
    """A tensor as it is in a file."""

    dtype: FileDtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return nbytes(self.dtype, self.shape)


class FileLayout(NamedTuple):
    """What is where in one file.

    Attributes:
        begins: where in the file the bytes of each tensor begin.
        head: the first bytes of the file.
        size: its bytes.
    """

    begins: dict[str, int]
    head: bytes
    size: int


def laid_out(
    tensors: Mapping[str, Whole], metadata: Mapping[str, str] | None, room: int = 0
) -> FileLayout:
    """Lay tensors out as the safetensors package does: by descending dtype, then by name.

    Args:
        tensors: by name.
        metadata: texts by key.
        room: how many blanks the header ends with, rounded up to a multiple of 8.

    Raises:
        ArgumentError: the header would be too long, or a text cannot be UTF-8.
    """
    end = 0
    entries: dict[str, Entry] = {}
    for name, one in sorted(tensors.items(), key=lambda item: (-item[1].dtype.order, item[0])):
        begin, end = end, end + one.nbytes
        entries[name] = Entry(one.dtype, one.shape, begin, end)
    head = build(entries, metadata, room)
    begins = {name: len(head) + entry.begin for name, entry in entries.items()}
    return FileLayout(begins, head, len(head) + end)


def split(tensors: Mapping[str, Whole], most: int) -> list[list[str]]:
    """Divide tensors, in their order, into files of at most ``most`` bytes, as transformers does.

    A tensor that is larger has a file of its own.
    """
    files: list[list[str]] = []
    current: list[str] = []
    size = 0
    for name, one in tensors.items():
        if one.nbytes > most:
            files.append([name])
            continue
        if current and size + one.nbytes > most:
            files.append(current)
            current, size = [], 0
        current.append(name)
        size += one.nbytes
    if current:
        files.append(current)
    return files


def numbered(
    tensors: Mapping[str, Whole], most: int, metadata: Mapping[str, str] | None
) -> list[tuple[str, FileLayout]]:
    """Divide tensors as :func:`split` does. Return a label and what is where, of each file."""
    groups = split(tensors, most)
    return [
        (
            f"{number:05d}-of-{len(groups):05d}",
            laid_out({name: tensors[name] for name in names}, metadata),
        )
        for number, names in enumerate(groups, 1)
    ]


def index(
    files: Sequence[tuple[str, Sequence[str]]], total: int, metadata: Mapping[str, str] | None
) -> bytes:
    """Return the index of a set: which tensor is in which file.

    Args:
        files: their names, with those of their tensors.
        total: the bytes of all tensors.
        metadata: the set's.
    """
    said: dict[str, Any] = {
        "metadata": {**(metadata or {}), "total_size": total},
        "weight_map": {name: file for file, names in files for name in sorted(names)},
    }
    return (json.dumps(said, indent=2, ensure_ascii=False) + "\n").encode()


def parsed_index(data: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    """Return which tensor is in which file, and the metadata, as an index says.

    It is not trusted: the files are in the folder of the index.

    Raises:
        ArgumentError: it is no index.
    """
    if len(data) > LIMIT:
        raise ArgumentError(f"the index has {len(data)} bytes; the most is {LIMIT}")
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"the index is no JSON: {error}") from None
    found = said.get("weight_map") if isinstance(said, dict) else None
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise ArgumentError("the index has no weight_map of texts")
    for name, file in found.items():
        if "/" in file or "\0" in file or file in ("", ".", ".."):
            raise ArgumentError(f"the index says {name!r:.80} is in {file!r:.80}: no file's name")
    metadata = said.get("metadata")
    return found, metadata if isinstance(metadata, dict) else {}


_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def bytes_of(what: str, size: Any) -> int | None:
    """Return the bytes of a size: a number of them, or a text such as "5GB"; None for None.

    Raises:
        ArgumentError: it is not above 0, or no such text.
        DtypeError: it is something else.
    """
    if size is None:
        return None
    if isinstance(size, str):
        found = re.fullmatch(r"\s*(\d+)\s*([KMGT]I?B)?\s*", size.upper())
        size = int(found[1]) * _UNITS[found[2] or ""] if found else 0
    elif not isinstance(size, int) or isinstance(size, bool):
        raise DtypeError(f"{what}: max_shard_size={size!r} is neither a number of bytes nor a text")
    if size < 1:
        raise ArgumentError(f"{what}: max_shard_size must be above 0, as 10**9 or '5GB'")
    return int(size)
