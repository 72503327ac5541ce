"""Count how many mutants of the core the tests catch.

    python tools/mutants.py COUNT [SEED]

Run it at the root of a tree whose environments are made. A mutant is a copy of the tree with one
changed operator or constant in a Go file of the core. Each goes through the stages below until one
of them fails: then it is caught. The table that is printed has the stage that caught each mutant.
The copies are removed.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("arrive", "channel", "coll", "group", "mem", "reduce", "segment", "work")
# Seconds that a stage may take. A mutant that hangs is caught.
LIMIT = 400

CHANGES = (
    (r" == ", " != "),
    (r" != ", " == "),
    (r" < ", " <= "),
    (r" <= ", " < "),
    (r" > ", " >= "),
    (r" >= ", " > "),
    (r" && ", " || "),
    (r" \|\| ", " && "),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r"\bmin\(", "max("),
    (r"\bmax\(", "min("),
    (r"\+\+$", "--"),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r"([^&])&([^&^ ])", r"\1|\2"),
)

# A name, the environment, the number of ranks, and the tests that they run.
STAGES = (
    ("2 ranks", ".venv-openmpi", 2, "tests/ranks/core"),
    ("3 ranks", ".venv-mpich", 3, "tests/ranks/core"),
    ("device", ".venv-openmpi", 2, "tests/ranks/cuda"),
    ("torch", ".venv-openmpi", 2, "tests/ranks/torch"),
    ("jobs", ".venv-openmpi", 0, "tests/jobs/core"),
)


class Mutant(NamedTuple):
    """One changed line."""

    file: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line + 1}: {self.text.strip()}"


def mutants(chance: random.Random) -> Iterator[Mutant]:
    """Draw mutants, each of another file than the one before if there are several."""
    while True:
        files = [
            file
            for room in ROOMS
            for file in sorted((ROOT / "gocore" / room).rglob("*.go"))
            if not file.name.endswith("_test.go")
        ]
        chance.shuffle(files)
        for file in files:
            found = []
            for number, line in enumerate(file.read_text().splitlines()):
                if line.lstrip().startswith("//") or '"' in line:
                    continue
                code = line.split(" // ")[0]
                changed = (re.subn(pattern, to, code, count=1) for pattern, to in CHANGES)
                found += [Mutant(file.relative_to(ROOT), number, text) for text, n in changed if n]
            if found:
                yield chance.choice(found)


def run(command: list[str], tree: Path, **env: str) -> bool:
    """Whether a command succeeds within the limit."""
    started = subprocess.Popen(
        command,
        cwd=tree,
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return started.wait(LIMIT) == 0
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGTERM)  # launch ends its ranks
        return started.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


def build(tree: Path) -> bool:
    """Build the core into the Python package of the tree."""
    command = ["go", "build", "-buildmode=c-shared", "-tags", "pymodule"]
    command += ["-o", "python/paddlempi/_core.abi3.so", "./capi"]
    return run(command, tree, CGO_ENABLED="1")


def catch(tree: Path) -> str:
    """Return the stage that catches the mutant in the tree; "" if none does."""
    if not run(["go", "build", "./..."], tree):
        return "compiler"
    if not run(["go", "test", "-timeout", "200s", "./gocore/..."], tree):
        return "go"
    if not build(tree):
        return "compiler"
    for name, venv, ranks, tests in STAGES:
        python = str(ROOT / venv / "bin" / "python")
        pytest = ["-m", "pytest", "-q", "-x", "--color=no", tests]
        if ranks:
            launch = [python, "-m", "paddlempi.testing.launch", "-np", str(ranks), "--", "python"]
            command = [*launch, *pytest, "--mpi", "--mpi-ranks", str(ranks)]
        else:
            command = [python, *pytest, "--numprocesses", "4", "--reruns", "1"]
        if not run(command, tree, PYTHONPATH=str(tree / "python")):
            return name
    return ""


def main(count: int, seed: int) -> None:
    """Print how each mutant was caught, and the sums."""
    found: Counter[str] = Counter()
    for mutant in mutants(random.Random(seed)):
        if sum(found.values()) == count:
            break
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder, "tree")
            shutil.copytree(
                ROOT, tree, ignore=shutil.ignore_patterns(".venv*", ".git", ".test-results")
            )
            lines = (tree / mutant.file).read_text().splitlines()
            lines[mutant.line] = mutant.text
            (tree / mutant.file).write_text("\n".join(lines) + "\n")
            stage = catch(tree)
        if stage == "compiler":
            continue
        found[stage or "NOT CAUGHT"] += 1
        print(f"{stage or 'NOT CAUGHT':12} {mutant}", flush=True)
    print(", ".join(f"{stage}: {n}" for stage, n in found.most_common()))


main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
