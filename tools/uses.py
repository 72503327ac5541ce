"""Who uses whom, by files: what ``tools/rooms.py --uses`` prints.

* A module of Python uses the modules that it imports, also in functions and under TYPE_CHECKING.
* A source or a header of C uses what it includes. A source also uses those of its folder that
  define a function or a variable that it names.
* A room uses the rooms whose headers its C includes, also in the preambles of cgo, and those that
  define a function or a variable that its C declares itself: a weak one, or one that is ``extern``.
* A Go file uses the files of its package that declare a name that it names, or an unexported
  method that it calls. What it imports are rooms, and the compiler forbids circles of those.

A *circle* is a set of files of Python or C of which each uses each, straight or through others.
There must be none. Go compiles the files of a room as one, and they may use each other in circles.
That is a fault where a room is so large that it has an order of its own: ``Room.files`` then lists
its files from the top down, and a use *goes up* if the file that is used stands above.

Tests of Go are not read. Functions of C whose names a macro makes are not seen.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

Uses = dict[str, set[str]]
"""For each file the files that it uses, by their paths."""


def circles(uses: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The sets of files that use each other, straight or through others."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found = []

    def visit(file: str) -> None:
        number[file] = lowest[file] = len(number)
        path.append(file)
        for other in sorted(uses.get(file, ())):
            if other not in number:
                visit(other)
            if other in path:
                lowest[file] = min(lowest[file], lowest[other])
        if lowest[file] == number[file]:
            at = path.index(file)
            if len(path) - at > 1:
                found.append(sorted(path[at:]))
            del path[at:]

    for file in sorted(uses):
        if file not in number:
            visit(file)
    return sorted(found)


def name_of(path: Path) -> str:
    """A path as the tree has it."""
    return str(path.relative_to(ROOT))


# Python


def python() -> Uses:
    """What the modules of the package, and those beside it, import of each other."""
    modules = {}
    for path in sorted((ROOT / "python").rglob("*.py")):
        parts = path.relative_to(ROOT / "python").with_suffix("").parts
        modules[".".join(parts).removesuffix(".__init__")] = path
    uses: Uses = {}
    for name, path in modules.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        found = set(python_imports(ast.parse(path.read_text()), package.split("."), modules))
        uses[name_of(path)] = {name_of(modules[other]) for other in found - {name}}
    return uses


def python_imports(tree: ast.AST, package: list[str], modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules among ``modules`` that a module of a package imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{source}.{alias.name}"
                if name in modules:
                    yield name
                elif source in modules:
                    yield source


# C

DEFINED = re.compile(
    r"^(?!static\b|typedef\b|extern\b|struct \w+ \{|enum\b|return\b|else\b)"
    r"[A-Za-z_][\w ]*[ *](\w+)(?:\([^;{}]*\)\s*\{|(?:\[\w*\])?(?: = [^;]*)?;)",
    re.MULTILINE,
)


def c() -> Uses:
    """What the sources and headers of C use of each other."""
    sources: dict[str, str] = {}
    for top in ("capi", "gocore"):
        for path in sorted((ROOT / top).rglob("*.[ch]")):
            sources[name_of(path)] = without_comments(path.read_text())
    uses: Uses = {name: set() for name in sources}
    defined = {
        (str(Path(name).parent), symbol): name
        for name, text in sources.items()
        if name.endswith(".c")
        for symbol in DEFINED.findall(text)
    }
    for name, text in sources.items():
        folder = Path(name).parent
        for included in re.findall(r'^#\s*include "([^"]+)"', text, re.MULTILINE):
            other = (ROOT / folder / included).resolve()
            if other.is_file():
                uses[name].add(name_of(other))
        if name.endswith(".c"):
            own = set(re.findall(r"^static [^;{(=]*\b(\w+)(?:\(|;|\[| =)", text, re.MULTILINE))
            for word in set(re.findall(r"(?<![\w.>])\w+", text)) - own:
                if (str(folder), word) in defined:
                    uses[name].add(defined[str(folder), word])
    return {name: others - {name} for name, others in uses.items()}


DECLARED = re.compile(
    r"^(?:extern |__attribute__\(\([^;{}]*?\)\)\s*)*(?!static\b|typedef\b|enum\b|return\b|else\b)"
    r"[A-Za-z_][\w ]*[ *](\w+)(?:\([^;{}]*\)|(?:\[\w*\])?)\s*;",
    re.MULTILINE,
)

# What cgo writes while it builds: the Go functions that C calls.
BY_CGO = "_cgo_export.h"


def c_of_rooms(folders: Iterable[str]) -> Uses:
    """For each room, given by its folder, the rooms whose C it uses. Tests are not read."""
    texts = dict(c_texts(("capi", "gocore")))
    elsewhere = [name for name, text in texts.items() if re.search(r"^#\s*cgo\b.* -I", text, re.M)]
    assert elsewhere == [], "includes that -I finds say nothing of rooms: give the path"
    room_of = {name: room_at(name, folders) for name in texts}
    defined = {
        symbol: room_of[name]
        for name, text in texts.items()
        for symbol in (DEFINED if name.endswith(".c") else EXPORTED).findall(text)
    }
    uses: Uses = {}
    for name, text in texts.items():
        used = uses.setdefault(room_of[name], set())
        for file in re.findall(r'^[ \t]*#\s*include "([^"]+)"', text, re.MULTILINE):
            if file != BY_CGO:
                used.add(room_at(name_of(included(ROOT / name, file)), folders))
        used |= {defined[symbol] for symbol in DECLARED.findall(text) if symbol in defined}
    return {room: others - {room} for room, others in uses.items()}


EXPORTED = re.compile(r"^#export (\w+)$", re.MULTILINE)


def c_texts(tops: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The C below some folders by files, without comments; of a Go file what it says to cgo."""
    for top in tops:
        for path in sorted((ROOT / top).rglob("*")):
            if "testdata" in path.parts or path.name.endswith("_test.go"):
                continue
            if path.suffix in (".c", ".h"):
                yield name_of(path), without_comments(path.read_text())
            elif path.suffix == ".go" and '\nimport "C"' in (text := path.read_text()):
                exported = re.findall(r"^//export (\w+)$", text, re.MULTILINE)
                lines = [preamble(text), *(f"#export {name}" for name in exported)]
                yield name_of(path), "\n".join(lines)


