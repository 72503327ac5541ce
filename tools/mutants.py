"""Count how many mutants of the core the tests catch.

    python tools/mutants.py COUNT [SEED [ENVIRONMENTS [STAGE,STAGE...]]]

ENVIRONMENTS is the tree whose environments are used; it is this one by default. A mutant is one
changed operator or constant in a Go file of the core, in a copy of the tree. Each goes through the
stages until one of them fails: then it is caught. The table that is printed has the stage that
caught each mutant. The copy is removed. To see what a setting adds, name it after the others.

The unchanged tree goes first. It must pass all stages, and its seconds limit those of the mutants.
A stage has to fail twice, or to come to its limit once, which is marked: the mutant hangs, or the
machine has become slower.
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
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    *("arrive", "buffer", "channel", "coll", "group", "heap"),
    *("mem", "messages", "reduce", "segment", "work", "world"),
)
# A stage may take SLOWER times the seconds of the unchanged tree, and always LIMIT seconds.
LIMIT = 90
SLOWER = 3

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

# The MPI, the number of ranks (0: a pytest in one process), and the tests that they run.
STAGES: dict[str, tuple[str, int, str] | None] = {
    "go": None,
    **{
        f"{mpi}-{ranks}": (mpi, ranks, "tests/ranks/core")
        for mpi in ("openmpi", "mpich", "impi")
        for ranks in (1, 2, 3, 4)
    },
    "device": ("openmpi", 2, "tests/ranks/cuda"),
    "torch": ("openmpi", 2, "tests/ranks/torch"),
    "jobs": ("openmpi", 0, "tests/jobs/core"),
    "device-jobs": ("openmpi", 0, "tests/jobs/cuda"),
}
CHOSEN = "go,openmpi-2,mpich-3,device,torch,jobs,device-jobs"


# The names and the commands of the stages that the mutants go through.
Stages = list[tuple[str, list[str]]]


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


def run(command: list[str], tree: Path, limit: float, **env: str) -> str:
    """Return "" if a command succeeds, else "failed" or "limit"."""
    started = subprocess.Popen(
        command,
        cwd=tree,
        env={**os.environ, **env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=os.setpgrp,  # not a new session, because Linux ignores nice between sessions
    )
    try:
        return "failed" if started.wait(limit) else ""
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGTERM)  # launch ends its ranks
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(60)
        return "limit"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)


def fails(command: list[str], tree: Path, limit: float) -> str:
    """Return why a stage fails; "" if it passes once. A busy machine may miss a deadline once."""
    why = run(command, tree, limit, PYTHONPATH=str(tree / "python"))
    if why == "failed":
        why = run(command, tree, limit, PYTHONPATH=str(tree / "python"))
    return why


def build(tree: Path) -> bool:
    """Build all, and the core into the tree's Python package. Tell whether it worked."""
    core = ["go", "build", "-buildmode=c-shared", "-tags", "pymodule,grpcnotrace"]
    core += ["-o", "python/paddlempi/_core.abi3.so", "./capi"]
    limit = SLOWER * LIMIT
    return not (
        run(["go", "vet", "./gocore/..."], tree, limit) or run(core, tree, limit, CGO_ENABLED="1")
    )


def commands(environments: Path, names: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Return the name and the command of every stage that is named."""
    for name in names:
        stage = STAGES[name]
        if stage is None:
            yield name, ["go", "test", "-timeout", "0", "./gocore/..."]
            continue
        mpi, ranks, tests = stage
        python = str(environments / f".venv-{mpi}" / "bin" / "python")
        pytest = ["-m", "pytest", "-q", "-x", "--color=no", tests]
        if ranks:
            launch = [python, "-m", "paddlempi.testing.launch", "-np", str(ranks), "--", "python"]
            yield name, [*launch, *pytest, "--mpi", "--mpi-ranks", str(ranks)]
        else:
            yield name, [python, *pytest, "--numprocesses", "4", "--reruns", "1"]


def copy(tree: Path, environments: Path) -> None:
    """Copy this tree to a new folder."""
    made = shutil.ignore_patterns(".venv*", ".debian-mpi", ".git", ".test-results")
    shutil.copytree(ROOT, tree, ignore=made)
    for environment in environments.glob(".venv-*"):  # some tests look for another MPI's
        (tree / environment.name).symlink_to(environment)


def time_unchanged(tree: Path, stages: Stages) -> dict[str, float]:
    """Run the unchanged tree, which must pass all stages. Return the limit of each stage."""
    limits = {}
    if not build(tree):
        raise SystemExit("the unchanged tree does not compile")
    for name, command in stages:
        start = time.monotonic()
        if why := fails(command, tree, 10 * LIMIT):
            raise SystemExit(f"the unchanged tree does not pass: {name}: {why}")
        seconds = time.monotonic() - start
        limits[name] = max(LIMIT, SLOWER * seconds)
        print(f"unchanged    {name}: {seconds:.0f} s", flush=True)
    return limits


def catch(mutant: Mutant, tree: Path, stages: Stages, limits: dict[str, float]) -> str | None:
    """Return the stage that catches a mutant; "" if none does; None if it does not compile."""
    unchanged = (tree / mutant.file).read_text()
    lines = unchanged.splitlines()
    lines[mutant.line] = mutant.text
    (tree / mutant.file).write_text("\n".join(lines) + "\n")
    try:
        if not build(tree):
            return None
        for name, command in stages:
            if why := fails(command, tree, limits[name]):
                return name if why == "failed" else f"{name} limit"
        return ""
    finally:
        (tree / mutant.file).write_text(unchanged)


def main(count: int, seed: int, environments: Path, names: list[str]) -> None:
    """Print how each mutant was caught, and the sums."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        # One folder for all mutants, so that Go compiles and tests only what a mutant changes.
        tree = Path(folder, "tree")
        copy(tree, environments)
        stages = list(commands(environments, names))
        limits = time_unchanged(tree, stages)
        for mutant in mutants(random.Random(seed)):
            if found.total() == count:
                break
            stage = catch(mutant, tree, stages, limits)
            if stage is None:
                continue
            found[stage or "NOT CAUGHT"] += 1
            print(f"{stage or 'NOT CAUGHT':12} {mutant}", flush=True)
    print(", ".join(f"{stage}: {n}" for stage, n in found.most_common()))


count, seed, environments, names = [*sys.argv[1:], *("1", str(ROOT), CHOSEN)[len(sys.argv) - 2 :]]
main(int(count), int(seed), Path(environments).resolve(), names.split(","))
