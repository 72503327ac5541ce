"""Summarize the results of a run of tests: ``tools/results.py [FOLDER [GROUP...]]``.

FOLDER (.test-results) has NAME.group.json for each group, which tools/matrix writes, and NAME.xml
(pytest's JUnit) or NAME.json (``go test -json``). A group of a plain command has neither. The
folder ``first`` in it has the first results of a group that failed and was started a second time.
The second attempt counts. It prints a line for each group; what failed, with the command that runs
it again; and what passed only at its second try. FOLDER/results.json has the numbers of all groups.

The exit status is 1, and the number before "failed" in the last line is not 0, if a test or a
command failed, a report is missing, no test of a group passed, the reason of a skip is not in
tests/expected_skips.txt, or more than three tests that are not in tests/known_flakes.txt passed at
their second try only.

``--budget [FOLDER|FILE]`` prints which groups took more CPU time than the table gives them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
SLOWEST = 10
FLAKES = 3
"""How many tests that are no known flakes may pass at their second try only."""
FAR_OVER = 1.5
"""A group is reported that took that many times its budget."""
SAID = {"wall", "cpu", "status", "attempts", "budget", "again", "left_out"}
"""What a Group has from NAME.group.json."""
NO_REPORT = "ended without a report"
# A property of pytest-rerunfailures' first attempt, which has no other trace of its failure in the
# JUnit file. tests/conftest.py writes it.
FIRST_FAILURE = "first_failure"


@dataclass
class Outcome:
    """What one file of results says. Tests that failed have the first line of their failure."""

    seconds: dict[str, float] = field(default_factory=dict)  # of every test that was not skipped
    failed: dict[str, str] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    retried: dict[str, str] = field(default_factory=dict)  # the failures of their first tries
    wall: float = 0.0
    output: str = ""  # of what failed, if no one has seen it

    @property
    def passed(self) -> list[str]:
        """Return the tests that passed."""
        return [test for test in self.seconds if test not in self.failed]


@dataclass
class Group(Outcome):
    """The results of a group, and what its run took."""

    name: str = ""
    cpu: float = 0.0
    status: int = 0
    attempts: int = 1
    budget: float | None = None
    again: str = "make test-{name}"
    left_out: str | None = None
    wrong: list[str] = field(default_factory=list)  # what is no failure of a test
    plain: bool = False

    @property
    def passes(self) -> int:
        """Return the number of tests that passed; a plain command is one."""
        return int(self.status == 0) if self.plain else len(self.passed)

    def line(self) -> str:
        """Return the line that summarizes the group."""
        if self.left_out:
            return f"{self.name:24} left out: {self.left_out}"
        failed = len(self.failed) + len(self.wrong)
        budget = "-" if self.budget is None else f"{self.budget:.0f}"
        counts = f"{self.passes:6} {failed:6} {self.skipped.total():7} {len(self.retried):5}"
        line = f"{self.name:24} {counts} {self.wall:6.0f} {self.cpu:6.0f} {budget:>6}"
        if self.budget is None or self.cpu <= FAR_OVER * self.budget:
            return line
        if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
            return f"\033[31m{line}\033[0m"
        return f"{line}  over budget"

    def command(self, test: str = "") -> str:
        """Return the command that runs a test again, or the whole group."""
        if not test and "{test}" in self.again:
            return f"make test-{self.name}"
        path = shlex.quote(path_of(test)).replace("$", "$$")  # make takes a dollar for its own
        return self.again.replace("{test}", path).replace("{name}", self.name)


def first_line(text: str | None) -> str:
    """Return the first line of a text that has something in it, not longer than a screen."""
    line = next((line.strip() for line in (text or "").splitlines() if line.strip()), "")
    return line if len(line) <= 200 else f"{line[:197]}..."


CRASH = re.compile(r"\bSIG(SEGV|BUS|ABRT|ILL|FPE): |\bfatal error: ")
"""How a dump of Go's begins. It may not come again, so its stack has to be in what CI prints."""


