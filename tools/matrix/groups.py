"""The table of the tests, read from groups.txt beside this file, whose head says what a row has."""

from __future__ import annotations

import glob
import os
import platform
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import environments

LIST = Path(__file__).with_name("groups.txt")
TIERS = ("test", "ci", "all")
# Seconds of wall clock and of CPU on 2 cores that nobody else uses, each with the tiers before it.
BUDGETS = {"test": (1200, 2000), "ci": (2400, 4000)}
JOBS = min(8, len(os.sched_getaffinity(0)) + 1)
# Only tests/ranks/core has tests of hypothesis, whose plugin takes a second to load in every rank.
NO_HYPOTHESIS = ("-p", "no:hypothesispytest")
# What the variables are that rows name, if the environment has none.
SECONDS = {"SECONDS": "60", "FUZZ_SECONDS": "60"}


@dataclass(frozen=True)
class Group:
    """One row of the table."""

    name: str
    family: str
    tier: str
    kind: str
    """"ranks", "jobs", "pytest", "go" or "program"."""
    environment: str
    budget: int
    words: tuple[str, ...]
    shows: str
    ranks: int = 0
    mpi: str = ""
    """"node": ranks without MPI; "": the environment's MPI."""
    also: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    memory: float = 1.0
    on: str = ""
    alone: bool = False
    """Whether no other group runs beside it."""

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the things that must be made."""
        return (self.environment, *self.also)

    @property
    def twice(self) -> bool:
        """Tell whether the group is started again if it fails: its tests cannot be one by one."""
        return self.kind in ("ranks", "go")

    @property
    def report(self) -> str:
        """Return the suffix of the results that the group writes; "" if it writes none."""
        return {"go": "json", "program": ""}.get(self.kind, "xml")

    @property
    def again(self) -> str:
        """Return the command that runs one test again, or the group."""
        mpi = self.mpi or self.environment.partition(":")[0]
        if self.kind == "ranks":
            return f"make try MPI={mpi} NP={self.ranks} T={{test}}"
        if self.kind in ("jobs", "pytest"):
            return f"make try MPI={mpi} T={{test}}"
        return f"make test-{self.name}"

    def reason(self) -> str | None:
        """Return why this machine cannot run the group."""
        if self.on == "gpu" and not (glob.glob("/dev/nvidia[0-9]*") or glob.glob("/dev/dxg")):
            return "this machine has no GPU"
        if self.on == "x86_64" and platform.machine() != "x86_64":
            return "this machine is not of x86-64"
        return None

    def environment_variables(self) -> dict[str, str]:
        """Return the environment of the command."""
        found = environments.variables(self.environment.partition(":")[0]) | dict(self.env)
        if "fake-cuda" in self.also:
            found["CC"] = environments.c_compiler()
        return found

    def command(self, results: Path) -> list[str]:
        """Return the words of the command, which writes its results into a folder."""
        python = environments.python(self.environment.partition(":")[0])
        words = [word.replace("@results", str(results)) for word in self.words]
        if self.kind == "program":
            return [python if words[0] == "python" else words[0], *words[1:]]
        if self.kind == "go":
            return [python, "tools/matrix/go_tests.py", f"{results}/{self.name}.json", *words]
        pytest = ["-m", "pytest", "-q", "--color=no", f"--junitxml={results}/{self.name}.xml"]
        if "tests/ranks/core" not in words:
            pytest += NO_HYPOTHESIS
        if self.kind == "jobs":
            pytest += ["--numprocesses", str(JOBS), "--dist", "worksteal", "--reruns", "1"]
        if self.kind == "ranks":
            start = [python, "-m", "paddlempi.testing.launch"]
            start += ["--mpi", self.mpi] if self.mpi else []
            start += ["-np", str(self.ranks), "--", "python"]
            return [*start, *pytest, "--mpi", "--mpi-ranks", str(self.ranks), *words]
        return [python, *pytest, *words]


def expanded(text: str, lists: dict[str, str]) -> tuple[str, ...]:
    """Return the words of a row or a list: without names, braces and minus signs of paths."""
    found: list[str] = []
    for word in shlex.split(text):
        if word.startswith("$"):
            variable = os.environ.get(word[1:], SECONDS.get(word[1:], ""))
            found += expanded(lists[word[1:]], lists) if word[1:] in lists else [variable]
            continue
        word = re.sub(r"^-(?=tests/)", "--ignore=", word)
        braces = re.fullmatch(r"(.*)\{([\w,]+)\}(.*)", word)
        middle = braces[2].split(",") if braces else []
        found += [f"{braces[1]}{m}{braces[3]}" for m in middle] if braces else [word]
    return tuple(found)


def read(text: str) -> tuple[dict[str, Group], dict[str, tuple[str, ...]]]:
    """Return the groups and the lists of a text."""
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line[:1] not in ("", "#")]
    lists = dict(line.split(" = ", 1) for line in lines if "|" not in line)
    groups = {}
    for line in lines:
        if "|" in line:
            group = _row([cell.strip() for cell in line.split("|")], lists)
            if group.name in groups:
                raise ValueError(f"{LIST.name}: {group.name} stands twice")
            groups[group.name] = group
    return groups, {name: expanded(text, lists) for name, text in lists.items()}


def _row(cells: list[str], lists: dict[str, str]) -> Group:
    name, family, tier, kind, environment, budget, words, more, shows = cells
    number, _, what = kind.rpartition(" ")
    said = [word.partition("=") for word in more.split()]
    given = {key: value for key, _, value in said if key.islower()}
    return Group(
        name,
        family,
        tier,
        what,
        environment,
        int(budget),
        expanded(words, lists),
        shows,
        ranks=int(number or 0),
        mpi="node" if "no-mpi" in given else "",
        also=tuple(value for key, _, value in said if key == "also"),
        env=tuple((key, value) for key, _, value in said if key.isupper()),
        memory=float(given.get("memory", 1.0)),
        on=given.get("on", ""),
        alone="alone" in given,
    )


GROUPS, LISTS = read(LIST.read_text())
MPIS = ("openmpi", "mpich", "impi", "debian-openmpi", "debian-mpich")


def of_tier(tier: str) -> list[Group]:
    """Return the groups of a tier, with those of the tiers before it."""
    tiers = TIERS[: TIERS.index(tier) + 1]
    return [group for group in GROUPS.values() if group.tier in tiers]


def named(name: str) -> list[Group]:
    """Return the group, or the groups of the family, of a name that `make test-NAME` has."""
    family = [group for group in GROUPS.values() if group.family == name]
    if name in GROUPS:
        return [GROUPS[name]]
    return [group for group in family if group.tier != "asked"] or family
