"""Summarize the results of the tests: one line for each run, failures, unexpected skips.

`tools/results.py FOLDER|FILE...` reads pytest's JUnit files and `go test -json` output. It prints
the seconds of every run, and the slowest runs at the end. The exit status is 1 if a test failed, if
no test of a run passed, or if the reason of a skip is not in tests/expected_skips.txt.

A run that failed is started a second time, which counts. The results of its first attempt are in
the folder `first` beside those of the second. What failed in it is reported as tried twice, with
its cause from tests/known_flakes.txt.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
SLOWEST = 10


@dataclass
class Run:
    """The results of one run of pytest or go test."""

    name: str
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    rerun: list[str] = field(default_factory=list)
    wall: float = 0.0  # seconds from its beginning to its end, of both attempts if there are two

    def line(self) -> str:
        """Return the line that summarizes the run."""
        counts = f"{self.passed} passed, {len(self.failed)} failed, {self.skipped.total()} skipped"
        if self.rerun:
            counts += f", {len(self.rerun)} tried twice"
        return f"{self.name:24} {counts} in {self.wall:.0f} s"


def read_junit(path: Path) -> Run:
    """Read what `pytest --junitxml` wrote. An empty file counts as a failure."""
    run = Run(path.stem)
    if path.stat().st_size == 0:
        run.failed.append("ended without a report")
        return run
    cases: dict[str, ElementTree.Element] = {}
    tree = ElementTree.parse(path)
    run.wall = sum(float(suite.get("time", 0)) for suite in tree.iter("testsuite"))
    for case in tree.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        if name in cases:  # pytest-rerunfailures writes each attempt; the last one counts
            run.rerun.append(name)
        cases[name] = case
    for name, case in cases.items():
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            run.failed.append(name)
        elif skipped is not None:
            run.skipped[skipped.get("message", "")] += 1
        else:
            run.passed += 1
    return run


def read_go(path: Path) -> Run:
    """Read what `go test -json` wrote. Print the output of the tests and packages that failed."""
    run = Run(path.stem)
    times: list[float] = []
    output: dict[tuple[str, str], list[str]] = {}
    for text in path.read_text().splitlines():
        if not text.startswith("{"):
            print(text)  # a message of the compiler, which is not JSON
            continue
        event = json.loads(text)
        key = (event.get("Package", event.get("ImportPath", "")), event.get("Test", ""))
        if "Time" in event:
            times.append(datetime.fromisoformat(event["Time"][:19]).timestamp())
        action = event["Action"]
        if action in ("output", "build-output"):
            output.setdefault(key, []).append(event["Output"])
        elif action in ("fail", "build-fail"):
            run.failed.append(" ".join(key).strip())
            print("".join(output.get(key, [])), end="")
        elif action == "pass":
            run.passed += bool(key[1])
        elif action == "skip" and key[1]:
            reason = [text.strip() for text in output[key] if not text.startswith(("=== ", "--- "))]
            run.skipped[" ".join(reason)] += 1
    run.wall = max(times, default=0.0) - min(times, default=0.0)
    return run


def read(path: Path) -> Run:
    """Read the results of a run, and those of its first attempt if that failed."""
    reader = read_junit if path.suffix == ".xml" else read_go
    run = reader(path)
    before = path.parent / "first" / path.name
    if before.exists():
        first = reader(before)
        run.rerun = [*(first.failed or ["failed after the tests"]), *run.rerun]
        run.wall += first.wall
    return run


def rules_of(name: str) -> list[str]:
    """Return the lines of a file in tests that are no comments."""
    lines = (ROOT / "tests" / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def cause(test: str, flakes: list[str]) -> str:
    """Return why a test may fail and pass when it is tried again, as far as that is known."""
    for rule in flakes:
        pattern, why = rule.split(": ", 1)
        if re.fullmatch(pattern, test):
            return f"a known flake: {why}"
    return "not in tests/known_flakes.txt: look for the cause"


def main(arguments: list[str]) -> int:
    """Print a line for each run, and what is wrong. Return the exit status."""
    files: list[Path] = []
    for argument in map(Path, arguments):
        files += sorted(argument.glob("*.*")) if argument.is_dir() else [argument]
    expected = [re.compile(rule) for rule in rules_of("expected_skips.txt")]
    flakes = rules_of("known_flakes.txt")

    runs = []
    complaints = [] if files else [f"no results in {' '.join(arguments)}"]
    for path in files:
        run = read(path)
        print(run.line())
        runs.append(run)
        for test in run.rerun:
            print(f"{'':24} tried twice: {test} ({cause(test, flakes)})")
        complaints += [f"{run.name}: failed: {test}" for test in run.failed]
        if run.passed == 0 and not run.failed:
            complaints.append(f"{run.name}: not one test passed")
        for reason, count in run.skipped.items():
            is_expected = any(rule.fullmatch(f"{run.name}: {reason}") for rule in expected)
            print(f"{'':24} {count} skipped: {reason}")
            if not is_expected:
                complaints.append(f"{run.name}: unexpected skip ({count}): {reason}")
    if len(runs) > SLOWEST:
        runs.sort(key=lambda run: -run.wall)
        print("the slowest: " + ", ".join(f"{r.name} {r.wall:.0f} s" for r in runs[:SLOWEST]))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
