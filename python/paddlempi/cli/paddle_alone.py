"""What is said where Paddle would run without paddlempi: then each rank is a job of its own.

``import torch`` runs an entry point of this package. ``import paddle`` runs code of no other
package, so that a script of Paddle has to ask for paddlempi. Under mpirun a script that does not do
so trains in every rank by itself, and Paddle only warns that it is in no parallel environment.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["ADVICE", "FOUND", "warning"]

FOUND = (
    "import paddle does not load paddlempi: under mpirun a script that does not ask for it is a "
    "job of its own in every rank"
)
ADVICE = (
    "begin the script with import paddlempi.paddle, or start it by "
    "mpirun -np N python -m paddlempi run SCRIPT"
)

_LAUNCHER = re.compile(r"(mpirun|mpiexec|prterun|orterun|srun)\b.*")
_SHELL = re.compile(r"(ba|da|z)?sh")
_PYTHON = re.compile(r"(python|pypy)[\d.]*t?")
_MOST_FILES = 200


def warning(command: Sequence[str]) -> str:
    """Return what to say before a launcher's command is run; "" if there is nothing.

    The script of the command, and what it imports of its own folder, are read and not run.

    Args:
        command: of a launcher, such as ``["mpirun", "-np", "2", "python", "train.py"]``.
    """
    if not _LAUNCHER.fullmatch(Path(command[0]).name):
        return ""
    found = _program(command[1:])
    if found is None:
        return ""
    shown, path, source = found
    roots = _imported(path, source)
    paddle = any(root.startswith("paddle") for root in roots)  # paddlenlp, paddleocr
    if not paddle or any(root.startswith("paddlempi") for root in roots):
        return ""
    return f"{shown} imports Paddle and not paddlempi, and {FOUND}: {ADVICE}"


def _program(words: Sequence[str]) -> tuple[str, Path, str] | None:
    """Return the program of ranks: what it is called, its file and its source."""
    for at, word in enumerate(words):
        if _SHELL.fullmatch(Path(word).name) and words[at + 1 : at + 2] == ["-c"]:
            return _program(" ".join(words[at + 2 : at + 3]).split())
        if _PYTHON.fullmatch(Path(word).name):
            return _of_python(words[at + 1 :])
        if word.endswith(".py"):
            return _read(word, Path(word))
    return None


def _of_python(words: Sequence[str]) -> tuple[str, Path, str] | None:
    """Return what Python runs, by its arguments."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "-c" and left:
            return "python -c", Path("-c"), left[0]
        if word == "-m" and left:
            path = Path(*left[0].split("."))
            file = path.with_suffix(".py")
            return _read(f"-m {left[0]}", file if file.is_file() else path / "__main__.py")
        if word in ("-X", "-W", "--check-hash-based-pycs"):
            del left[:1]
        elif not word.startswith("-"):
            return _read(word, Path(word))
    return None


def _read(shown: str, path: Path) -> tuple[str, Path, str] | None:
    try:
        return shown, path, path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _imported(path: Path, source: str) -> set[str]:
    """Return the first names of all modules that a program imports, also in its own modules."""
    folder, roots = path.parent, set[str]()
    todo, seen = [(path, source)], {path}
    while todo and len(seen) < _MOST_FILES:
        file, text = todo.pop()
        for name in _names(file, text, folder):
            roots.add(name.partition(".")[0])
            for one in _files(folder, name):
                read = None if one in seen else _read("", one)
                seen.add(one)
                if read:
                    todo.append((one, read[2]))
    return roots


def _names(file: Path, text: str, folder: Path) -> Iterator[str]:
    """Yield the full names of the modules that a file imports, and what it imports of them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = list(file.relative_to(folder).parts[:-1])
            package = above[: len(above) + 1 - node.level] if node.level else []
            base = ".".join([*package, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.args[0].value


def _files(folder: Path, name: str) -> Iterator[Path]:
    """Yield the files in a folder that an import of a module would run."""
    parts = [part for part in name.split(".") if part]
    for length in range(1, len(parts) + 1):
        path = folder.joinpath(*parts[:length])
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                yield file