def gist(text: str | None) -> str:
    """Return the first line of a failure; of a crash as many lines as have the stack."""
    first = first_line(text)
    if not CRASH.search(first):
        return first
    lines = [line for line in (text or "").splitlines() if line.strip()]
    return "\n    ".join([first, *map(first_line, lines[1:40])])


def path_of(test: str) -> str:
    """Return what pytest calls a test that JUnit calls package.module.Class::name."""
    where, _, name = test.partition("::")
    parts = where.split(".")
    for count in range(len(parts), 0, -1):
        path = "/".join(parts[:count]) + ".py"
        if (ROOT / path).is_file():
            return "::".join([path, *parts[count:], *([name] if name else [])])
    return test


def read_junit(path: Path) -> Outcome:
    """Read what ``pytest --junitxml`` wrote.

    pytest-rerunfailures writes each try as a case of the same name. A try before the last one has
    no failure in it, not even an empty one. A test whose teardown failed, too, has two cases.
    """
    found = Outcome()
    tries: dict[str, list[ElementTree.Element]] = {}
    try:
        tree = ElementTree.parse(path)
    except ElementTree.ParseError:
        found.failed[f"{path.stem}::{NO_REPORT}"] = "its file is empty or ends early"
        return found
    found.wall = sum(float(suite.get("time", 0)) for suite in tree.iter("testsuite"))
    for case in tree.iter("testcase"):
        test = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        tries.setdefault(test, []).append(case)
    for test, cases in tries.items():
        wrong = [e for case in cases for e in case if e.tag in ("failure", "error")]
        if len(cases) > 1 and not any(e.tag in ("failure", "error") for e in cases[0]):
            names = f"properties/property[@name='{FIRST_FAILURE}']"
            said = [e.get("value") for case in cases for e in case.findall(names)]
            found.retried[test] = gist(said[0] if said else "") or "its failure is not told"
        skipped = cases[-1].find("skipped")
        if skipped is not None and not wrong:
            found.skipped[skipped.get("message", "")] += 1
            continue
        found.seconds[test] = sum(float(case.get("time", 0)) for case in cases)
        if wrong:
            found.failed[test] = gist(wrong[0].get("message") or wrong[0].text)
    return found


def read_go(path: Path) -> Outcome:
    """Read what ``go test -json`` wrote. What go and the compiler say is in no other place."""
    found = Outcome()
    times: list[float] = []
    times_of: dict[tuple[str, str], float] = {}
    outputs: dict[tuple[str, str], list[str]] = {}
    failed: dict[tuple[str, str], list[str]] = {}
    for text in path.read_text().splitlines():
        if not text.startswith("{"):
            found.output += f"{text}\n"
            continue
        event = json.loads(text)
        key = (event.get("Package", event.get("ImportPath", "")), event.get("Test", ""))
        if "Time" in event:
            times.append(datetime.fromisoformat(event["Time"][:19]).timestamp())
        action = event["Action"]
        if action in ("output", "build-output"):
            outputs.setdefault(key, []).append(event["Output"])
        elif action in ("fail", "build-fail"):
            built = (event.get("FailedBuild", ""), "")
            failed.pop(built, None)
            failed[key] = outputs.get(built, []) + outputs.get(key, [])
        if action in ("pass", "fail") and key[1]:
            times_of[key] = event.get("Elapsed", 0.0)
        elif action == "skip" and key[1]:
            found.skipped[" ".join(line.strip() for line in told(outputs[key]))] += 1
    for (package, test), lines in failed.items():
        found.output += "".join(lines)
        # A package fails with its tests, and a test with those that it has started.
        below = f"{test}/" if test else ""
        if any(p == package and t != test and t.startswith(below) for p, t in failed):
            times_of.pop((package, test), None)
        else:
            found.failed[f"{package} {test}".strip()] = first_line("".join(told(lines)))
    found.seconds = {" ".join(key): seconds for key, seconds in times_of.items()}
    if not times:
        found.failed[f"{path.stem}::{NO_REPORT}"] = first_line(found.output)
    found.wall = max(times, default=0.0) - min(times, default=0.0)
    return found


