"""No file, function or type of the product is longer than a reader can hold.

``tools/sizes.py`` measures them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools"))

import sizes

MOST_LINES_OF_A_FILE = 600
MOST_LINES_OF_A_FUNCTION = 80
MOST_METHODS = 40


def name(path: Path) -> str:
    return str(path.relative_to(sizes.ROOT))


FILES = {name(path): path for path in sizes.product()}


def test_no_file_is_too_long() -> None:
    lines = {file: path.read_text().count("\n") for file, path in FILES.items()}
    assert {file: n for file, n in lines.items() if n > MOST_LINES_OF_A_FILE} == {}


def test_no_function_is_too_long() -> None:
    found = {
        f"{file}: {function.name}": function.lines
        for file, path in FILES.items()
        for function in sizes.functions(path)
        if function.lines > MOST_LINES_OF_A_FUNCTION
    }
    assert found == {}


def test_no_type_has_too_many_methods() -> None:
    found = {}
    for folder in sorted({name(path.parent) for path in FILES.values() if path.suffix == ".go"}):
        for kind in sizes.types(sizes.ROOT / folder):
            n = len(sizes.methods(folder, kind))
            if n > MOST_METHODS:
                found[f"{folder}: {kind}"] = n
    assert found == {}


@pytest.mark.parametrize(
    "suffix, text, function",
    [
        (".go", "package a\n\nfunc (x *T) Long(\n\ty int,\n) {\n\tif y {\n\t}\n}\n", ("Long", 6)),
        (".c", "int x;\nstatic int long_one(int y) {\n\treturn y;\n}\n", ("long_one", 3)),
        (".py", 'def f():\n    """A.\n\n    B.\n    """\n    return 1\n', ("f", 2)),
    ],
)
def test_a_function_is_measured(
    suffix: str, text: str, function: tuple[str, int], tmp_path: Path
) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_text(text)
    assert [tuple(found) for found in sizes.functions(path)] == [function]


def test_promoted_methods_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "ROOT", tmp_path)
    (tmp_path / "gocore").mkdir()
    (tmp_path / "gocore" / "a.go").write_text(
        "package gocore\n\ntype A struct {\n\tsync.Mutex\n\t*B // of A\n\tn int\n}\n\n"
        "type B interface {\n\tOne(int)\n\tTwo()\n}\n\n"
        "func (a *A) One(int) {}\n\nfunc (A) Own() {}\n"
    )
    mutex = {f"sync.Mutex.{i}" for i in range(3)}
    assert sizes.methods("gocore", "A") == {"One", "Two", "Own"} | mutex


@pytest.mark.parametrize(
    "text, lines",
    [
        ('a := "//" // b\n\n/* c\n d */\nx()\n', 2),
        ("/* a */ int b; // c\n// d\n\n", 1),
    ],
)
def test_lines_of_code_are_counted(text: str, lines: int) -> None:
    assert sizes.code_lines(text) == lines
