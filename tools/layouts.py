"""Structs and numbers that stand in C and in Go: constants of Go that compile only if they agree.

``tools/layouts.py`` writes a file ``layouts_gen.go`` into each of the ROOMS. For every field of
these structs it compares offset and size, as both compilers have them, and for every enumerator the
value. A field is found by its name, ``n_send`` as ``NSend``, so that two of one size which have
changed places are found too. ``tools/layouts.py --check`` writes nothing and fails when a file is
not up to date. A struct that Go uses as ``C.name`` has no twin, and is not listed.

cgo does not work in tests of Go; and what does not compile is seen sooner.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

import generated
import uses

ROOT = Path(__file__).resolve().parents[1]
MODULE = "github.com/paddlempi/paddlempi"
FILE = "layouts_gen.go"


class Struct(NamedTuple):
    """A struct of C, and the other one: ``Type``, ``package.Type``, or ``C.name``.

    ``names`` has the fields that have another name there (``c=other``), by blanks. A field of C
    with no name behind ``=`` is not named there; its bytes still count.
    """

    c: str
    other: str
    names: str = ""


class Numbers(NamedTuple):
    """The enumerators of C with a prefix, and the prefix of the constants with the same names."""

    c: str
    other: str


class Room(NamedTuple):
    """A room: its folder, the headers that say what C has, and what is compared."""

    folder: str
    headers: str
    structs: tuple[Struct, ...]
    numbers: tuple[Numbers, ...] = ()


ROOMS = (
    Room(
        "capi",
        "pmpi.h ../gocore/window/access.h",
        (
            Struct("pmpi_buf", "op.Buf"),
            Struct("pmpi_op", "op.Desc"),
            Struct("pmpi_table_op", "job.TableOp", "learning_rate=Rate"),
            Struct("pmpi_window_op", "window.Op", "reduce_op=Reduce"),
            Struct("pmpi_window_op", "C.pw_op"),
            Struct("pmpi_buf", "C.pw_buf"),
        ),
        (Numbers("PMPI_WINDOW_", "C.PW_"),),
    ),
    Room("gocore/arrive", "slots.h", (Struct("pa_sum", "Sum"),)),
    Room("gocore/coll/bounce", "rounds.h", (Struct("pb_owner", "cma.Proof"),)),
    Room(
        "gocore/cuda",
        "kernels/arguments.h",
        (Struct("pmpi_reduce_args", "ReduceArgs"), Struct("pmpi_strided_args", "StridedArgs")),
        (Numbers("MAX_", "Max"),),
    ),
    Room(
        "gocore/mpi",
        "calls.h",
        (
            Struct("struct pmpi_mpi_call", "Call"),
            Struct("struct pmpi_mpi_status", "Status"),
            Struct("struct pmpi_mpi_request", "transport.Request", "err=Code done="),
        ),
        (Numbers("PMPI_FN_", "Fn"),),
    ),
    Room("gocore/reduce", "fold.h", (Struct("pmpi_fold", "Fold", "type=kind"),)),
    Room(
        "gocore/trace",
        "entry.h",
        (
            Struct("tr_entry", "entry"),
            Struct("tr_counts", "counts"),
            Struct("tr_ring", "Shared"),
        ),
        (Numbers("TR_", ""),),
    ),
    Room(
        "gocore/transport/memory",
        "rings.h",
        (Struct("pm_packet", "packet"),),
    ),
)


def spelled(name: str) -> str:
    """A name without what C and Go spell in their own ways."""
    return name.replace("_", "").lower()


# C


def headers_of(room: Room) -> str:
    """The headers of a room, and those that they include, without comments."""
    texts: dict[Path, str] = {}

    def read(path: Path) -> None:
        if path not in texts:
            texts[path] = uses.without_comments(path.read_text())
            for name in re.findall(r'^#\s*include "([^"]+)"', texts[path], re.MULTILINE):
                read((path.parent / name).resolve())

    for header in room.headers.split():
        read((ROOT / room.folder / header).resolve())
    return "\n".join(texts.values())


def fields_of_c(text: str, name: str) -> list[str]:
    """The fields of a struct of C (``name`` or ``struct name``), without an array of no length."""
    bare = name.removeprefix("struct ")
    found = re.search(rf"\bstruct {bare} \{{([^{{}}]*)\}}", text)
    if found is None:
        raise ValueError(f"there is no struct {bare}")
    fields = []
    for line in found[1].split(";"):
        for one in line.split(","):
            declared = re.search(r"(\w+)\s*((?:\[[^]]*\])*)\s*$", one)
            if declared and declared[2] != "[]":
                fields.append(declared[1])
    return fields


def numbers_of_c(text: str, prefix: str) -> list[str]:
    """The enumerators that begin with a prefix, without it."""
    lists = "\n".join(re.findall(r"\benum \{([^{}]*)\}", text))
    return re.findall(rf"(?:^|[\s,]){prefix}(\w+)(?=\s*[,=]|\s*$)", lists, re.MULTILINE)


# Go


class Go:
    """What a package declares, and those that it imports."""

    def __init__(self, folder: str) -> None:
        paths = sorted((ROOT / folder).glob("*.go"))
        texts = [p.read_text() for p in paths if not p.name.endswith(("_test.go", FILE))]
        self.imports: set[str] = set(re.findall(rf'"{MODULE}/([\w/]+)"', "\n".join(texts)))
        self.text = uses.without_comments("\n".join(texts))

    def package(self, name: str) -> str:
        """The folder of a package that this one imports."""
        (found,) = (folder for folder in self.imports if folder.rpartition("/")[2] == name)
        return found

    def fields(self, name: str) -> list[str]:
        """The fields of a struct, ``Type`` or ``package.Type``, through other names of it."""
        package, _, bare = name.rpartition(".")
        if package:
            return Go(self.package(package)).fields(bare)
        if same := re.search(rf"^type {bare} = ([\w.]+)$", self.text, re.MULTILINE):
            return self.fields(same[1])
        found = re.search(rf"^type {bare} struct \{{\n(.*?)^\}}", self.text, re.M | re.S)
        if found is None:
            raise ValueError(f"there is no struct {name}")
        lines = re.findall(r"^\t(\w+(?:, \w+)*) +\S", found[1], re.MULTILINE)
        return [field for line in lines for field in line.split(", ") if field != "_"]

    def constants(self) -> set[str]:
        """The constants of the package."""
        blocks = re.findall(r"^const \(\n(.*?)^\)", self.text, re.MULTILINE | re.DOTALL)
        lines = re.findall(r"^const (\w+(?:, \w+)*)", self.text, re.MULTILINE)
        lines += re.findall(r"^\t(\w+(?:, \w+)*)\b", "\n".join(blocks), re.MULTILINE)
        return {name for line in lines for name in line.split(", ")}


# What is written


def field_of_c(name: str) -> str:
    """A field of C as cgo calls it."""
    return f"_{name}" if name in ("type", "func", "range", "map", "select") else name


def name_of_c(name: str) -> str:
    """A struct of C as cgo calls it."""
    return "C." + name.replace("struct ", "struct_")


def paired(fields: list[str], others: list[str], names: str) -> list[tuple[str, str]]:
    """The fields of C with those of the other struct; ValueError if one has none."""
    given = dict(pair.split("=") for pair in names.split())
    by_spelling = {spelled(name): name for name in others}
    pairs = [(field, given.get(field, by_spelling.get(spelled(field)))) for field in fields]
    alone = [field for field, other in pairs if other is None]
    alone += sorted({*others} - {other for _, other in pairs} - {*given})
    if alone:
        raise ValueError(f"no field stands beside {' '.join(alone)}")
    return [(field, other) for field, other in pairs if other]


def compared(room: Room, struct: Struct) -> list[str]:
    """The constants for one struct."""
    text = headers_of(room)
    fields = fields_of_c(text, struct.c)
    if of_c := struct.other.startswith("C."):
        name = struct.other.removeprefix("C.")
        others, other_type = fields_of_c(text, name), name_of_c(name)
    else:
        others, other_type = Go(room.folder).fields(struct.other), struct.other
    a, b = f"{name_of_c(struct.c)}{{}}", f"{other_type}{{}}"
    lines = [equal(f"unsafe.Sizeof({a})", f"unsafe.Sizeof({b})")]
    for field, other in paired(fields, others, struct.names):
        one, two = f"{a}.{field_of_c(field)}", f"{b}.{field_of_c(other) if of_c else other}"
        lines += [equal(f"unsafe.{what}({one})", f"unsafe.{what}({two})") for what in WHAT]
    return lines


WHAT = ("Offsetof", "Sizeof")


def equal(one: str, two: str) -> str:
    """A constant that compiles only if two numbers are the same."""
    return f"\t_ = -({one} - {two})"


def numbered(room: Room, numbers: Numbers) -> list[str]:
    """The constants for the enumerators of one prefix."""
    text, lines = headers_of(room), []
    of_c = numbers.other.startswith("C.")
    if not of_c:
        constants = {spelled(name): name for name in Go(room.folder).constants()}
    for name in numbers_of_c(text, numbers.c):
        other = numbers.other + name
        if not of_c:
            if spelled(other) not in constants:
                raise ValueError(f"no constant stands beside {numbers.c}{name}")
            other = constants[spelled(other)]
        lines.append(equal(f"uint64(C.{numbers.c}{name})", f"uint64({other})"))
    return lines


def written(room: Room) -> str:
    """The file of a room."""
    lines = [line for struct in room.structs for line in compared(room, struct)]
    lines += [line for numbers in room.numbers for line in numbered(room, numbers)]
    packages = {struct.other.partition(".")[0] for struct in room.structs if "." in struct.other}
    folders = sorted(Go(room.folder).package(name) for name in packages - {"C"})
    imports = ['\t"unsafe"', *([""] if folders else []), *(f'\t"{MODULE}/{f}"' for f in folders)]
    return "\n".join(
        [
            "// Code generated by tools/layouts.py. DO NOT EDIT.",
            "",
            f"package {room.folder.rpartition('/')[2]}",
            "",
            *(f'// #include "{header}"' for header in room.headers.split()),
            'import "C"',
            "",
            *(["import (", *imports, ")"] if folders else ['import "unsafe"']),
            "",
            "// C and Go agree about these structs and numbers. If they did not, one of these",
            "// constants would not be 0, and would not compile.",
            "const (",
            *lines,
            ")",
            "",
        ]
    )


def main(arguments: list[str]) -> int:
    """Writes or checks the files; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail on a stale file")
    check = parser.parse_args(arguments).check
    failed = 0
    for room in ROOMS:
        file = ROOT / room.folder / FILE
        try:
            text = written(room)
        except ValueError as wrong:
            print(f"tools/layouts.py: {room.folder}: {wrong}", file=sys.stderr)
            failed = 1
            continue
        what = str(file.relative_to(ROOT))
        failed |= generated.settle("layouts.py", what, file, text, check=check)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