def told(lines: Iterable[str]) -> list[str]:
    """Return the output of a Go test without what go adds to it."""
    return [line for line in lines if not line.startswith(("=== ", "--- ", "FAIL", "PASS"))]


def read(folder: Path, name: str) -> Group:
    """Read all about a group; what failed at its first attempt is retried at the second one."""
    path = folder / f"{name}.group.json"
    said = json.loads(path.read_text()) if path.exists() else {}
    group = Group(**{"name": name, **{key: said[key] for key in SAID & said.keys()}})
    if group.left_out:
        group.skipped[group.left_out] += 1
        return group
    if group.attempts == 0:
        group.wrong.append("it did not run, because what it needs could not be made")
        return group
    files = [path for s in ("xml", "json") if (path := folder / f"{name}.{s}").exists()]
    group.plain = not files
    for path in files:
        reader = read_junit if path.suffix == ".xml" else read_go
        last, before = reader(path), folder / "first" / path.name
        if group.attempts == 2 and before.exists():
            first = reader(before)
            failed = first.failed or {f"{name}::failed after its tests": "no test failed"}
            last.retried |= {**first.retried, **failed}
            if first.output:
                last.output = f"{name}, its first attempt:\n{first.output}{last.output}"
        group.wall = group.wall or last.wall
        for part in ("seconds", "failed", "skipped", "retried"):
            getattr(group, part).update(getattr(last, part))
        group.output += last.output
    if group.plain and group.status:
        log = folder / f"{name}.log"
        lines = log.read_text(errors="replace").strip().splitlines()[-3:] if log.exists() else []
        group.wrong.append("\n  ".join([f"its command ended with status {group.status}", *lines]))
    elif group.status and not group.failed:
        group.wrong.append(f"status {group.status}, though no test failed")
    elif not group.plain and not group.passed and not group.failed:
        group.wrong.append("not one test passed")
    return group


def names_in(folder: Path) -> list[str]:
    """Return the names of the groups that left something in a folder."""
    files = [*folder.glob("*.json"), *folder.glob("*.xml")]
    return sorted({path.name.partition(".")[0] for path in files} - {"tier", "results"})


