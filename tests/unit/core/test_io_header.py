"""Headers of safetensors files: written as their package does, and never trusted when read."""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from paddlempi.errors import ArgumentError
from paddlempi.io import layout
from paddlempi.io.dtypes import BY_CODE, BY_NAME
from paddlempi.io.header import LIMIT, Header, length, parse
from paddlempi.io.layout import Whole, bytes_of, laid_out, parsed_index, split
from safetensors import TensorSpec, deserialize, serialize

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
WHOLES = st.builds(Whole, st.sampled_from(list(BY_NAME.values())), SHAPES)
SOME = st.dictionaries(NAMES.filter("__metadata__".__ne__), WHOLES, max_size=8)
METADATA = st.none() | st.dictionaries(NAMES, NAMES, max_size=1)


def packaged(tensors: dict[str, Whole], metadata: dict[str, str] | None) -> bytes:
    """Return the file that the package writes, of zeros."""
    memory = (ctypes.c_ubyte * 4096)()
    specs = {
        name: TensorSpec(
            dtype=one.dtype.name,
            shape=one.shape,
            data_ptr=ctypes.addressof(memory),
            data_len=one.nbytes,
        )
        for name, one in tensors.items()
    }
    return bytes(serialize(specs, metadata=metadata))


def read(data: bytes) -> Header:
    """Read a file as open_file does."""
    size = length(data[:8], len(data))
    return parse(data[8 : 8 + size], len(data))


@given(SOME, METADATA)
@settings(max_examples=60, deadline=None)
def test_the_bytes_are_those_of_the_package(
    tensors: dict[str, Whole], metadata: dict[str, str] | None
) -> None:
    assume(tensors or metadata != {})  # of that the package makes no JSON
    found = laid_out(tensors, metadata)
    assert packaged(tensors, metadata) == found.head + bytes(found.size - len(found.head))
    header = read(found.head + bytes(found.size - len(found.head)))
    assert header.metadata == metadata
    assert header.data == len(found.head)
    assert {name: Whole(e.dtype, e.shape) for name, e in header.entries.items()} == tensors
    assert {n: header.data + e.begin for n, e in header.entries.items()} == found.begins


def test_several_keys_of_the_metadata_are_sorted() -> None:
    text = laid_out({}, {"b": "1", "a": "2"}).head
    assert text[8:].startswith(b'{"__metadata__":{"a":"2","b":"1"}}') and len(text) % 8 == 0


def test_what_cannot_be_written() -> None:
    with pytest.raises(ArgumentError, match="UTF-8"):
        laid_out({"\ud800": Whole(BY_CODE["F32"], ())}, None)
    with pytest.raises(ArgumentError, match="the header would have 100000"):
        laid_out({}, {"a": "x" * LIMIT})


def test_dtypes_are_in_the_order_of_the_package() -> None:
    """The test above has all of them; here are those that this library does not have."""
    found = [one.code for one in sorted(BY_CODE.values(), key=lambda one: -one.order)]
    assert " ".join(found) == (
        "U64 I64 F64 C64 F32 U32 I32 BF16 F16 U16 I16 F8_E5M2FNUZ F8_E4M3FNUZ F8_E8M0 F8_E4M3 "
        "F8_E5M2 I8 U8 F6_E3M2 F6_E2M3 F4 BOOL"
    )


def file_of(header: Any, data: int, text: bytes | None = None) -> bytes:
    text = json.dumps(header).encode() if text is None else text
    return len(text).to_bytes(8, "little") + text + bytes(data)


def one(shape: Any, offsets: Any, dtype: Any = "F32", **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets, **more}


DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it has 0 bytes"),
    "seven bytes": (bytes(7), "it has 7 bytes"),
    "too long": ((LIMIT + 1).to_bytes(8, "little") + bytes(100), "the most is 100000000"),
    "all ones": (b"\xff" * 64, "has 18446744073709551615 bytes"),
    "cut off in the header": (file_of({"a": one([2], [0, 8])}, 8)[:20], "the file only 20"),
    "cut off": (file_of({"a": one([2], [0, 8])}, 7), "it is cut off"),
    "appended": (file_of({"a": one([2], [0, 8])}, 9), "something was appended"),
    "no header": (file_of(None, 0, b""), "does not begin with {"),
    "a list": (file_of([], 0), "does not begin with {"),
    "a blank before": (file_of(None, 0, b" {}"), "does not begin with {"),
    "no JSON": (file_of(None, 0, b"{]"), "no JSON"),
    "more behind": (file_of(None, 0, b"{} {}"), "no JSON"),
    "no UTF-8": (file_of(None, 0, b'{"\xff":1}'), "no JSON"),
    "nested": (file_of(None, 0, b'{"a":' + b"[" * 200000), "nested too deeply|no JSON"),
    "a name twice": (
        file_of(None, 8, b'{"a":%s,"a":%s}' % ((json.dumps(one([2], [0, 8])).encode(),) * 2)),
        "'a' comes twice",
    ),
    "a key twice": (
        file_of(None, 8, b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}'),
        "'dtype' comes twice",
    ),
    "overlap": (
        file_of({"a": one([2], [0, 8]), "b": one([2], [4, 12])}, 12),
        "'b' begins at 4 and overlaps",
    ),
    "the same place": (
        file_of({"a": one([2], [0, 8]), "b": one([2], [0, 8])}, 8),
        "'b' begins at 0 and overlaps",
    ),
    "hole": (file_of({"a": one([1], [0, 4]), "b": one([1], [8, 12])}, 12), "after a hole"),
    "hole at the begin": (file_of({"a": one([1], [4, 8])}, 8), "after a hole"),
    "backwards": (file_of({"a": one([1], [4, 0])}, 4), "data_offsets"),
    "negative": (file_of({"a": one([1], [-4, 0])}, 4), "data_offsets"),
    "negative shape": (file_of({"a": one([-1], [0, 4])}, 4), "shape"),
    "a float": (file_of({"a": one([1.0], [0, 4])}, 4), "shape"),
    "a bool": (file_of({"a": one([True], [0, 4])}, 4), "shape"),
    "a number": (file_of({"a": one(1, [0, 4])}, 4), "shape"),
    "three offsets": (file_of({"a": one([1], [0, 4, 4])}, 4), "data_offsets"),
    "wrong length": (file_of({"a": one([2], [0, 4])}, 4), "has 4 bytes; F32 of shape .* has 8"),
    "half bytes": (file_of({"a": one([3], [0, 1], "F4")}, 1), "has 1.5"),
    "overflow": (file_of({"a": one([1 << 40, 1 << 40], [0, 4])}, 4), "has 4 bytes"),
    "many digits": (file_of(None, 0, b'{"a":{"shape":[' + b"9" * 99 + b"]}}"), "99 digits"),
    "dtype": (file_of({"a": one([1], [0, 4], "F33")}, 4), "dtype 'F33'"),
    "dtype of a list": (file_of({"a": one([1], [0, 4], ["F32"])}, 4), "dtype"),
    "no dtype": (file_of({"a": {"shape": [], "data_offsets": [0, 4]}}, 4), "has not just"),
    "more keys": (file_of({"a": one([1], [0, 4], more=1)}, 4), "has not just"),
    "no map": (file_of({"a": 3}, 4), "has not just"),
    "metadata": (file_of({"__metadata__": {"a": 1}}, 0), "no map of texts"),
    "metadata of a list": (file_of({"__metadata__": ["a"]}, 0), "no map of texts"),
    "NaN": (file_of(None, 0, b'{"a":NaN}'), "the number NaN"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_header_is_refused(name: str) -> None:
    data, message = DAMAGED[name]
    with pytest.raises(ArgumentError, match=message):
        read(data)


def mutated(data: bytes, changes: list[tuple[int, int]], cut: int | None) -> bytes:
    new = bytearray(data)
    for at, value in changes:
        new[at % len(new)] = value
    return bytes(new if cut is None else new[: cut % (len(new) + 1)])


CHANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4)
PUNCTUATION = st.lists(
    st.tuples(st.integers(8, 400), st.sampled_from(b'{}[]",:0123456789 -')), max_size=4
)


@given(SOME, METADATA, CHANGES | PUNCTUATION, st.none() | st.integers(0, 4000))
@settings(max_examples=120, deadline=None)
def test_what_is_read_is_right_or_refused(
    tensors: dict[str, Whole],
    metadata: dict[str, str] | None,
    changes: list[tuple[int, int]],
    cut: int | None,
) -> None:
    """Whatever bytes: an ArgumentError, or what the package reads too."""
    check(mutated(packaged(tensors, metadata), changes, cut))


@given(st.binary(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_bytes(data: bytes) -> None:
    check(data)
    check(len(data).to_bytes(8, "little") + data)


def check(data: bytes) -> None:
    try:
        header = read(data)
    except ArgumentError:
        return
    there = dict(deserialize(data))
    assert there.keys() == header.entries.keys()
    for name, entry in header.entries.items():
        assert tuple(there[name]["shape"]) == entry.shape
        assert there[name]["dtype"] == entry.dtype.code
        begin, end = header.data + entry.begin, header.data + entry.end
        assert bytes(there[name]["data"]) == data[begin:end]


def test_files_of_a_set() -> None:
    def wholes(*sizes: int) -> dict[str, Whole]:
        return {f"t{number}": Whole(BY_CODE["U8"], (size,)) for number, size in enumerate(sizes)}

    assert split(wholes(3, 4, 3, 20, 1, 0), 7) == [["t0", "t1"], ["t3"], ["t2", "t4", "t5"]]
    assert split({}, 7) == []
    assert split(wholes(8), 7) == [["t0"]]


def test_the_index_of_a_set() -> None:
    text = layout.index([("a", ["x", "b"]), ("c", ["y"])], 12, {"format": "pt"})
    where, metadata = parsed_index(text)
    assert where == {"x": "a", "b": "a", "y": "c"}
    assert metadata == {"format": "pt", "total_size": 12}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {"a": "../b"}}',
        b'{"weight_map": {"a": "/etc/passwd"}}',
        b'{"weight_map": {"a": ".."}}',
        b'{"weight_map": {"a": ""}}',
        b'{"weight_map": {"a": "b\\u0000"}}',
        b'{"a":' * 100_000,
    ],
)
def test_a_damaged_index_is_refused(text: bytes) -> None:
    with pytest.raises(ArgumentError, match="the index"):
        parsed_index(text)


def sizes() -> Iterator[tuple[Any, int | None]]:
    yield from ((None, None), (7, 7), ("7", 7), ("5GB", 5 * 10**9), (" 2 mib ", 2 << 20))


@pytest.mark.parametrize(("given_", "found"), sizes())
def test_sizes(given_: Any, found: int | None) -> None:
    assert bytes_of("save_file", given_) == found


@pytest.mark.parametrize("given_", [0, -1, "", "GB", "5 XB", 2.5, True, [1]])
def test_no_sizes(given_: Any) -> None:
    with pytest.raises((ArgumentError, TypeError), match=re.escape("max_shard_size")):
        bytes_of("save_file", given_)
