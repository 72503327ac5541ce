"""Headers of safetensors files: how they are written, and how those of others are read.

A file is the length of its header (8 bytes, little-endian), the header, which is JSON padded with
blanks, and the bytes of the tensors. A header that is read is not trusted: everything that it says
is checked before it is used.

Source: https://huggingface.co/docs/safetensors, and what the package of that name writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

from ..errors import ArgumentError
from .dtypes import BY_CODE, FileDtype

__all__ = ["LIMIT", "Entry", "Header", "build", "length", "parse"]

LIMIT = 100_000_000
"""The longest header, in bytes, as in the safetensors package."""

_METADATA = "__metadata__"
_MOST = 1 << 62  # bytes of a tensor: any more is nonsense


class Entry(NamedTuple):
    """A tensor of a file.

    Attributes:
        begin, end: where its bytes are, counted from the end of the header.
    """

    dtype: FileDtype
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """What a header says.

    Attributes:
        entries: the tensors by name, in the order of their bytes.
        metadata: texts by key; None if there are none.
        data: where in the file the bytes of the tensors begin.
    """

    entries: dict[str, Entry]
    metadata: dict[str, str] | None
    data: int


def build(entries: Mapping[str, Entry], metadata: Mapping[str, str] | None, room: int = 0) -> bytes:
    """Return the first bytes of a file, up to those of the tensors.

    They are those of the safetensors package, for which ``entries`` are in the order of their
    bytes. It writes more than one key of the metadata in no certain order; here they are sorted.
    ``room`` is how many blanks more the header ends with; its length is a multiple of 8.

    Raises:
        ArgumentError: a text cannot be UTF-8, or the header is too long.
    """
    said: dict[str, Any] = {}
    if metadata is not None:
        said[_METADATA] = dict(sorted(metadata.items()))
    for name, entry in entries.items():
        said[name] = {
            "dtype": entry.dtype.code,
            "shape": entry.shape,
            "data_offsets": (entry.begin, entry.end),
        }
    try:
        text = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"a name or the metadata cannot be written as UTF-8: {error}") from None
    text += b" " * room
    text += b" " * (-len(text) % 8)
    if len(text) > LIMIT:
        raise ArgumentError(
            f"the header would have {len(text)} bytes; readers take {LIMIT} at most: write fewer "
            "tensors or less metadata into one file"
        )
    return len(text).to_bytes(8, "little") + text


def length(first: bytes, size: int) -> int:
    """Return the length of a header.

    Args:
        first: the first 8 bytes of the file; fewer if it has fewer.
        size: the bytes of the file.

    Raises:
        ArgumentError: the file has no such header.
    """
    if len(first) < 8:
        _damaged(f"it has {size} bytes, and a header begins with 8")
    said = int.from_bytes(first[:8], "little")
    if said > LIMIT:
        _damaged(f"its header has {said} bytes; the most is {LIMIT}")
    if said > size - 8:
        _damaged(f"its header has {said} bytes, and the file only {size}")
    return said


def parse(text: bytes, size: int) -> Header:
    """Return what a header says, if all of it is as it must be.

    Args:
        text: the header, without the 8 bytes before it.
        size: the bytes of the file.

    Raises:
        ArgumentError: the header is none: no JSON; names that come twice; a dtype or shape that
            there is not; tensors that overlap, leave holes or have not the length of their shape;
            or a file of another length.
    """
    if not text.startswith(b"{"):
        _damaged("its header does not begin with {")
    try:
        said = json.loads(
            text.decode(), object_pairs_hook=_unique, parse_int=_number, parse_constant=_constant
        )
    except RecursionError:
        _damaged("its header is nested too deeply")
    except ArgumentError:
        raise
    except ValueError as error:  # also of UTF-8
        _damaged(f"its header is no JSON: {error}")
    metadata = said.pop(_METADATA, None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        _damaged("its __metadata__ is no map of texts")
    found = sorted(
        ((name, _entry(name, one)) for name, one in said.items()),
        key=lambda pair: (pair[1].begin, pair[1].end),
    )
    end = 0
    for name, entry in found:
        if entry.begin != end:
            where = "overlaps the one before it" if entry.begin < end else "comes after a hole"
            _damaged(f"{name!r} begins at {entry.begin} and {where}, which ends at {end}")
        end = entry.end
    data = 8 + len(text)
    if data + end != size:
        _damaged(f"by its header it has {data + end} bytes, and it has {size}: it is cut off, or "
                 "something was appended")  # fmt: skip
    return Header(dict(found), metadata, data)


def _damaged(why: str) -> NoReturn:
    raise ArgumentError(f"this is no safetensors file, or it is damaged: {why}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                _damaged(f"the name {name!r:.80} comes twice")
            seen.add(name)
    return found


def _number(digits: str) -> int:
    if len(digits) > 20:
        _damaged(f"a number has {len(digits)} digits")
    return int(digits)


def _constant(text: str) -> NoReturn:
    _damaged(f"it has the number {text}")


def _entry(name: str, said: Any) -> Entry:
    if not isinstance(said, dict) or said.keys() != {"dtype", "shape", "data_offsets"}:
        _damaged(f"{name!r:.80} has not just a dtype, a shape and data_offsets")
    dtype = BY_CODE.get(said["dtype"]) if isinstance(said["dtype"], str) else None
    if dtype is None:
        _damaged(f"{name!r:.80} is of dtype {said['dtype']!r:.80}, which is not known")
    shape, offsets = said["shape"], said["data_offsets"]
    if not _lengths(shape):
        _damaged(f"{name!r:.80} has the shape {shape!r:.80}")
    if not _lengths(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _damaged(f"{name!r:.80} has the data_offsets {offsets!r:.80}")
    bits = _product(shape) * dtype.bits
    if bits % 8 or bits // 8 != offsets[1] - offsets[0]:
        _damaged(
            f"{name!r:.80} has {offsets[1] - offsets[0]} bytes; {dtype.code} of shape "
            f"{shape!r:.80} has {bits / 8:g}"
        )
    return Entry(dtype, tuple(shape), *offsets)


def _lengths(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < _MOST for one in value)


def _product(shape: Iterable[int]) -> int:
    """Return the number of elements. Many large lengths must not make a number of megabytes."""
    lengths = list(shape)
    if 0 in lengths:
        return 0
    found = 1
    for one in lengths:
        found *= one
        if found > _MOST:
            return _MOST
    return found


def nbytes(dtype: FileDtype, shape: Iterable[int]) -> int:
    """Return the bytes of a tensor."""
    return math.prod(shape) * dtype.bits // 8
