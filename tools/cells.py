"""Count the cells that the rank tests reach: operation, algorithm, dtype, MPI.

    python tools/cells.py FILE [REVISION [ENVIRONMENTS [RUNS]]]

The runs of `.ci/run` in which a pytest runs in every rank are started one after another, over a
core that notes which algorithm it chooses for a collective. The cells go to FILE, one on a line, so
that `comm` compares the files of two revisions. REVISION is HEAD by default. ENVIRONMENTS is the
tree whose environments are used; it is this one by default. RUNS is a regular expression for the
commands of the runs; by default it takes all.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUN = re.compile(r"(\.venv-([\w-]+)/bin/python -m paddlempi\.testing\.launch [^;\n]*)")
# A busy machine may need more than the 60 seconds of a test.
PATIENCE = "--mpi-timeout=600"

NOTE = """package coll

import (
	"os"
	"sync"
)

var noted sync.Map

// Choose chooses, and appends every cell to a file once.
func Choose(s *Sig) (*Algorithm, error) {
	alg, err := choose(s)
	if err != nil {
		return alg, err
	}
	cell := s.Code.String() + " " + alg.Name + " " + s.DType.String() + "\\n"
	if _, known := noted.LoadOrStore(cell, true); !known {
		file, err := os.OpenFile(os.Getenv("CELLS"), os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			file.WriteString(cell)
			file.Close()
		}
	}
	return alg, nil
}
"""


def make_tree(tree: Path, revision: str) -> None:
    """Write the files of a revision to a folder, and build the core that notes its cells."""
    archive = subprocess.run(
        ["git", "archive", revision], cwd=ROOT, check=True, capture_output=True
    )
    tree.mkdir()
    subprocess.run(["tar", "x"], cwd=tree, input=archive.stdout, check=True)
    chooser = tree / "gocore" / "coll" / "coll.go"
    text, changed = re.subn(r"(?m)^func Choose\(", "func choose(", chooser.read_text())
    assert changed == 1, chooser
    chooser.write_text(text)
    (chooser.parent / "cells.go").write_text(NOTE)
    core = ["go", "build", "-buildmode=c-shared", "-tags", "pymodule,grpcnotrace"]
    main = "capi/main" if (tree / "capi" / "main").is_dir() else "capi"  # of older revisions
    core += ["-o", "python/paddlempi/_core.abi3.so", f"./{main}"]
    subprocess.run(core, cwd=tree, env={**os.environ, "CGO_ENABLED": "1"}, check=True)
    fake = ["gocore/cuda/cudafake/build.sh", "build/libcuda_fake.so"]
    subprocess.run(fake, cwd=tree, check=True)


def commands(tree: Path) -> str:
    """Return the commands of the tests that CI runs; before tools/matrix make printed them."""
    new = (tree / "tools" / "matrix").exists()
    words = ["python3", "tools/matrix", "list", "ci"] if new else ["make", "-n", "test"]
    return subprocess.run(words, cwd=tree, capture_output=True, text=True).stdout


def main(file: Path, revision: str, environments: Path, runs: str) -> None:
    """Run the rank tests and write the cells."""
    cells: set[str] = set()
    with tempfile.TemporaryDirectory() as folder:
        tree, noted = Path(folder, "tree"), Path(folder, "noted")
        make_tree(tree, revision)
        for command, mpi in RUN.findall(commands(tree)):
            if not re.search(runs, command):
                continue
            noted.write_text("")
            environment = {"PYTHONPATH": str(tree / "python"), "CELLS": str(noted)}
            done = subprocess.run(
                shlex.split(re.sub(r"--junitxml=\S+", PATIENCE, f"{environments}/{command}")),
                cwd=tree,
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
            )
            print(f"{done.stdout.strip().splitlines()[-1]}: {command}", flush=True)
            cells.update(f"{mpi} {line}" for line in noted.read_text().splitlines())
            file.write_text("".join(f"{cell}\n" for cell in sorted(cells)))
    count = Counter(cell.split()[0] for cell in cells)
    print(", ".join(f"{mpi}: {n}" for mpi, n in count.items()), f"together: {len(cells)}")


# A shell ignores it for what runs in the background; there the tests of Ctrl-C would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)
given = sys.argv[1:]
file, revision, environments, runs = [*given, *("HEAD", str(ROOT), "")[len(given) - 1 :]]
main(Path(file), revision, Path(environments).resolve(), runs)
