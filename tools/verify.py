"""Lint, format, generate, and check what is generated: ``python tools/verify.py VERB``.

The Python that runs it is that of .venv-verify, whose tools it calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
PYTHON = sys.executable
GO = (str(ROOT / ".venv-tools" / "bin" / "python"), "tools/go.py")
STATICCHECK = "honnef.co/go/tools/cmd/staticcheck@v0.8.2"
GO_FOLDERS = ("benchmarks", "capi", "gocore", "tests", "tools")
# What writes files from tables, and with --check compares them.
GENERATORS = (
    (*GO, "run", "./tools/opgen"),
    (PYTHON, "tools/layouts.py"),
    (PYTHON, "tools/rooms.py"),
    (PYTHON, "tools/fronts.py"),
    (PYTHON, "tools/settings.py"),
    (PYTHON, "tools/pspb.py"),
    (PYTHON, "tools/licenses.py"),
    (PYTHON, "tools/ptx/ptx.py"),
    (PYTHON, "tools/matrix", "document"),
)
# `make way` writes this one, which needs ranks and root.
CHECKED_ONLY = ((PYTHON, "tools/way/way.py", "--check"),)


def c_files() -> list[str]:
    """Return the files that clang-format formats: not generated ones, and not XLA's."""
    return sorted(
        str(path.relative_to(ROOT))
        for top in ("capi", "gocore", "tests", "benchmarks")
        for path in (ROOT / top).rglob("*.*")
        if path.suffix == ".cu"
        or (
            path.suffix in (".c", ".h") and path.name not in ("pmpi_ops.h", "op_gen.h", "xla_ffi.h")
        )
    )


def check(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that checks what a generator writes; opgen is Go's, with one dash."""
    return (*words, "-check" if "run" in words else "--check")


def commands(verb: str) -> list[tuple[str, ...]]:
    """Return the commands of a verb."""
    ruff, clang_format = str(BIN / "ruff"), str(BIN / "clang-format")
    if verb == "generate":
        return list(GENERATORS)
    if verb == "format":
        return [
            (ruff, "check", "--fix"),
            (ruff, "format"),
            (clang_format, "-i", *c_files()),
            (*GO, "run", "cmd/gofmt", "-w", *GO_FOLDERS),
        ]
    typed = "tests/typing/program.py"
    strict = (
        "--strict",
        "--config-file=",
        "--cache-dir",
        ".mypy_cache/typing",
        "--python-version",
        "3.10",
    )
    lint = [
        (ruff, "check"),
        (ruff, "format", "--check"),
        (str(BIN / "mypy"),),
        (str(BIN / "mypy"), *strict, typed),
        (str(BIN / "pyright"), "--pythonpath", PYTHON, "--project", "tests/typing"),
        (clang_format, "--dry-run", "-Werror", *c_files()),
        (*GO, "run", "cmd/gofmt", "-l", *GO_FOLDERS),
        (*GO, "vet", "./..."),
        (*GO, "run", STATICCHECK, "./..."),
    ]
    if verb == "lint":
        return lint
    return [*lint, *map(check, GENERATORS), *CHECKED_ONLY]


def passes(words: tuple[str, ...], env: dict[str, str]) -> bool:
    """Run a command. gofmt fails if it lists a file."""
    listing = "cmd/gofmt" in words and "-l" in words
    out = subprocess.PIPE if listing else None
    done = subprocess.run(words, cwd=ROOT, env=env, stdout=out, text=True)
    if listing and done.stdout:
        print(f"gofmt wants to change: {done.stdout}")
    return done.returncode == 0 and not (listing and done.stdout)


def main(verb: str) -> int:
    """Run all commands of a verb; return 1 if one has failed."""
    failed = []
    for words in commands(verb):
        env = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
        if "--strict" in words:
            env["MYPYPATH"] = "python"
        line = " ".join(word.replace(f"{ROOT}/", "") for word in words[:8])
        print(f"+ {line}{' ...' if len(words) > 8 else ''}", flush=True)
        if not passes(words, env) and not passes(words, env):  # some download what they need
            failed.append(line)
    for line in failed:
        print(f"FAILED {line}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