def preamble(text: str) -> str:
    """The C before the import of "C" in a Go file, without comments."""
    before = text[: text.index('\nimport "C"')]
    if before.endswith("*/"):
        return without_comments(before[before.rindex("/*") + 2 : -2])
    lines = before.split("\n")
    first = next((i for i in range(len(lines), 0, -1) if not lines[i - 1].startswith("//")), 0)
    return without_comments("\n".join(re.sub("^// ?", "", line) for line in lines[first:]))


def included(file: Path, name: str) -> Path:
    """The file that an include with quotes means."""
    found = (file.parent / name).resolve()
    assert found.is_file(), f"{file} includes {name}, which is not there"
    return found


def room_at(name: str, folders: Iterable[str]) -> str:
    """The room that a file belongs to: the innermost one whose folder it is below."""
    above = {str(folder) for folder in Path(name).parents}
    return max((folder for folder in folders if folder in above), key=len)


# Go


def go(folder: str) -> Uses:
    """What the files of a Go package use of each other."""
    texts = {
        path.name: without_comments(path.read_text())
        for path in sorted((ROOT / folder).glob("*.go"))
        if not path.name.endswith("_test.go")
    }
    names: dict[str, str] = {}
    methods: dict[str, set[str]] = {}
    for file, text in texts.items():
        names.update(dict.fromkeys(declared(text), file))
        for method in re.findall(r"^func \([^)]*\) ([a-z]\w*)", text, re.MULTILINE):
            methods.setdefault(method, set()).add(file)
    uses: Uses = {}
    for file, text in texts.items():
        words = {word for word in re.findall(r"(?<![.\w])(\w+)\b(?!:[^=])", text) if word in names}
        used = {names[word] for word in words if not is_local(word, text)}
        for word in set(re.findall(r"\.([a-z]\w*)\(", text)):
            if len(methods.get(word, ())) == 1:
                used |= methods[word]
        uses[file] = used - {file}
    return uses


def declared(text: str, kinds: str = "func|type|var|const") -> set[str]:
    """The names that a Go file declares for its package."""
    found: set[str] = set()
    lines = re.findall(rf"^(?:{kinds}) (\w.*)", text, re.MULTILINE)
    blocks = re.findall(rf"^(?:{kinds}) \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    for block in blocks:
        lines += re.findall(r"^\t(\w.*)", block, re.MULTILINE)
    for line in lines:
        names = re.match(r"\w+(?:, \w+)*", line)
        found.update(names[0].split(", ") if names else ())
    return found - {"init", "main", "_"}


def is_local(word: str, text: str) -> bool:
    """Whether a Go file has a variable, an argument, a result or a field of this name."""
    return bool(
        re.search(
            rf"\b{word}\b(?:, \w+)* :=|, {word} :=|\bvar {word}\b"
            rf"|[(,] ?{word}(?:, \w+)* (?:func\b|[\w*\[])|^\t+{word}(?:, \w+)* +[\w*\[]",
            text,
            re.MULTILINE,
        )
    )


def without_comments(text: str) -> str:
    """The text of C or Go without comments, and with empty strings except in lines of ``#``."""
    kept = re.compile(
        r'^#[^\n]*|/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|`[^`]*`', re.MULTILINE | re.DOTALL
    )

    def short(found: re.Match[str]) -> str:
        if found[0][0] == "#":
            return found[0]
        return " " if found[0][0] == "/" else '""'

    return kept.sub(short, text)


def upward(folder: str, files: list[str]) -> list[tuple[str, str]]:
    """The uses that go up among the files of a room, which are listed from the top down."""
    floor = {name: number for number, name in enumerate(files)}
    uses = go(folder)
    assert sorted(floor) == sorted(uses), f"{folder}: the list of files is not that of the folder"
    return [
        (file, other)
        for file in files
        for other in sorted(uses[file], key=floor.__getitem__)
        if floor[other] < floor[file]
    ]