def rules_of(name: str) -> list[str]:
    """Return the lines of a file in tests that are no comments."""
    lines = (ROOT / "tests" / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def cause(test: str, flakes: list[str]) -> str | None:
    """Return why a test may fail and pass when it is tried again; None if nobody has noted it."""
    for rule in flakes:
        pattern, why = rule.split(": ", 1)
        if re.fullmatch(pattern, test):
            return why
    return None


def passed_at_last(group: Group) -> dict[str, str]:
    """Return the tests of a group that failed, and passed when they were tried again."""
    passed = set(group.passed)
    at_last = {test: why for test, why in group.retried.items() if test in passed}
    if group.status == 0:  # what is no test has passed with the whole group
        at_last |= {test: why for test, why in group.retried.items() if test not in group.seconds}
    return at_last


def print_tries(groups: list[Group], flakes: list[str]) -> list[str]:
    """Print what passed at its second try only; return what is wrong with that."""
    unknown = []
    for group in groups:
        for test, failure in passed_at_last(group).items():
            if why := cause(test, flakes):
                print(f"{group.name}: tried twice: {test} (a known flake: {why})")
            else:
                unknown.append(f"  {group.name}: {test}: {failure}")
    if unknown:
        print("passed only at the second try, and not known:", *unknown, sep="\n")
    if len(unknown) > FLAKES:
        return [f"{len(unknown)} tests passed only at the second try; at most {FLAKES} may"]
    return []


def print_failures(groups: list[Group], expected: list[re.Pattern[str]]) -> list[str]:
    """Print what failed, and how to run it again. Return the skips that nobody expected."""
    complaints = []
    for group in groups:
        for what, why in [*group.failed.items(), *((wrong, "") for wrong in group.wrong)]:
            print(f"FAILED {group.name}: {what}{f': {why}' if why else ''}")
            print(f"  again: {group.command(what if what in group.seconds else '')}")
        for reason, count in {} if group.left_out else group.skipped.items():
            if not any(rule.fullmatch(f"{group.name}: {reason}") for rule in expected):
                complaints.append(f"{group.name}: unexpected skip ({count}): {reason}")
    return complaints


def tier_of(folder: Path) -> dict[str, Any]:
    """Return what tools/matrix says of the whole run, if it was a tier."""
    path = folder / "tier.json"
    said: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return said


def cpu_model() -> str:
    """Return the name of this machine's processor."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.machine()


def summary(groups: list[Group], tier: dict[str, Any]) -> dict[str, Any]:
    """Return what results.json has."""
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    timed = "began" in tier and "ended" in tier
    return {
        "wall": tier["ended"] - tier["began"] if timed else sum(g.wall for g in groups),
        "cpu": tier.get("cpu_used", sum(g.cpu for g in groups)),
        "load": os.getloadavg(),
        "cpu_model": cpu_model(),
        "commit": commit or None,
        "groups": [
            {
                "name": group.name,
                "wall": group.wall,
                "cpu": group.cpu,
                "budget": group.budget,
                "passed": group.passes,
                "failed": [*group.failed, *group.wrong],
                "skipped": dict(group.skipped),
                "tried_twice": [{"test": t, "first_failure": f} for t, f in group.retried.items()],
                "slowest": [
                    {"test": test, "seconds": seconds}
                    for test, seconds in sorted(group.seconds.items(), key=lambda x: -x[1])
                ][:SLOWEST],
            }
            for group in groups
        ],
    }


def report(folder: Path, names: list[str]) -> int:
    """Print the closing lines of all groups, or of some. Return the exit status."""
    groups = [read(folder, name) for name in names or names_in(folder)]
    for group in groups:
        print(group.output, end="")
    print(f"{'group':24} passed failed skipped twice wall s  CPU s budget")
    print(*(group.line() for group in groups), sep="\n")
    complaints = [] if groups else [f"no results in {folder}"]
    complaints += print_failures(groups, [re.compile(r) for r in rules_of("expected_skips.txt")])
    complaints += print_tries(groups, rules_of("known_flakes.txt"))
    for complaint in complaints:
        print(complaint)
    whole = summary(groups, {} if names else tier_of(folder))
    if groups and not names:
        (folder / "results.json").write_text(json.dumps(whole, indent=1) + "\n")
    passed = sum(group.passes for group in groups)
    failed = sum(len(group.failed) + len(group.wrong) for group in groups) + len(complaints)
    skipped = sum(group.skipped.total() for group in groups)
    print(f"wall {whole['wall']:.0f} s, CPU {whole['cpu']:.0f} s")
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


def budget(place: Path) -> int:
    """Print which groups of a run, whose results were written, took more than their budget."""
    path = place / "results.json" if place.is_dir() else place
    if not path.is_file():
        print(f"{path} is not there: run a tier first, as make test", file=sys.stderr)
        return 1
    whole = json.loads(path.read_text())
    given = [group for group in whole["groups"] if group["budget"] is not None]
    over = [group for group in given if group["cpu"] > group["budget"]]
    rows = [(g["name"], g["cpu"], g["budget"]) for g in sorted(over, key=lambda g: -g["cpu"])]
    rows.append(("all groups", *(sum(group[key] for group in given) for key in ("cpu", "budget"))))
    tier = tier_of(path.parent)
    rows += [
        (f"tier {tier['tier']}, {k}", whole[k], tier[k]) for k in ("wall", "cpu") if tier.get(k)
    ]
    print(f"{len(over)} of {len(given)} groups are over their budget of CPU seconds")
    for name, took, most in rows:
        print(f"{name:24} {took:6.0f} s of {most:.0f}{': over budget' if took > most else ''}")
    if tier:
        print(f"others used {tier.get('foreign_cpu', 0.0):.0f} CPU s of this machine meanwhile")
    return 0


def main(arguments: list[str]) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".test-results")
    parser.add_argument("groups", nargs="*", help="report these only (default: all)")
    parser.add_argument("--budget", nargs="?", type=Path, const=ROOT / ".test-results")
    options = parser.parse_args(arguments)
    return budget(options.budget) if options.budget else report(options.folder, options.groups)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
