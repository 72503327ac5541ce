"""Fuzz what reads the memory, messages and files of other processes.

`tools/fuzz.py SECONDS RESULTS` runs every fuzz target of the Go packages, each for its share of the
time, and writes the outcome to fuzz.json in the folder RESULTS. It goes on after a target that
failed. Go puts an input that fails into testdata/fuzz of its package: commit it with what mends it,
and it is tested for ever. Inputs that reach new code stay in Go's build cache for the next run.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEAST_SECONDS = 1.0
"""The least time of a target, so that each gets beyond its seeds."""
TRIES = 5
"""The most runs of a target that fails without an input: inputs that take seconds may do that."""


def targets() -> list[tuple[str, str]]:
    """Return the package and the name of every fuzz target."""
    found = []
    for path in sorted((ROOT / "gocore").rglob("*_test.go")):
        for name in re.findall(r"^func (Fuzz\w+)\(f \*testing.F\)", path.read_text(), re.M):
            found.append((f"./{path.parent.relative_to(ROOT)}", name))
    return found


def fuzz(command: list[str]) -> tuple[int, str]:
    """Run one target; return go's status and what it printed."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, done.stdout


def main(seconds: float, results: Path) -> int:
    """Run all targets. Return 1 if one failed, else 0."""
    every = targets()
    each = max(LEAST_SECONDS, seconds / len(every))
    failed = []
    with open(results / "fuzz.json", "w", encoding="utf-8") as report:
        for package, name in every:
            command = [
                *(sys.executable, str(ROOT / "tools" / "go.py"), "test", "-json", "-run", "^$"),
                *("-fuzz", f"^{name}$", "-fuzztime", f"{each:.0f}s"),
                # Minimizing an input that is only interesting takes a minute by default.
                *("-fuzzminimizetime", "100x", "-parallel", "1", package),
            ]
            for _ in range(TRIES):
                status, output = fuzz(command)
                # Go before 1.27 may take the end of the time for a failure: golang.org/issue/75804
                if status == 0 or "Failing input written" in output:
                    break
                print(f"{package} {name} failed without an input:\n{output}")
            report.write(output)
            if status:
                failed.append(f"{package} {name}")
    print(f"{len(every)} fuzz targets, {each:.0f} s each", flush=True)
    for name in failed:
        print(f"failed: {name}")
    return int(bool(failed))


sys.exit(main(float(sys.argv[1]), Path(sys.argv[2])))
