"""Trace one all_reduce: the files of Python, C and Go that it passes through, and core calls.

    python tools/way/way.py

It needs an environment with the package, torch and an MPI, and Go, gcc and binutils on PATH.

The core is built once more, with Go's coverage counters and a call at the entry of every C function
(gcc), and runs on two ranks. What these count during one call on rank 0 is the trace. It includes
Go files whose only part is to say that their algorithm does not apply.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CASES = {
    "numpy": "`dist.all_reduce(array)`: NumPy, synchronous",
    "ddp": "the all_reduce of a DDP backward: torch, asynchronous",
}
MODULE = "github.com/paddlempi/paddlempi/"


def run(*command: str | Path, **named: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, **named)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def build(folder: Path) -> Path:
    """Copy the package, and build a core that records its functions; return the core's path."""
    package = folder / "lib" / "paddlempi"
    shutil.copytree(ROOT / "python" / "paddlempi", package)
    for module in (ROOT / "python").glob("*.py"):
        shutil.copy(module, package.parent)
    exported = folder / "way.map"
    exported.write_text("{ global: PyInit__core; pmpi_way_*; local: *; };")
    core = package / "_core.abi3.so"
    flags = "-g -O2 -finstrument-functions -DPMPI_WAY"
    env = {**os.environ, "CGO_ENABLED": "1", "CGO_CFLAGS": flags}
    run(
        *("go", "build", "-buildmode=c-shared", "-tags", "pymodule,way,grpcnotrace"),
        *("-cover", "-covermode=atomic", f"-coverpkg={MODULE}..."),
        *("-ldflags", f"-extldflags '-Wl,--version-script={exported}'", "-o", core, "./capi"),
        cwd=ROOT,
        env=env,
    )
    return core


def trace(case: str, core: Path, folder: Path) -> tuple[list[str], list[str], list[str], int]:
    """Trace a case: its files of Python, C and Go, and how often C called Go on rank 0."""
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": str(core.parents[1]), "GOCOVERDIR": str(folder)}
    probe = ROOT / "tools" / "way" / "probe.py"
    launch = [sys.executable, "-m", "paddlempi.testing.launch", "-np", "2", "--"]
    run(*launch, "python", probe, case, folder, env=env, cwd=folder)
    python = [
        f"python/paddlempi/{name}" for name in json.loads((folder / "python.json").read_text())
    ]
    addresses = (folder / "c").read_text().split()
    lines = run("addr2line", "-f", "-e", core, *addresses).split("\n")
    functions = zip(lines[::2], lines[1::2], strict=False)
    c = {file for name, where in functions for file in defining(name, where)}
    text = folder / "cover.txt"
    run("go", "tool", "covdata", "textfmt", f"-i={folder}", f"-o={text}", cwd=ROOT)
    go, crossings = set(), 0
    entries = exported_lines()
    for line in text.read_text().splitlines()[1:]:
        found = re.match(rf"{MODULE}(\S+):(\d+)\.\d+,\S+ \d+ (\d+)$", line)
        if found is None or found[3] == "0" or found[1].endswith("way.go"):
            continue
        go.add(found[1])
        if found[1] == "capi/export.go" and int(found[2]) in entries:
            crossings += int(found[3])
    return python, sorted(c), sorted(go), crossings


@cache
def c_sources() -> dict[str, str]:
    found = [*(ROOT / "capi").glob("*.[ch]"), *(ROOT / "gocore").rglob("*.[ch]")]
    return {
        str(file.relative_to(ROOT)): file.read_text()
        for file in found
        if file.stem != "way" and "cudafake" not in file.parts
    }


def defining(name: str, where: str) -> list[str]:
    """Return the file of this tree that defines a C function, in a list, or an empty list.

    Args:
        name: the function.
        where: what addr2line says of its file; "??" or nothing for some inline functions.
    """
    file_name = where.partition(":")[0]
    body = re.compile(rf"^\w[^;{{}}=]*\b{re.escape(name)}\([^;{{}}]*\)\s*\{{", re.MULTILINE)
    found = [file for file, text in c_sources().items() if name and body.search(text)]
    return [file for file in found if file_name in ("", "??", Path(file).name)][:1]


def exported_lines() -> set[int]:
    """Return the line numbers of export.go at which an exported function begins."""
    lines = (ROOT / "capi" / "export.go").read_text().splitlines()
    return {i + 2 for i, line in enumerate(lines) if line.startswith("//export")}


def main() -> None:
    """Print the trace of each case."""
    with tempfile.TemporaryDirectory() as name:
        core = build(Path(name))
        for case, title in CASES.items():
            python, c, go, crossings = trace(case, core, Path(name, case))
            count = len(python) + len(c) + len(go)
            print(f"**{title}**: {count} files, {crossings} calls of the core\n")
            for language, files in (("Python", python), ("C", c), ("Go", go)):
                print(f"* {language} ({len(files)}): {', '.join(f'`{file}`' for file in files)}")
            print()


main()
