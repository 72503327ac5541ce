"""The generator of the constants that compare structs of C and Go (tools/layouts.py)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import layouts
from layouts import Numbers, Room, Struct

HEADER = """
#include "below.h"
/* enum { UP_NOT = 1 } */
enum {
	UP_ONE = 1, // enum { UP_NEITHER }
	UP_TO_IT
};
enum { UP_LAST = 9, DOWN };
typedef struct head {
	uint32_t kind, n_send; /* uint32_t gone; */
	const char *const *at[2], *type;
	_Alignas(64) below in;
	part parts[];
} head;
struct tail {
	int64_t bytes;
};
"""
GO = """package room

import "github.com/paddlempi/paddlempi/gocore/other"

const upOne = 1

const (
	UpToIt     = iota + 2 // upNot = 3
	up, upLast = 3, 9
)

// head is one.
type head struct {
	kind  uint32
	NSend uint32 // bytes
	At    [2]unsafe.Pointer
	what  *byte
	in    other.Below
	_     [8]byte
}

type Tail = other.Tail
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that writes a file of a room, beside those of the module."""
    monkeypatch.setattr(layouts, "ROOT", tmp_path)

    def write(name: str, text: str) -> None:
        path = tmp_path / "gocore" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    write("room/room.h", HEADER)
    write("room/below.h", "typedef struct below {\n\tint32_t low;\n} below;\n")
    write("room/room.go", GO)
    write("other/other.go", "package other\n\ntype Tail struct {\n\tBytes int64\n}\n")
    return write


ROOM = Room(
    "gocore/room",
    "room.h",
    (Struct("head", "head", "type=what"), Struct("struct tail", "Tail")),
    (Numbers("UP_", "up"),),
)


def compared(room: Room = ROOM) -> list[str]:
    """Return what the file of a room compares: the field or the number, on both sides."""
    lines = [line for line in layouts.written(room).split("\n") if line.startswith("\t_ = ")]
    return [line[7:-1] for line in lines]


def test_every_field_and_number_is_compared(write: Callable[[str, str], None]) -> None:
    fields = [
        ("C.head{}.kind", "head{}.kind"),
        ("C.head{}.n_send", "head{}.NSend"),
        ("C.head{}.at", "head{}.At"),
        ("C.head{}._type", "head{}.what"),
        ("C.head{}.in", "head{}.in"),
        ("C.struct_tail{}.bytes", "Tail{}.Bytes"),
    ]
    want = [
        f"unsafe.{what}({c}) - unsafe.{what}({go})"
        for c, go in fields
        for what in ("Offsetof", "Sizeof")
    ]
    want.insert(0, "unsafe.Sizeof(C.head{}) - unsafe.Sizeof(head{})")
    want.insert(-2, "unsafe.Sizeof(C.struct_tail{}) - unsafe.Sizeof(Tail{})")
    want += [
        "uint64(C.UP_ONE) - uint64(upOne)",
        "uint64(C.UP_TO_IT) - uint64(UpToIt)",
        "uint64(C.UP_LAST) - uint64(upLast)",
    ]
    assert compared() == want


def test_structs_of_c_are_compared(write: Callable[[str, str], None]) -> None:
    write("room/below.h", "struct twin {\n\tint64_t bytes;\n};\n")
    room = Room("gocore/room", "room.h", (Struct("struct tail", "C.struct twin"),))
    assert compared(room)[1:2] == [
        "unsafe.Offsetof(C.struct_tail{}.bytes) - unsafe.Offsetof(C.struct_twin{}.bytes)"
    ]


@pytest.mark.parametrize(
    ("file", "before", "after", "told"),
    [
        ("room.h", "kind,", "sort,", "beside sort kind"),
        ("room.h", "n_send;", "n_send, more;", "beside more"),
        ("room.go", "\tAt  ", "\tMore uint32\n\tAt  ", "beside More"),
        ("room.h", "UP_TO_IT", "UP_TO_IT, UP_MORE", "beside UP_MORE"),
        ("room.h", "struct tail", "struct end", "no struct tail"),
        ("room.go", "type head", "type start", "no struct head"),
    ],
)
def test_what_stands_on_one_side_is_found(
    write: Callable[[str, str], None], file: str, before: str, after: str, told: str
) -> None:
    text = {"room.h": HEADER, "room.go": GO}[file]
    assert before in text
    write(f"room/{file}", text.replace(before, after))
    with pytest.raises(ValueError, match=told):
        layouts.written(ROOM)


def test_the_files_are_up_to_date() -> None:
    assert layouts.main(["--check"]) == 0, "run make generate"
